"""`recalld rebuild`: build the index anew, beside the answering one."""

from __future__ import annotations

import click

from recalld.invocation import Invocation, pass_invocation, workspace_option


@click.command("rebuild")
@workspace_option
@click.option("--force", is_flag=True, help="Begin anew, also if a build is under way or space seems to be short.")
@click.option("--dry-run", is_flag=True, help="Only say what it would embed and cost.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_invocation
def command(invocation: Invocation, *, force: bool, dry_run: bool, as_json: bool) -> int:
    """Build the index anew from the files and the cache.

    The present one answers until the new one holds everything; then readers change over. Embeddings
    that were paid for are taken from the cache and from the present index. A build that was interrupted goes on,
    unless --force begins it anew. With --dry-run nothing is written and nothing is paid.
    """
    if dry_run:
        from recalld.runs.cost import run_estimate

        return run_estimate(invocation, fresh=True, as_json=as_json)
    from recalld.runs.index import run_index

    return run_index(invocation, fresh=True, force=force, as_json=as_json)
