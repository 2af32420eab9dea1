"""`recalld status`: how files, index and queue compare."""

from __future__ import annotations

from typing import Any

import click

from recalld.asking import ask, print_json, remark
from recalld.invocation import Invocation, pass_invocation

NOT_OK = 4


@click.command("status")
@click.option("--deep", is_flag=True, help="Also check whether the indexes hold together; takes longer.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@pass_invocation
def command(invocation: Invocation, *, deep: bool, as_json: bool) -> int:
    """Say how files, index and queue compare, and what is not well.

    Leaves with exit code 4 while anything is missing, stuck or failed.
    """

    def directly() -> dict[str, Any]:
        from recalld import direct

        remark("no service is running")
        return direct.status(invocation, deep=deep)

    answer = ask(
        invocation,
        service=lambda client: client.status(agent=invocation.agent, deep=deep),
        otherwise=directly,
    )
    if as_json:
        print_json(answer)
    else:
        from recalld.status_view import status_lines

        for line in status_lines(answer):
            click.echo(line)
    return 0 if answer["ok"] else NOT_OK
