"""Model Context Protocol over standard input and output, for the memory of one home."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from memory.search.searchable import SearchableMemory, unavailable
from memory.search.tool_definitions import call_tool
from memory.service.mcp_server import build_server
from recalld.invocation import Invocation
from recalld.local import answers
from recalld.logs import configure_logs
from schemas.errors import RecalldError, UserError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import Limits


def serve_stdio(invocation: Invocation, *, session_key: str | None) -> None:
    """Answer all requests until standard input ends.

    Settings are read at the first call: the calling model learns of a mistake in them, and the program still starts.
    `session_key` names the calling session; it is stronger than the key of a call.

    Raises:
        UserError: there is no standard input or output.
        BrokenPipeError: the client went away without waiting for the answers.
    """
    if sys.stdin is None or sys.stdout is None:
        raise UserError("`recalld mcp` speaks on its standard input and output, and one of them is closed")
    configure_logs(level=logging.WARNING)
    # Reading standard input blocks a thread that only its end would free; an interrupt is to end the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    client_is_gone = False
    try:
        with contextlib.ExitStack() as opened:
            asyncio.run(_serve(HomeMemory(invocation, opened), session_key))
    except* BrokenPipeError:
        client_is_gone = True
        # The library's writer still holds what has no reader, and Python 3.14 says so when it takes it apart.
        sys.unraisablehook = lambda _: None
    if client_is_gone:
        raise BrokenPipeError


async def _serve(memory: HomeMemory, session_key: str | None) -> None:
    async def answer(name: str, arguments: Mapping[str, Any], key: str | None, _: Any) -> dict[str, Any]:
        return await call_tool(memory, name, arguments, session_key=session_key or key)

    server = build_server(answer)
    async with stdio_server() as streams, until_all_answered(*streams) as (incoming, outgoing):
        # Standard output belongs to the protocol: nothing may be printed there by mistake.
        with contextlib.redirect_stdout(sys.stderr):
            await server.run(incoming, outgoing, server.create_initialization_options())


class HomeMemory(SearchableMemory):
    """Memory of one agent, through the running service, else straight from the index. An error is an answer.

    Every call looks for the service: it may start or end meanwhile. Without one, a memory that is `opened` once embeds
    the queries.
    """

    def __init__(self, invocation: Invocation, opened: contextlib.ExitStack) -> None:
        self._invocation = invocation
        self._opened = opened

    @cached_property
    def _local_memory(self) -> SearchableMemory:
        return self._opened.enter_context(answers.local_memory(self._invocation))

    @property
    def limits(self) -> Limits:
        """Return the agent's limits, or the defaults if the settings are wrong."""
        try:
            return self._invocation.the_agent().limits
        except RecalldError:
            return Limits()

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer that `recalld search --json` prints."""
        options = request.model_dump(exclude={"query", "agent"}, exclude_none=True)
        try:
            memory = lambda: contextlib.nullcontext(self._local_memory)  # noqa: E731
            answer = await asyncio.to_thread(answers.search, self._invocation, request.query, memory=memory, **options)
        except RecalldError as error:
            return SearchAnswer(**unavailable(str(error)))
        return SearchAnswer.model_validate(answer)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return the answer that `recalld get --json` prints."""
        options: dict[str, Any] = {"lines": request.lines, "corpus": request.corpus, "session_key": request.session_key}
        try:
            answer = answers.get(self._invocation, request.path, start_line=request.from_, **options)
        except RecalldError as error:
            return GetAnswer(path=request.path, status="error", **unavailable(str(error)))
        return GetAnswer.model_validate(answer)


#: Seconds that answers get after the input's end; more than `limits.timeout_ms` of a search by default.
LAST_ANSWERS_SECONDS = 20.0

#: Seconds between two looks at the requests without an answer, after the input's end.
_LOOK_SECONDS = 0.05

Messages = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


@asynccontextmanager
async def until_all_answered(
    incoming: ReadStream[SessionMessage | Exception], outgoing: WriteStream[SessionMessage]
) -> AsyncIterator[Messages]:
    """Wrap streams for a server that learns of the input's end when its last request is answered.

    The SDK's server drops its open requests when its input ends, as after `printf '...' | recalld mcp`.
    """
    to_server, for_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    from_server, to_client = anyio.create_memory_object_stream[SessionMessage](0)
    open_requests: set[object] = set()

    async def read() -> None:
        async with to_server, incoming:
            async for message in incoming:
                content = message.message if isinstance(message, SessionMessage) else None
                if isinstance(content, JSONRPCRequest):
                    open_requests.add(content.id)
                elif isinstance(content, JSONRPCNotification) and content.method == "notifications/cancelled":
                    cancelled = (content.params or {}).get("requestId")
                    open_requests.difference_update({cancelled} if isinstance(cancelled, str | int) else ())
                try:
                    await to_server.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return  # the server has ended by itself
            with anyio.move_on_after(LAST_ANSWERS_SECONDS):
                while open_requests:
                    await anyio.sleep(_LOOK_SECONDS)

    async def write() -> None:
        async with to_client, outgoing:
            async for message in to_client:
                await outgoing.send(message)
                if isinstance(message.message, JSONRPCResponse | JSONRPCError):
                    open_requests.discard(message.message.id)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield for_server, from_server
