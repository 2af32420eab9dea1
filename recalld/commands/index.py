"""`recalld index`: bring the index up to date and wait."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation, workspace_option


@click.command("index")
@workspace_option
@click.option("--force", is_flag=True, help="Build a new index beside the present one, from the files and the cache.")
@click.option("--dry-run", is_flag=True, help="Only say what it would embed and cost.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_invocation
def command(invocation: Invocation, *, force: bool, dry_run: bool, as_json: bool) -> int:
    """Compare files and index, index what differs, and wait until it is done.

    Uses the running daemon's workers, else its own for as long as it runs. With --dry-run nothing is written
    and nothing is paid.
    """
    if dry_run:
        from recalld.runs.cost import run_estimate

        return run_estimate(invocation, fresh=force, as_json=as_json)
    from recalld.runs.index import run_index

    return run_index(invocation, fresh=force, as_json=as_json)
