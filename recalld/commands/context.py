"""`recalld context`: the parts of a session's prompt that come from memory, and their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from recalld.invocation import CommandGroup, Invocation, examples, json_option, pass_invocation
from recalld.local import answers
from recalld.local.answers import Answer
from recalld.terminal_text import print_answer, printable_name, remark

#: Indexed documents that the short list shows.
_MOST_LISTED = 10


@click.group("context", cls=CommandGroup, epilog=examples("recalld context list"))
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


@context.command("list", epilog=examples("recalld context list", "recalld context list --kind subagent"))
@_options
@pass_invocation
def list_(invocation: Invocation, *, as_json: bool, **options: Any) -> None:
    """List files and tools with their share of the prompt, and the largest indexed documents."""
    answer = answers.context(invocation, **options)
    print_answer(answer, _lines(answer, most=_MOST_LISTED), as_json=as_json)


@context.command("detail", epilog=examples("recalld context detail --agent main"))
@_options
@pass_invocation
def detail(invocation: Invocation, *, as_json: bool, **options: Any) -> None:
    """Print the text of each file as a prompt gets it, and list all indexed documents."""
    answer = answers.context(invocation, texts=True, **options)
    print_answer(answer, _lines(answer, most=None), as_json=as_json)


def _lines(answer: Answer, *, most: int | None) -> Iterator[str]:
    """Yield the lines of a report, with the texts of files if it has them. An error is a remark."""
    missing = [file["path"] for file in answer["files"] if file.get("problem") == "missing"]
    largest = sorted(answer["indexed"], key=lambda document: -document["tokens"])
    yield from _table("Files of the workspace", [file for file in answer["files"] if file["path"] not in missing])
    yield from _table("Standing instructions", answer["standing"])
    yield from _table("Daily notes", answer.get("dailyNotes", []))
    yield from _table("Tools", answer["tools"])
    yield from _table("Indexed documents", largest[:most])
    if most is not None and len(largest) > most:
        yield f"  ... and {len(largest) - most:,} more: `recalld context detail`"
    if missing:
        yield click.style(f"Not there: {', '.join(missing)}", dim=True)
    if answer.get("error"):
        remark(answer["error"])
    for file in answer["files"]:
        if file.get("text"):
            yield click.style(f"\n# {file['path']}", bold=True)
            yield file["text"]


def _table(title: str, rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each row: name, characters, tokens, and a note about a file or a document."""
    if not rows:
        return
    yield click.style(f"{title}: {sum(row['tokens'] for row in rows):,} tokens", bold=True)
    names = [printable_name(row.get("path") or row.get("source") or row["name"]) for row in rows]
    for name, row in zip(names, rows, strict=True):
        size, unit = row.get("shown", row.get("characters")), "characters"
        note = row.get("problem", "")
        if row.get("truncated"):
            note = f"cut, {row['characters']:,} in all"
        elif "chunks" in row:
            size, unit, note = row["bytes"], "bytes", f"{row['chunks']:,} chunk{'s' if row['chunks'] != 1 else ''}"
        line = f"  {name:<{max(map(len, names))}}  {size:>9,} {unit:<10} {row['tokens']:>8,} tokens  {note}"
        yield line.rstrip()
