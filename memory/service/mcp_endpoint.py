"""Model Context Protocol over streamable HTTP: `/mcp`, and `/mcp/<agent>` where there are several.

The service keeps no session between two requests, so any replica can answer. A request is authorized before the SDK
sees it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INVALID_REQUEST, JSONRPCNotification
from mcp_types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from memory.http.authorization import AccessDenied
from memory.service.mcp_server import build_server

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

    `allowed` maps (Authorization header, agent in the path) to the agent whose memory is open, or raises AccessDenied.
    """

    def __init__(self, *, allowed: Callable[[str | None, str | None], Awaitable[str]], call: CallTool) -> None:
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
        agent = await self._allowed(headers.get("authorization"), scope["path_params"].get("agent"))
        caller = _Caller(agent, _session_key(headers))
        body = await Request(scope, receive).body()
        if _is_json_but_no_message(body):
            error = {"code": INVALID_REQUEST, "message": "the body is not a JSON-RPC 2.0 message"}
            await JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)(scope, receive, send)
            return
        await self._sessions.handle_request({**scope, _CALLER: caller}, _again(body, receive), send)

    async def _answer(
        self, name: str, arguments: Mapping[str, Any], session_key: str | None, context: Any
    ) -> dict[str, Any]:
        caller: _Caller = context.request.scope[_CALLER]
        return await self._call(caller.agent, name, arguments, caller.session_key or session_key)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body once more."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _is_json_but_no_message(body: bytes) -> bool:
    """Return True for JSON that the SDK would answer with the body in its error, or would not answer.

    A request with an id that is neither text nor a whole number is a notification to the SDK.
    """
    try:
        message = jsonrpc_message_adapter.validate_json(body)
    except ValidationError as error:
        return error.errors()[0]["type"] != "json_invalid"
    return isinstance(message, JSONRPCNotification) and "id" in from_json(body)


def _session_key(headers: Headers) -> str | None:
    keys = headers.getlist(SESSION_KEY_HEADER)
    if not keys:
        return None
    # An empty key is a mistake in a client's settings, and would stand for the session that sees the most.
    if len(keys) > 1 or not keys[0].strip():
        raise AccessDenied(400, f"{SESSION_KEY_HEADER} must be sent once and not be empty, or left out")
    return keys[0].strip()
