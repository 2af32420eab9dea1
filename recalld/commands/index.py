"""Commands that bring an index up to date, and wait: `recalld index`, `rebuild`, `backfill` and `remember`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from recalld.invocation import Invocation, examples, json_option, pass_invocation, remote_option, workspace_option
from schemas.errors import UserError

_FORMATS = ("openclaw", "claude-code", "codex", "gemini-cli", "qwen-code", "copilot", "cursor", "plain")


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """Return the beginning of a time that the user names as in a search, in Unix seconds."""
    from memory.search.ranking.times import named_span

    return named_span(text, time.time()).start if text else None


_dry_run = click.option("--dry-run", is_flag=True, help="Only say what it would embed and cost.")
_PAY = "Pay without asking up to so many"
_tokens = click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help=f"{_PAY} tokens. (--yes: all.)")
_dollars = click.option("--max-dollars", type=click.FloatRange(min=0), metavar="X", help=f"{_PAY} US dollars.")


@click.command("index", epilog=examples("recalld index --workspace ~/notes", "recalld index --dry-run"))
@workspace_option
@click.option("--force", is_flag=True, help="Build a new index beside the present one, from the files and the cache.")
@click.option("--forget-missing", is_flag=True, help="Forget now the notes of folders that are gone or were emptied.")
@_tokens
@_dollars
@_dry_run
@json_option
@pass_invocation
def index(invocation: Invocation, *, force: bool, forget_missing: bool, **options: Any) -> int:
    """Compare files and index, index the differences, and wait until it is done.

    Uses the running daemon's workers. Without a daemon a few documents are indexed at once, and more of them by
    workers that run as long as the command. With --dry-run nothing is written and nothing is paid.
    """
    return _run(invocation, fresh=force, forget_missing=forget_missing, **options)


@click.command("rebuild", epilog=examples("recalld rebuild --dry-run", "recalld rebuild --agent main"))
@workspace_option
@click.option("--force", is_flag=True, help="Begin anew, also if a build is under way or space seems to be short.")
@_tokens
@_dollars
@_dry_run
@json_option
@pass_invocation
def rebuild(invocation: Invocation, **options: Any) -> int:
    """Build the index anew from the files and the cache.

    The present one answers until the new one holds everything; then readers change over. Embeddings
    that were paid for are taken from the cache and from the present index. A build that was interrupted goes on,
    unless --force begins it anew. With --dry-run nothing is written and nothing is paid.
    """
    return _run(invocation, fresh=True, **options)


def _run(invocation: Invocation, *, fresh: bool, dry_run: bool, as_json: bool, **options: Any) -> int:
    if dry_run:
        from recalld.runs.estimate import run_estimate

        return run_estimate(invocation, fresh=fresh, as_json=as_json)
    from recalld.runs.run import run_index

    return run_index(invocation, fresh=fresh, as_json=as_json, **options)


@click.command(
    "backfill",
    epilog=examples(
        "recalld backfill ~/.claude/projects --dry-run", "recalld backfill old-sessions --since 2026-01-01 --limit 500"
    ),
)
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--pause", "halt", flag_value="paused", help="Rest until --resume; saved notes and searches go on.")
@click.option("--resume", "halt", flag_value="", help="Go on after --pause or --cancel.")
@click.option("--cancel", "halt", flag_value="cancelled", help="Drop what waits; keep what is indexed.")
@click.option(
    "--forget", type=click.Path(path_type=Path), metavar="PATH", help="Take imports out of memory; keep files."
)
@workspace_option
@click.option("--format", type=click.Choice(_FORMATS), help="Format of the lines. [detected]")
@click.option(
    "--since", callback=_moment, metavar="TIME", help='Only with a message since then: 2026-05, 90d, "last month".'
)
@click.option("--until", callback=_moment, metavar="TIME", help="Only with a message before that time begins.")
@click.option("--project", multiple=True, metavar="GLOB", help="Only of folders, or working folders, of that name.")
@click.option("--program", multiple=True, type=click.Choice(_FORMATS), help="Only of that program.")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out files, folders and working folders of that name."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N newest of them.")
@click.option("--dry-run", is_flag=True, help="Only say what it would index, embed and cost.")
@remote_option
@_tokens
@_dollars
@click.option("--batch-api", is_flag=True, help="Embed through the provider's Batch API: cheaper, within hours.")
@json_option
@pass_invocation
def backfill(
    invocation: Invocation, *, paths: tuple[Path, ...], halt: str | None, forget: Path | None, **options: Any
) -> int:
    """Index the transcripts below PATHs into an agent's memory, and wait.

    Says first about how many messages, chunks and tokens there are and what they cost. Uses the running daemon's
    workers, else its own for as long as it runs. Ctrl-C stops waiting; the same command goes on where it was.
    Transcripts that are in the index as they are cost nothing. A transcript is taken whole, or left out and counted.

    --pause, --resume, --cancel and --forget take no PATHs: they are for what earlier backfills queued or brought.

    With --remote (or fleet.url) it sends the transcripts, redacted, to the door of a fleet, which indexes them.
    """
    if halt is not None or forget is not None:
        from recalld.runs.backfill import forget_import, halt_backfill

        if paths or any(options.values()) or None not in (halt, forget):
            raise click.UsageError("--pause, --resume, --cancel and --forget PATH take nothing else.")
        if invocation.settings.fleet.url is not None or invocation.settings.store.url is not None:
            raise UserError("a fleet's backfill cannot be halted; `recalld tenant` gives it a budget", exit_code=2)
        return forget_import(invocation, forget) if forget is not None else halt_backfill(invocation, halt or "")
    if not paths:
        raise click.UsageError("Missing argument 'PATH...'.")
    is_remote = False
    with suppress(UserError):  # of the settings: the local run reports it
        is_remote = invocation.settings.fleet.url is not None
    if is_remote:
        from recalld.runs.remote import send_backfill

        del options["max_tokens"], options["max_dollars"]  # a tenant's budget is its consent

        return send_backfill(invocation, paths, **options)
    from recalld.runs.backfill import run_backfill

    return run_backfill(invocation, paths, **options)


@click.command(
    "remember", epilog=examples('recalld remember "Staging is on port 8443."', "recalld remember - < note.md")
)
@click.argument("words", nargs=-1, metavar="[TEXT]...")
@json_option
@pass_invocation
def remember(invocation: Invocation, *, words: tuple[str, ...], as_json: bool) -> None:
    """Append TEXT to the agent's note of today, memory/YYYY-MM-DD.md, and wait until searches find it.

    Without TEXT, or with "-", it comes from standard input. Secrets in it are masked. Text that the note holds already
    is not written again. The running daemon indexes the note, else this command does, as `recalld index`. After half a
    minute it says that the text is found later, and leaves with exit code 0.
    """
    from recalld.runs.remember import MOST_CHARACTERS, run_remember

    text = " ".join(words)
    if words in ((), ("-",)) and sys.stdin is not None:
        # A character has four bytes at most.
        text = sys.stdin.buffer.read(4 * MOST_CHARACTERS + 1).decode("utf-8", "replace")
    if not text.strip():
        raise click.UsageError("the text is empty; say what to remember")
    if len(text) > MOST_CHARACTERS:
        raise click.UsageError(f"the text has more than {MOST_CHARACTERS:,} characters; shorten it")
    run_remember(invocation, text.strip(), as_json=as_json)
