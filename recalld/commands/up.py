"""`recalld up`: everything on one machine."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation, setting_option, workspace_option


@click.command("up")
@workspace_option
@setting_option("--host", "service.host", metavar="ADDRESS", help="Address to listen on. [127.0.0.1]")
@setting_option("--port", "service.port", type=int, metavar="N", help="Port of the query service; 0 picks one. [7373]")
@pass_invocation
def command(invocation: Invocation) -> int:
    """Run broker, watching, indexing and search until Ctrl-C, which drains and stops all of it."""
    from recalld.up.daemon import run_daemon

    return run_daemon(invocation)
