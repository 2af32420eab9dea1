"""Answers to what was asked before the input ended: `printf '...' | recalld mcp` gets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from memory.service.mcp_server import NO_ID, lacks_id

#: Seconds that answers get after the input's end; more than `limits.timeout_ms` of a search by default.
LAST_ANSWERS_SECONDS = 20.0

Messages = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


@asynccontextmanager
async def answered_to_the_end(
    incoming: ReadStream[SessionMessage | Exception], outgoing: WriteStream[SessionMessage]
) -> AsyncIterator[Messages]:
    """The same streams for a server, which learns of the input's end when its last request is answered.

    The SDK's server drops whatever it works on when its input ends.
    """
    to_server, for_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_server, to_client = anyio.create_memory_object_stream[SessionMessage](0)
    asked = _Asked()

    async def read() -> None:
        async with to_server, incoming:
            async for message in incoming:
                if _lacks_id(message):
                    await outgoing.send(SessionMessage(JSONRPCError.model_validate(NO_ID)))
                    continue
                asked.came(message)
                try:
                    await to_server.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the server has ended by itself
            with anyio.move_on_after(LAST_ANSWERS_SECONDS):
                await asked.all_answered()

    async def write() -> None:
        async with to_client, outgoing:
            async for message in to_client:
                await outgoing.send(message)
                asked.went(message)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield for_server, from_server


def _lacks_id(message: SessionMessage | Exception) -> bool:
    content = message.message if isinstance(message, SessionMessage) else None
    return isinstance(content, JSONRPCNotification) and lacks_id(content.method, None)


class _Asked:
    """Requests without an answer, by their number."""

    def __init__(self) -> None:
        self._open: set[object] = set()
        self._changed = anyio.Event()

    def came(self, message: SessionMessage | Exception) -> None:
        """A message of the client: a request, or that it no longer wants an answer."""
        content = message.message if isinstance(message, SessionMessage) else None
        if isinstance(content, JSONRPCRequest):
            self._open.add(content.id)
        elif isinstance(content, JSONRPCNotification) and content.method == "notifications/cancelled":
            self._closed((content.params or {}).get("requestId"))

    def went(self, message: SessionMessage) -> None:
        """A message of the server."""
        if isinstance(message.message, JSONRPCResponse | JSONRPCError):
            self._closed(message.message.id)

    async def all_answered(self) -> None:
        """Wait until no request is open."""
        while self._open:
            self._changed = anyio.Event()
            await self._changed.wait()

    def _closed(self, number: object) -> None:
        if isinstance(number, str | int):
            self._open.discard(number)
        self._changed.set()
