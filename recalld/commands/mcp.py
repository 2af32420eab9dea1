"""`recalld mcp`: the memory tools over stdio, for a program that starts its tools itself."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation
from schemas.errors import UserError


@click.command("mcp")
@click.option("--session-key", metavar="KEY", help="The session that asks, for scope rules. [the owner's private one]")
@pass_invocation
def command(invocation: Invocation, *, session_key: str | None) -> None:
    """Serve the memory tools by the Model Context Protocol, on standard input and output.

    Asks the running service; when none runs, reads the index itself, by keywords only. Ends when standard input ends.
    """
    if session_key is not None and not session_key.strip():
        raise UserError("--session-key must not be empty; leave it out for the owner's private session", exit_code=2)
    try:
        from recalld.local.mcp_stdio import serve_stdio
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "mcp_types"}:
            raise
        raise UserError('MCP needs its SDK: pip install "recalld[mcp]"') from None
    serve_stdio(invocation, session_key=session_key)
