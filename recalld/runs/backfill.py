"""`recalld backfill`: find, estimate, enqueue, wait, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from memory.embedding.batch_jobs.file_batches import batch_api_of
from memory.index.provider_fallback import provider_of
from producers.dispatcher import mark_in_calls
from recalld.invocation import Invocation, to_type
from recalld.runs.backfill_plan import BackfillPlan, Found, find_transcripts, plan_backfill, remember_folders
from recalld.runs.backfill_report import (
    BackfillProgress,
    BackfillResult,
    body_of,
    error_body,
    plan_sentence,
    result_lines,
    transcript_states,
    trouble_lines,
)
from recalld.runs.progress_bar import ProgressBar
from recalld.runs.run import running
from recalld.terminal_text import printable_json, printable_name
from recalld.up.lock import daemon_pid
from schemas.documents import Lane
from schemas.errors import RecalldError, UserError
from schemas.settings import AgentSettings, Settings


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Request of the command line. `since` and `until` are Unix seconds, see `find_transcripts`."""

    paths: Sequence[Path]
    format: str | None = None
    since: float | None = None
    until: float | None = None
    limit: int | None = None
    dry_run: bool = False
    batch_api: bool = False
    as_json: bool = False


def run_backfill(invocation: Invocation, request: BackfillRequest) -> int:
    """Index the transcripts below some paths. Return the exit code.

    With `as_json` standard output gets exactly one object, also after a failure.
    """
    try:
        return _backfill(invocation, request)
    except RecalldError as error:
        if request.as_json:
            _print(error_body(str(error)))
        raise
    except KeyboardInterrupt:
        if request.as_json:
            _print(error_body("interrupted before anything was queued", interrupted=True))
        raise


def _backfill(invocation: Invocation, request: BackfillRequest) -> int:
    from recalld.logs import configure_logs

    settings, agent = invocation.settings, invocation.the_agent()
    if "sessions" not in agent.sources:
        raise UserError(f'agent {agent.id} indexes no transcripts: put "sessions" into its sources', exit_code=2)
    if request.batch_api:
        settings, agent = _with_batches(settings, agent)
    found = find_transcripts(
        request.paths, format=request.format, since=request.since, until=request.until, limit=request.limit
    )
    if not found.transcripts and not found.left_out:
        raise UserError(_nothing(request.paths, found), exit_code=1 if found.problems else 3)
    configure_logs(level=40)
    bar = ProgressBar()
    plan = plan_backfill(settings, agent, found, on_look=partial(_show_reading, bar))
    bar.end()
    for problem in plan.problems:
        click.echo(f"recalld: {printable_name(problem)}", err=True)
    click.echo(plan_sentence(plan), err=request.as_json)
    result = None
    if not request.dry_run:
        invocation.remember()
        remember_folders(settings, agent, found)
        result = _run(settings, plan)
        if not request.as_json:
            for line in result_lines(plan, result):
                click.echo(to_type(printable_name(line)))
        for line in trouble_lines(result):
            click.echo(to_type(printable_name(line)), err=True)
    if request.as_json:
        _print(body_of(plan, result))
    return (result.exit_code if result is not None else 0) or int(bool(plan.problems))


def _run(settings: Settings, plan: BackfillPlan) -> BackfillResult:
    """Queue the planned documents, and wait until they are done or the user interrupts."""
    # The daemon goes on by itself after Ctrl-C.
    detached = daemon_pid(settings.home) is not None
    agent = plan.agent.id
    with running(settings, [plan.agent]) as run:
        run.bar = BackfillProgress(
            start=run.counts(plan.agent),
            expected=plan.estimate.chunks,
            embedded=lambda: sum(usage.inputs for usage in run.spending.all_of(agent)),
        )
        mark_in_calls(run.broker.queue, agent, plan.documents, lane=Lane.BACKFILL)
        run.marked()
        [outcome] = run.finish()
        spent = run.spending.told()[agent]
    return BackfillResult(
        states=transcript_states(settings, plan),
        outcome=outcome,
        spent=tuple(spent),
        seconds=run.seconds,
        interrupted=run.interrupted,
        detached=detached,
    )


def _with_batches(settings: Settings, agent: AgentSettings) -> tuple[Settings, AgentSettings]:
    """Return the settings with the provider's Batch API switched on for one agent.

    Raises:
        UserError: the Batch API would not be used.
    """
    choice = provider_of(settings, agent)
    if choice.provider is None:
        raise UserError(f"--batch-api needs an embedding provider: {choice.error or choice.reason}", exit_code=2)
    try:
        if batch_api_of(choice.provider) is None:
            raise UserError(f"--batch-api: recalld speaks no Batch API of {choice.name}; leave it out", exit_code=2)
    finally:
        choice.provider.close()
    if not settings.cache.enabled:
        raise UserError("--batch-api needs cache.enabled = true: a job's vectors are kept there", exit_code=2)
    if agent.remote.batch.enabled:
        return settings, agent
    if daemon_pid(settings.home) is not None:
        raise UserError(
            "--batch-api: recalld up is running and would not use it; set remote.batch.enabled = true and start it "
            "again, or stop it for the time of this command"
        )
    batch = agent.remote.batch.model_copy(update={"enabled": True})
    wanted = agent.model_copy(update={"remote": agent.remote.model_copy(update={"batch": batch})})
    agents = tuple(wanted if one.id == agent.id else one for one in settings.agents)
    return settings.model_copy(update={"agents": agents}), wanted


def _show_reading(bar: ProgressBar, number: int, count: int) -> None:
    if bar.due():
        bar.draw(number / max(count, 1), f"reading {number:,} of {count:,} documents")


def _nothing(paths: Sequence[Path], found: Found) -> str:
    if found.problems:
        return "\n".join(found.problems)
    named = ", ".join(map(str, paths))
    return f"no transcripts (*.jsonl, *.jsonl.zst) below {named}; `recalld discover` lists what is on this machine"


def _print(body: dict[str, Any]) -> None:
    click.echo(printable_json(body))
