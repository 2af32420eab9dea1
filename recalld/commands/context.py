"""`recalld context`: the parts of a session's prompt that come from memory, and their cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from recalld.invocation import Invocation, json_option, pass_invocation
from recalld.local import answers
from recalld.local.answers import Answer
from recalld.terminal_text import print_json, printable_name, remark

#: Indexed documents that the short list shows.
_MOST_LISTED = 10


@click.group("context")
def context() -> None:
    """Show a session's files, standing instructions and tools, with their characters and tokens."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    kinds = click.Choice(["chat", "subagent", "cron"])
    for option in (
        json_option,
        click.option("--session-key", metavar="KEY", help="The session, for what it may see."),
        click.option("--bare-reset", is_flag=True, help="A session after /new or /reset without further words."),
        click.option("--kind", type=kinds, default="chat", show_default=True, help="The kind of session."),
    ):
        command = option(command)
    return command


@context.command("list")
@_options
@pass_invocation
def list_(invocation: Invocation, *, as_json: bool, **options: Any) -> None:
    """List files and tools with their share of the prompt, and the largest indexed documents."""
    answer = answers.context(invocation, **options)
    if as_json:
        print_json(answer)
    else:
        _show(answer, most=_MOST_LISTED)


@context.command("detail")
@_options
@pass_invocation
def detail(invocation: Invocation, *, as_json: bool, **options: Any) -> None:
    """Print the text of each file as a prompt gets it, and list all indexed documents."""
    answer = answers.context(invocation, texts=True, **options)
    if as_json:
        print_json(answer)
        return
    _show(answer, most=None)
    for file in answer["files"]:
        if file.get("text"):
            click.secho(f"\n# {file['path']}", bold=True)
            click.echo(file["text"])


def _show(answer: Answer, *, most: int | None) -> None:
    missing = [file["path"] for file in answer["files"] if file.get("problem") == "missing"]
    largest = sorted(answer["indexed"], key=lambda document: -document["tokens"])
    _table("Files of the workspace", [file for file in answer["files"] if file["path"] not in missing])
    _table("Standing instructions", answer["standing"])
    _table("Tools", answer["tools"])
    _table("Indexed documents", largest[:most])
    if most is not None and len(largest) > most:
        click.echo(f"  ... and {len(largest) - most:,} more: `recalld context detail`")
    if missing:
        click.secho(f"Not there: {', '.join(missing)}", dim=True)
    if answer.get("error"):
        remark(answer["error"])


def _table(title: str, rows: list[Mapping[str, Any]]) -> None:
    """Print a line for each row: name, characters, tokens, and a note about a file or a document."""
    if not rows:
        return
    click.secho(f"{title}: {sum(row['tokens'] for row in rows):,} tokens", bold=True)
    names = [printable_name(row.get("path") or row.get("source") or row["name"]) for row in rows]
    for name, row in zip(names, rows, strict=True):
        size, unit = row.get("shown", row.get("characters")), "characters"
        note = row.get("problem", "")
        if row.get("truncated"):
            note = f"cut, {row['characters']:,} in all"
        elif "chunks" in row:
            size, unit, note = row["bytes"], "bytes", f"{row['chunks']:,} chunk{'s' if row['chunks'] != 1 else ''}"
        line = f"  {name:<{max(map(len, names))}}  {size:>9,} {unit:<10} {row['tokens']:>8,} tokens  {note}"
        click.echo(line.rstrip())
