"""A server with the interface of OpenAI's Chat Completions whose model says what a test has written for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: The messages so far -> the model's: a text, or the tools that it calls as (name, arguments).
Turn = Callable[[list[dict[str, Any]]], str | list[tuple[str, str]]]


@dataclass
class ChatServer:
    """`requests` are the bodies that came."""

    base_url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def chat_server(script: Sequence[Turn]) -> Iterator[ChatServer]:
    """Answer one request after another as `script` says; a request too many is answered with status 400."""
    state = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            turn = len(state.requests)
            state.requests.append(body)
            known = self.path == "/v1/chat/completions" and turn < len(script)
            content = json.dumps(_completion(script[turn](body["messages"]), turn) if known else {}).encode()
            self.send_response(200 if known else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
