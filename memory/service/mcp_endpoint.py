"""Model Context Protocol over streamable HTTP: `/mcp`, and `/mcp/<agent>` where there are several.

The service keeps no session between two requests, so any replica can answer. A request is authorized before the SDK
sees it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INVALID_REQUEST
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from memory.http.authorization import AccessDenied
from memory.service.mcp_server import NO_ID, ToolCall, build_server, lacks_id

#: Header of a connection with the key of its session; without it, that is the owner's private session.
SESSION_KEY_HEADER = "X-Recalld-Session-Key"

#: Key of a request's scope for its `_Caller`.
_CALLER = "recalld.caller"

#: (agent, tool, arguments, session key) -> the answer as a JSON object; raises ToolArgumentsRefused.
CallTool = Callable[[str, str, Mapping[str, Any], str | None], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Caller:
    agent: str
    session_key: str | None


class McpEndpoint:
    """ASGI application. Must be `opened()` while it answers.

    Args:
        allowed: (Authorization header, agent in the path) -> the agent whose memory is open; raises AccessDenied.
        call: calls a tool of an agent.
    """

    def __init__(self, *, allowed: Callable[[str | None, str | None], str], call: CallTool) -> None:
        self._allowed = allowed
        self._call = call
        self._sessions = StreamableHTTPSessionManager(build_server(self._answer), json_response=True, stateless=True)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Answer until the end of the block. Once per endpoint."""
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            AccessDenied: the request may open no memory, or its session key is not valid.
        """
        headers = Headers(scope=scope)
        agent = self._allowed(headers.get("authorization"), scope["path_params"].get("agent"))
        caller = _Caller(agent, _session_key(headers))
        body = await Request(scope, receive).body()
        if _lacks_id(body):
            await JSONResponse(NO_ID, status_code=400)(scope, receive, send)
            return
        await self._sessions.handle_request({**scope, _CALLER: caller}, _again(body, receive), _in_a_sentence(send))

    async def _answer(self, call: ToolCall) -> dict[str, Any]:
        caller: _Caller = call.request.scope[_CALLER]
        session_key = caller.session_key or call.session_key
        return await self._call(caller.agent, call.name, call.arguments, session_key)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body once more."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _lacks_id(body: bytes) -> bool:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False  # the SDK answers with the reason
    return isinstance(message, dict) and lacks_id(message.get("method"), message.get("id"))


def _in_a_sentence(send: Send) -> Send:
    """Return a `send` that shortens pydantic's report on an invalid message, which lists every kind of message."""
    held: list[Message] = []

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 400:
            held.append(message)
            return
        if held:
            start = held.pop()
            body = _shortened(message.get("body", b""))
            headers = [entry for entry in start["headers"] if entry[0].lower() != b"content-length"]
            await send({**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
            message = {**message, "body": body}
        await send(message)

    return sending


def _shortened(body: bytes) -> bytes:
    try:
        answer = json.loads(body)
        report = answer["error"]["message"].startswith("Validation error")
    except (ValueError, LookupError, TypeError, AttributeError):
        return body
    if not report:
        return body
    answer["error"] = {"code": INVALID_REQUEST, "message": "the body is not a JSON-RPC 2.0 message"}
    return json.dumps(answer).encode()


def _session_key(headers: Headers) -> str | None:
    keys = headers.getlist(SESSION_KEY_HEADER)
    if not keys:
        return None
    # An empty key is a mistake in a client's settings, and would stand for the session that sees the most.
    if len(keys) > 1 or not keys[0].strip():
        raise AccessDenied(400, f"{SESSION_KEY_HEADER} must be sent once and not be empty, or left out")
    return keys[0].strip()
