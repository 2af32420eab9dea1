"""`recalld backfill`: index old transcripts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from recalld.invocation import Invocation, pass_invocation, workspace_option

_FORMATS = ("openclaw", "claude-code", "codex", "plain")
_DAYS = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"])


@click.command("backfill")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@workspace_option
@click.option("--format", type=click.Choice(_FORMATS), help="How the lines are to be read; found out by itself else.")
@click.option("--since", type=_DAYS, metavar="DATE", help="Only transcripts written to on that day or later.")
@click.option("--until", type=_DAYS, metavar="DATE", help="Only transcripts last written to before that day.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N newest.")
@click.option("--dry-run", is_flag=True, help="Only say what it would index, embed and cost.")
@click.option("--batch-api", is_flag=True, help="Embed through the provider's Batch API: cheaper, within hours.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    paths: tuple[Path, ...],
    format: str | None,  # noqa: A002 - the name of the flag
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    dry_run: bool,
    batch_api: bool,
    as_json: bool,
) -> int:
    """Index the transcripts below PATHs into an agent's memory, and wait.

    Says first how many messages, chunks and tokens there are and what they cost. Uses the running daemon's workers,
    else its own for as long as it runs. Ctrl-C stops waiting; the same command goes on where it was. Transcripts
    that are in the index as they are cost nothing.
    """
    from recalld.runs.backfill import BackfillRequest, run_backfill

    request = BackfillRequest(
        paths=paths,
        format=format,
        since=since.timestamp() if since else None,
        until=until.timestamp() if until else None,
        limit=limit,
        dry_run=dry_run,
        batch_api=batch_api,
        as_json=as_json,
    )
    return run_backfill(invocation, request)
