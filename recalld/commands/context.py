"""`recalld context`: what a session's prompt gets of the memory, and what it costs."""

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
    """Show what a session's prompt gets: files, standing instructions and tools, with characters and tokens."""


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
def list_(invocation: Invocation, *, as_json: bool, **asked: Any) -> None:
    """List files and tools with their share of the prompt, and the largest indexed documents."""
    _show(answers.context(invocation, **asked), as_json=as_json, most=_MOST_LISTED)


@context.command("detail")
@_options
@pass_invocation
def detail(invocation: Invocation, *, as_json: bool, **asked: Any) -> None:
    """Print the text of each file as a prompt gets it, and list all indexed documents."""
    answer = answers.context(invocation, texts=True, **asked)
    _show(answer, as_json=as_json, most=None)
    for file in () if as_json else answer["files"]:
        if file.get("text"):
            click.secho(f"\n# {file['path']}", bold=True)
            click.echo(file["text"])


def _show(answer: Answer, *, as_json: bool, most: int | None) -> None:
    if as_json:
        print_json(answer)
        return
    files = [file for file in answer["files"] if file.get("problem") != "missing"]
    _table("Files of the workspace", files, lambda one: one["path"], _file_note)
    _table("Standing instructions", answer["standing"], lambda one: one["source"], lambda _: "")
    _table("Tools", answer["tools"], lambda one: one["name"], lambda _: "")
    largest = sorted(answer["indexed"], key=lambda one: -one["tokens"])
    _table("Indexed documents", largest[:most], lambda one: one["path"], _chunks)
    if most is not None and len(largest) > most:
        click.echo(f"  ... and {len(largest) - most:,} more: `recalld context detail`")
    missing = [file["path"] for file in answer["files"] if file.get("problem") == "missing"]
    if missing:
        click.secho(f"Not there: {', '.join(missing)}", dim=True)
    if answer.get("error"):
        remark(answer["error"])


def _table(
    title: str,
    rows: list[Mapping[str, Any]],
    name: Callable[[Mapping[str, Any]], str],
    note: Callable[[Mapping[str, Any]], str],
) -> None:
    if not rows:
        return
    click.secho(f"{title}: {sum(row['tokens'] for row in rows):,} tokens", bold=True)
    width = max(len(printable_name(name(row))) for row in rows)
    for row in rows:
        characters = row.get("shown", row.get("characters", row.get("bytes", 0)))
        line = f"  {printable_name(name(row)):<{width}}  {characters:>9,} characters {row['tokens']:>8,} tokens"
        click.echo(f"{line}  {note(row)}".rstrip())


def _file_note(file: Mapping[str, Any]) -> str:
    if file.get("problem"):
        return str(file["problem"])
    return f"cut, {file['characters']:,} in all" if file["truncated"] else ""


def _chunks(document: Mapping[str, Any]) -> str:
    return f"{document['chunks']:,} chunk{'s' if document['chunks'] != 1 else ''}"
