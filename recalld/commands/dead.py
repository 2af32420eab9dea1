"""`recalld dead`: documents that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from recalld.invocation import Invocation, pass_invocation, to_type
from recalld.terminal_text import print_json, printable_name

if TYPE_CHECKING:
    from recalld.runs.dead_letters import Failed

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_paths = click.argument("paths", nargs=-1, required=True, metavar="PATH...")


@click.group("dead")
def dead() -> None:
    """List, show, retry or drop documents that failed.

    A document fails as a whole when it cannot be read; it fails in part when the provider refuses to embed some of
    its lines, which are then found by keywords only. Nothing of this goes away by itself, except by an edit that
    mends it. Every command works with and without a running daemon.
    """
    from recalld.logs import configure_logs

    configure_logs(level=40)


@dead.command("list")
@_json_option
@pass_invocation
def list_letters(invocation: Invocation, *, as_json: bool) -> None:
    """List the documents that failed, with the reason. Exit code 0 also when there is none."""
    from recalld.runs.dead_letters import failed_documents

    failed = failed_documents(invocation.settings, invocation.agents())
    if as_json:
        print_json({"deadLetters": [_body(one) for one in failed]})
        return
    if not failed:
        click.echo("nothing failed")
    for one in failed:
        click.echo(f"{_title(one)}{_history(one)}")
        click.echo(f"    {printable_name(one.letter.reason) if one.letter else ''}")


@dead.command("show")
@click.argument("path")
@_json_option
@pass_invocation
def show(invocation: Invocation, *, path: str, as_json: bool) -> None:
    """Say all that is known about one document that failed: which lines, why, how often, and what is indexed of it.

    Leaves with exit code 3 when nothing failed there.
    """
    from recalld.runs.dead_letters import chosen

    [one] = chosen(invocation.settings, invocation.agents(), [path])
    if as_json:
        print_json(_body(one) | {"refused": _refused(one), "indexed": _indexed(one)})
        return
    click.echo(f"{_title(one)}{_history(one)}")
    dropped = "its dead letter was dropped" + ("; it is left out until it changes" if one.left_out else "")
    click.echo(f"    reason   {printable_name(one.letter.reason) if one.letter else dropped}")
    for chunk in one.refused:
        click.echo(f"    refused  lines {chunk.start_line}-{chunk.end_line}: {printable_name(chunk.reason)}")
    if one.file is None:
        click.echo("    indexed  nothing of it")
    else:
        what = "all of it by keywords" if one.refused else "an older version"
        click.echo(f"    indexed  {what}, {_when(one.file.indexed_at)}")
        for note in one.file.notes:
            click.echo(f"    note     {printable_name(note)}")


@dead.command("retry")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--all", "everything", is_flag=True, help="Retry everything that failed.")
@_json_option
@pass_invocation
def retry(invocation: Invocation, *, paths: Sequence[str], everything: bool, as_json: bool) -> None:
    """Try documents again: read those that could not be read, ask for the vectors that were refused.

    What fails again is listed again. Leaves with exit code 3 when nothing failed at a PATH; then nothing is retried.
    """
    from recalld.runs import dead_letters
    from recalld.up.lock import daemon_pid
    from recalld.wiring import open_broker

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
        click.echo(f"{_title(one)}: {_again(chunks)}")
    click.echo(to_type(_what_happens(len(asked), queued=queued, working=working)))


@dead.command("drop")
@_paths
@_json_option
@pass_invocation
def drop(invocation: Invocation, *, paths: Sequence[str], as_json: bool) -> None:
    """Forget that documents failed; refused lines stay found by keywords only.

    A file that could not be read is left out, and `recalld status` says so, until it changes, the index is made anew,
    or `recalld dead retry PATH`. Leaves with exit code 3 when nothing failed at a PATH; then nothing is dropped.
    """
    from recalld.runs import dead_letters

    failed = dead_letters.chosen(invocation.settings, invocation.agents(), paths)
    dropped = dead_letters.drop(invocation.settings, failed)
    if as_json:
        print_json({"dropped": [_name(one) | {"leftOut": one.left_out} for one in dropped]})
        return
    for one in dropped:
        click.echo(f"{_title(one)}: dropped{'; the file is left out until it changes' if one.left_out else ''}")


def _what_happens(count: int, *, queued: bool, working: bool) -> str:
    if not count:
        return "nothing failed, so there is nothing to retry"
    if working:
        return "the running daemon tries again now; `recalld dead list` says what failed once more"
    if queued:
        return "queued: whichever worker of this queue runs next tries again"
    return "no daemon is running: the next `recalld up` or `recalld index` tries again"


def _again(chunks: int) -> str:
    if chunks:
        return f"{chunks} refused chunk{'' if chunks == 1 else 's'} will be embedded again"
    return "will be read again"


def _title(one: Failed) -> str:
    return f"{click.style(one.agent.id, bold=True)}: {printable_name(one.key.path)}"


def _history(one: Failed) -> str:
    letter = one.letter
    if letter is None:
        return ""
    attempts = f"{letter.attempts} attempt{'' if letter.attempts == 1 else 's'}"
    since = f", first {_when(letter.first_at)}" if letter.attempts > 1 else ""
    return click.style(f"  {letter.error_class}, {attempts}{since}, last {_when(letter.last_at)}", dim=True)


def _when(at: float) -> str:
    import time

    from memory.status.condition_texts import duration

    return f"{duration(max(0.0, time.time() - at))} ago"


def _name(one: Failed) -> dict[str, Any]:
    return {"agent": one.agent.id, "source": one.key.source, "path": one.key.path}


def _body(one: Failed) -> dict[str, Any]:
    from memory.status.index import dead_letter

    if one.letter is None:
        return _name(one)
    return dead_letter(one.letter).model_dump(by_alias=True) | {"agent": one.agent.id}


def _refused(one: Failed) -> list[dict[str, Any]]:
    return [{"startLine": c.start_line, "endLine": c.end_line, "reason": c.reason} for c in one.refused]


def _indexed(one: Failed) -> dict[str, Any] | None:
    file = one.file
    return {"at": file.indexed_at, "size": file.stat.size, "notes": list(file.notes)} if file is not None else None
