"""`recalld get`: read lines of a memory file."""

from __future__ import annotations

import sys
from typing import Any

import click

from recalld.asking import Absence, Answer, ask, print_json, remark
from recalld.invocation import Invocation, pass_invocation
from recalld.terminal_text import printable, typed_name

FAILED = 1
NOT_IN_MEMORY = 3


@click.command("get")
@click.argument("path")
@click.option("--from", "start_line", type=click.IntRange(min=1), metavar="LINE", help="First line, from 1.")
@click.option("--lines", type=click.IntRange(1, 100_000), metavar="N", help="How many lines.")
@click.option("--session-key", metavar="KEY", help="The session that asks, for scope rules.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    path: str,
    start_line: int | None,
    lines: int | None,
    session_key: str | None,
    as_json: bool,
) -> int:
    """Print lines of a memory file, as search results name it.

    Only documents of the agent's memory are read: MEMORY.md, memory/**/*.md and the extra paths.
    """

    def read(path: str) -> Answer:
        def directly(_: Absence) -> dict[str, Any]:
            from recalld import direct

            asked = {"path": path, "from": start_line, "lines": lines, "session_key": session_key}
            return direct.get(invocation, {name: value for name, value in asked.items() if value is not None})

        return ask(
            invocation,
            service=lambda client: client.get(
                path, start_line=start_line, lines=lines, agent=invocation.agent, session_key=session_key
            ),
            otherwise=directly,
        )

    answer = read(path)
    if answer.get("error") and typed_name(path) != path:
        # No document is called so; one may be shown so.
        meant = read(typed_name(path))
        answer = answer if meant.get("error") and not meant.get("unavailable") else meant
    if as_json:
        print_json(answer)
    elif answer.get("error"):
        remark(answer["error"])
    elif answer.get("disabled"):
        remark("this memory is switched off")
    else:
        # A program that reads this wants it as it is.
        text = printable(answer["text"]) if sys.stdout.isatty() else answer["text"]
        click.echo(text, nl=not text.endswith("\n") and bool(text))
        if answer.get("truncated") and answer.get("nextFrom"):
            remark(f"there is more: --from {answer['nextFrom']} (of {answer['totalLines']} lines)")
    if answer.get("unavailable"):
        return FAILED  # whatever the path names, it was not shown
    return NOT_IN_MEMORY if answer.get("error") or answer.get("disabled") else 0
