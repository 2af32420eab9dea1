"""A server with the interface of OpenAI's Chat Completions whose model says what a test has written for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.stub_server import StubServer

#: The messages so far -> the model's: a text, or the tools that it calls as (name, arguments).
Turn = Callable[[list[dict[str, Any]]], str | list[tuple[str, str]]]


class ChatServer(StubServer):
    """Answers one request after another as `script` says, and each one too many with status 400.

    `requests` are the bodies that came.
    """

    def __init__(self, script: Sequence[Turn]) -> None:
        super().__init__()
        self.script = script
        self.requests: list[dict[str, Any]] = []

    @property
    def base_url(self) -> str:
        """Return the address with the version."""
        return f"{self.root}/v1"

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        turn = len(self.requests)
        self.requests.append(body)
        known = handler.path == "/v1/chat/completions" and turn < len(self.script)
        completion = _completion(self.script[turn](body["messages"]), turn) if known else {}
        is_stream = known and body.get("stream")
        content = _events(completion) if is_stream else json.dumps(completion).encode()
        handler.send_response(200 if known else 400)
        handler.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


def _completion(said: str | list[tuple[str, str]], turn: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
    if not isinstance(said, str):
        message["tool_calls"] = [
            {"id": f"call_{turn}_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(said)
        ]
    return {
        "id": f"chatcmpl-{turn}",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop" if isinstance(said, str) else "tool_calls"}
        ],
    }


def _events(completion: dict[str, Any]) -> bytes:
    """Return the server-sent events of a completion, all of its text in the first one."""
    [choice] = completion["choices"]
    delta = {"index": 0, "delta": choice["message"], "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    chunks = [json.dumps({**completion, "object": "chat.completion.chunk", "choices": [part]}) for part in (delta, end)]
    return "".join(f"data: {chunk}\n\n" for chunk in (*chunks, "[DONE]")).encode()
