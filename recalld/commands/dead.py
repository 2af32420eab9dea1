"""`recalld dead`: documents that failed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from memory.status.condition_texts import counted, duration
from memory.status.index import dead_letter
from recalld import logs
from recalld.invocation import Invocation, json_option, pass_invocation, to_type
from recalld.runs import dead_letters
from recalld.runs.dead_letters import Failed
from recalld.terminal_text import fields, print_json, printable_name
from recalld.up.lock import daemon_pid
from recalld.wiring import open_broker


@click.group("dead")
def dead() -> None:
    """List, show, retry or drop documents that failed.

    A document fails as a whole when it cannot be read; it fails in part when the provider refuses to embed some of
    its lines, which are then found by keywords only. Nothing of this goes away by itself, except by an edit that
    mends it. Every command works with and without a running daemon.
    """
    logs.configure_logs(level=40)


@dead.command("list")
@json_option
@pass_invocation
def list_letters(invocation: Invocation, *, as_json: bool) -> None:
    """List the documents that failed, with the reason. Exit code 0 also when there is none."""
    failed = dead_letters.failed_documents(invocation.settings, invocation.agents())
    if as_json:
        print_json({"deadLetters": [_body(one) for one in failed]})
        return
    if not failed:
        click.echo("nothing failed")
    for one in failed:
        click.echo(f"{_title(one)}{_history(one)}\n    {printable_name(one.letter.reason) if one.letter else ''}")


@dead.command("show")
@click.argument("path")
@json_option
@pass_invocation
def show(invocation: Invocation, *, path: str, as_json: bool) -> None:
    """Say all that is known about one document that failed: which lines, why, how often, and what is indexed of it.

    Leaves with exit code 3 when nothing failed there.
    """
    [one] = dead_letters.chosen(invocation.settings, invocation.agents(), [path])
    if as_json:
        file, refused = one.file, one.refused
        print_json(
            _body(one)
            | {"refused": [fields(chunk, "start_line", "end_line", "reason") for chunk in refused]}
            | {"indexed": file and {"at": file.indexed_at, "size": file.stat.size, "notes": list(file.notes)}}
        )
        return
    click.echo(f"{_title(one)}{_history(one)}")
    for name, text in _facts(one):
        click.echo(f"    {name:<9}{printable_name(text)}")


def _facts(one: Failed) -> Iterator[tuple[str, str]]:
    dropped = "its dead letter was dropped" + ("; it is left out until it changes" if one.left_out else "")
    yield "reason", one.letter.reason if one.letter else dropped
    for chunk in one.refused:
        yield "refused", f"lines {chunk.start_line}-{chunk.end_line}: {chunk.reason}"
    if one.file is None:
        yield "indexed", "nothing of it"
        return
    what = "all of it by keywords" if one.refused else "an older version"
    yield "indexed", f"{what}, {_when(one.file.indexed_at)}"
    yield from (("note", note) for note in one.file.notes)


@dead.command("retry")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--all", "everything", is_flag=True, help="Retry everything that failed.")
@json_option
@pass_invocation
def retry(invocation: Invocation, *, paths: Sequence[str], everything: bool, as_json: bool) -> None:
    """Try documents again: read those that could not be read, ask for the vectors that were refused.

    What fails again is listed again. Leaves with exit code 3 when nothing failed at a PATH; then nothing is retried.
    """
    if bool(paths) == everything:
        raise click.UsageError("name what to retry: PATH..., or --all")
    settings, agents = invocation.settings, invocation.agents()
    failed = (
        dead_letters.failed_documents(settings, agents) if everything else dead_letters.chosen(settings, agents, paths)
    )
    with open_broker(settings) as broker:
        asked, queued = dead_letters.retry(settings, failed, broker)
    working = queued and daemon_pid(settings.home) is not None
    if as_json:
        retried = [{**_name(one), "chunks": chunks} for one, chunks in asked]
        print_json({"retried": retried, "queued": queued, "working": working})
        return
    for one, chunks in asked:
        again = f"{counted(chunks, 'refused chunk')} will be embedded again" if chunks else "will be read again"
        click.echo(f"{_title(one)}: {again}")
    if not asked:
        then = "nothing failed, so there is nothing to retry"
    elif working:
        then = "the running daemon tries again now; `recalld dead list` says what failed once more"
    elif queued:
        then = "queued: whichever worker of this queue runs next tries again"
    else:
        then = "no daemon is running: the next `recalld up` or `recalld index` tries again"
    click.echo(to_type(then))


@dead.command("drop")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@json_option
@pass_invocation
def drop(invocation: Invocation, *, paths: Sequence[str], as_json: bool) -> None:
    """Forget that documents failed; refused lines stay found by keywords only.

    A file that could not be read is left out, and `recalld status` says so, until it changes, the index is made anew,
    or `recalld dead retry PATH`. Leaves with exit code 3 when nothing failed at a PATH; then nothing is dropped.
    """
    failed = dead_letters.chosen(invocation.settings, invocation.agents(), paths)
    dropped = dead_letters.drop(invocation.settings, failed)
    if as_json:
        print_json({"dropped": [_name(one) | {"leftOut": one.left_out} for one in dropped]})
        return
    for one in dropped:
        click.echo(f"{_title(one)}: dropped{'; the file is left out until it changes' if one.left_out else ''}")


def _title(one: Failed) -> str:
    return f"{click.style(one.agent.id, bold=True)}: {printable_name(one.key.path)}"


def _history(one: Failed) -> str:
    letter = one.letter
    if letter is None:
        return ""
    since = f", first {_when(letter.first_at)}" if letter.attempts > 1 else ""
    text = f"  {letter.error_class}, {counted(letter.attempts, 'attempt')}{since}, last {_when(letter.last_at)}"
    return click.style(text, dim=True)


def _when(at: float) -> str:
    return f"{duration(max(0.0, time.time() - at))} ago"


def _name(one: Failed) -> dict[str, Any]:
    return {"agent": one.agent.id, "source": one.key.source, "path": one.key.path}


def _body(one: Failed) -> dict[str, Any]:
    if one.letter is None:
        return _name(one)
    return dead_letter(one.letter).model_dump(by_alias=True) | {"agent": one.agent.id}
