"""Where the service answers the Model Context Protocol, or says what is missing for that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

_PATHS = ("/mcp", "/mcp/{agent}")

#: A GET would open a stream for what a server says by itself, a DELETE end a session: 405 says that there is neither.
_METHODS = ["POST"]


class McpRoutes:
    """The routes of the door; see `McpDoor` for the arguments. Without the SDK they answer 501."""

    def __init__(
        self,
        *,
        allowed: Callable[[str | None, str | None], str],
        call: Callable[[str, str, Mapping[str, Any], str | None], Awaitable[dict[str, Any]]],
    ) -> None:
        try:
            from memory.service.mcp_door import McpDoor
        except ModuleNotFoundError as error:
            if error.name not in {"mcp", "mcp_types"}:
                raise
            self._door = None
            self.routes = [Route(path, _missing, methods=_METHODS) for path in _PATHS]
            return
        self._door = McpDoor(allowed=allowed, call=call)
        self.routes = [Route(path, self._door, methods=_METHODS) for path in _PATHS]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Answer until the end of the block."""
        if self._door is None:
            yield
            return
        async with self._door.opened():
            yield


async def _missing(_: Request) -> JSONResponse:
    return JSONResponse({"error": 'MCP needs its SDK: pip install "recalld[mcp]"'}, status_code=501)
