"""Model Context Protocol over streamable HTTP: `/mcp`, and `/mcp/<agent>` where there are several.

Every request stands for itself: no session is kept between two of them, so nothing has to be ended, and any replica
can answer. Who may ask is decided before the SDK sees a request, by the same gate as for every other path.
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
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from memory.service.mcp_server import NO_ID, ToolCall, build_server, lacks_id
from memory.service.security import MAX_BODY_BYTES, AccessDenied

#: The header by which a connection says which session asks; without it, it is the owner's private one.
SESSION_KEY_HEADER = "X-Recalld-Session-Key"

#: Where this door leaves, in a request's scope, what its gate found out.
_ASKER = "recalld.asker"


#: (agent, tool, arguments, session key) -> the answer as a JSON object; raises ToolArgumentsRefused.
CallTool = Callable[[str, str, Mapping[str, Any], str | None], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Asker:
    agent: str
    session_key: str | None


class McpDoor:
    """ASGI application. Must be `opened()` while it answers.

    Args:
        allowed: (Authorization header, agent in the path) -> whose memory it is; raises AccessDenied.
        call: calls a tool of an agent.
    """

    def __init__(
        self,
        *,
        allowed: Callable[[str | None, str | None], str],
        call: CallTool,
    ) -> None:
        self._allowed = allowed
        self._call = call
        self._sessions = StreamableHTTPSessionManager(
            build_server(self._answer), json_response=True, stateless=True, max_request_body_size=MAX_BODY_BYTES
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Answer until the end of the block. Once per door."""
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            AccessDenied: who asks may not, or the session key is not one.
        """
        headers = Headers(scope=scope)
        agent = self._allowed(headers.get("authorization"), scope["path_params"].get("agent"))
        asker = _Asker(agent, _session_key(headers))
        body, again = await _read(receive)
        if _lacks_id(body):
            await JSONResponse(NO_ID, status_code=400)(scope, receive, send)
            return
        await self._sessions.handle_request({**scope, _ASKER: asker}, again, _in_a_sentence(send))

    async def _answer(self, call: ToolCall) -> dict[str, Any]:
        asker: _Asker = call.request.scope[_ASKER]
        session_key = asker.session_key or call.session_key
        return await self._call(asker.agent, call.name, call.arguments, session_key)


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """Read a body, which is bounded before it comes here; also what gives its messages once more."""
    messages: list[Message] = []
    while not messages or messages[-1].get("more_body"):
        messages.append(await receive())
    body = b"".join(message.get("body", b"") for message in messages)

    async def again() -> Message:
        return messages.pop(0) if messages else await receive()

    return body, again


def _lacks_id(body: bytes) -> bool:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False  # the SDK says what is wrong with it
    return isinstance(message, dict) and lacks_id(message.get("method"), message.get("id"))


def _in_a_sentence(send: Send) -> Send:
    """Puts a sentence in place of pydantic's report on what is no message: that one lists every kind of message."""
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
    # An empty one is a mistake in a client's settings, and would stand for the session that sees the most.
    if len(keys) > 1 or not keys[0].strip():
        raise AccessDenied(400, f"{SESSION_KEY_HEADER} must be sent once and not be empty, or left out")
    return keys[0].strip()
