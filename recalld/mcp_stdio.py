"""Model Context Protocol over standard input and output, which belong to the protocol alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from typing import Any

from mcp.server.stdio import stdio_server

from memory.search.tools import call_tool
from memory.service.mcp_server import ToolCall, build_server
from recalld.home_memory import HomeMemory
from recalld.invocation import Invocation
from recalld.last_answers import answered_to_the_end
from recalld.logs import configure_logs
from schemas.errors import UserError


def serve_stdio(invocation: Invocation, *, session_key: str | None) -> None:
    """Answer until standard input ends, and what was asked until then.

    Settings are read when the first call needs them: a mistake in them is told to the model that asks, instead of
    a program that would not start. `session_key` says which session asks; it comes before what a call says.

    Raises:
        UserError: there is no standard input or output.
        BrokenPipeError: whoever asked went away without waiting for the answers.
    """
    if sys.stdin is None or sys.stdout is None:
        raise UserError("`recalld mcp` speaks on its standard input and output, and one of them is closed")
    configure_logs(level=logging.WARNING)
    # Reading standard input blocks a thread that only its end would free; an interrupt is to end the process at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gone = False
    try:
        asyncio.run(_serve(HomeMemory(invocation), session_key))
    except* BrokenPipeError:
        gone = True
        # The library's writer still holds what has no reader, and Python 3.14 says so when it takes it apart.
        sys.unraisablehook = lambda _: None
    if gone:
        raise BrokenPipeError


async def _serve(memory: HomeMemory, session_key: str | None) -> None:
    async def answer(call: ToolCall) -> dict[str, Any]:
        key = session_key or call.session_key
        return await asyncio.to_thread(call_tool, memory, call.name, dict(call.arguments), session_key=key)

    server = build_server(answer)
    async with stdio_server() as streams, answered_to_the_end(*streams) as (incoming, outgoing):
        # What anything prints by mistake would be flushed to where only the protocol may write.
        with contextlib.redirect_stdout(sys.stderr):
            await server.run(incoming, outgoing, server.create_initialization_options())
