"""`recalld backfill`: find, estimate, enqueue, wait, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from memory.documents.imports import imports_path, remember_import
from memory.embedding.batch_jobs.batch_api import batch_api_of
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import counted
from producers.dispatcher import mark_in_calls
from recalld.invocation import Invocation
from recalld.runs.backfill_plan import BackfillPlan, Found, find_transcripts, plan_backfill
from recalld.runs.outcome import Outcome, Report, print_lines
from recalld.runs.run import running
from recalld.terminal_text import ProgressLine, printable_json, printable_name
from recalld.up.lock import daemon_pid
from recalld.wiring import closed, fingerprint_of, generations_of
from schemas.documents import DocumentKey, FileStat, Lane
from schemas.errors import RecalldError, UserError
from schemas.settings import AgentSettings, Settings

#: Transcripts that are not indexed and listed; the others are counted.
_LISTED = 20


def run_backfill(
    invocation: Invocation, paths: Sequence[Path], *, as_json: bool, dry_run: bool, batch_api: bool, **chosen: Any
) -> int:
    """Index the transcripts below some paths, `chosen` as by `find_transcripts`. Return the exit code.

    With `as_json` standard output gets exactly one object, also after a failure.
    """
    try:
        return _backfill(invocation, paths, chosen, as_json=as_json, dry_run=dry_run, batch_api=batch_api)
    except (RecalldError, KeyboardInterrupt) as error:
        if as_json:
            interrupted = isinstance(error, KeyboardInterrupt)
            message = "interrupted before anything was queued" if interrupted else str(error)
            _print({"ok": False, "dryRun": False, "interrupted": interrupted, "error": message}, problems=[])
        raise


def _print(head: Mapping[str, Any], **body: Any) -> None:
    click.echo(printable_json({**head, "result": None, **body}))


def _backfill(
    invocation: Invocation,
    paths: Sequence[Path],
    chosen: Mapping[str, Any],
    *,
    as_json: bool,
    dry_run: bool,
    batch_api: bool,
) -> int:
    from recalld.logs import configure_logs

    settings, agent = invocation.settings, invocation.the_agent()
    if "sessions" not in agent.sources:
        raise UserError(f'agent {agent.id} indexes no transcripts: put "sessions" into its sources', exit_code=2)
    if batch_api:
        settings, agent = _with_batches(settings, agent)
    found = find_transcripts(paths, **chosen)
    if not found.transcripts and not found.left_out:
        raise UserError(_nothing(paths, found), exit_code=1 if found.problems else 3)
    configure_logs(level=40)
    line = ProgressLine(partial(click.echo, err=True), terminal=sys.stderr.isatty())
    plan = plan_backfill(settings, agent, found, on_look=partial(_show_reading, line))
    line.end()
    for problem in plan.problems:
        click.echo(f"recalld: {printable_name(problem)}", err=True)
    click.echo(plan.sentence(), err=as_json)
    result = None
    if not dry_run:
        invocation.remember()
        for folder in found.folders:
            remember_import(imports_path(settings.home, agent.id), folder)
        result = _run(settings, plan)
        print_lines(result.lines(), failures_only=as_json)
    code = (result.exit_code if result is not None else 0) or int(bool(plan.problems))
    if as_json:
        interrupted = result is not None and result.report.interrupted
        head = {"ok": code == 0, "dryRun": dry_run, "interrupted": interrupted, "error": None}
        _print(head, **plan.body(), result=result.body() if result is not None else None)
    return code


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """Result of a backfill. `left` transcripts are not indexed. `detached`: after an interrupt a daemon goes on."""

    plan: BackfillPlan
    report: Report
    left: Sequence[DocumentKey]
    detached: bool

    @property
    def outcome(self) -> Outcome:
        """Outcome for the agent; its failed documents are transcripts of the plan."""
        return self.report.outcomes[0]

    @property
    def exit_code(self) -> int:
        """Exit code of the command, see `Report.exit_code`."""
        return 1 if self.left and not self.report.interrupted else self.report.exit_code

    @property
    def indexed(self) -> int:
        """Number of transcripts that were indexed."""
        return len(self.plan.wanted) - len(self.outcome.failed) - len(self.left)

    def lines(self) -> Iterator[tuple[str, bool]]:
        """Yield lines for people, each with True for a result, False for a failure."""
        counts, wanted = self.outcome.counts, len(self.plan.wanted)
        vectors = f", {counts.vectors_ready:,} with vectors" if self.plan.choice.provider is not None else ""
        done = f"{self.indexed:,} of {counted(wanted, 'transcript')} indexed in {self.report.seconds:.1f} s"
        done = done if wanted else "no transcript had to be read"
        yield f"{self.outcome.agent}: {done}; the index has {counts.chunks:,} chunks{vectors}", True
        yield from self.outcome.lines()
        if self.report.interrupted:
            how = "recalld up goes on with what is queued" if self.detached else "what was done is kept"
            yield f"recalld: stopped waiting; {how}; the same command resumes", False
            return
        for key in self.left[:_LISTED]:
            yield f"  not indexed: {key.path}: it is gone, or is being written; run this command again", False
        if len(self.left) > _LISTED:
            yield f"  and {len(self.left) - _LISTED:,} more", False

    def body(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {
            "indexed": self.indexed,
            "failed": [{"path": key.path, "reason": reason} for key, reason in self.outcome.failed.items()],
            "left": len(self.left),
            **self.outcome.body(),
            "seconds": round(self.report.seconds, 3),
        }


def _run(settings: Settings, plan: BackfillPlan) -> BackfillResult:
    """Queue the planned documents, and wait until they are done or the user interrupts."""
    # The daemon goes on by itself after Ctrl-C.
    detached = daemon_pid(settings.home) is not None
    with running(settings, [plan.agent]) as run:
        run.expected = plan.estimate.chunks
        mark_in_calls(run.broker.queue, plan.agent.id, [*plan.wanted, *plan.others], lane=Lane.BACKFILL)
        run.marked()
        report = run.finish()
    [outcome] = report.outcomes
    failed = {key: reason for key, reason in outcome.failed.items() if key in plan.wanted}
    generations = generations_of(settings, plan.agent)
    with closed(generations.target_reader(fingerprint_of(settings, plan.agent).digest)) as reader:
        known = {file.key: file.stat for file in reader.files()} if reader is not None else {}
    # A transcript that grows meanwhile counts as soon as the index has its planned part.
    behind = [key for key, stat in plan.wanted.items() if key not in known or is_behind(known[key], stat)]
    left = [key for key in behind if key not in failed]
    return BackfillResult(plan, replace(report, outcomes=[replace(outcome, failed=failed)]), left, detached)


def is_behind(known: FileStat, wanted: FileStat) -> bool:
    """Return True if the index knows an older state of a file than the wanted one."""
    if known.mtime_ns != wanted.mtime_ns:
        return known.mtime_ns < wanted.mtime_ns
    return known.ctime_ns != 0 and known.ctime_ns < wanted.ctime_ns


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


def _show_reading(line: ProgressLine, number: int, count: int) -> None:
    if line.due:
        line.draw(f"reading {number:,} of {count:,} documents", share=number / max(count, 1))


def _nothing(paths: Sequence[Path], found: Found) -> str:
    if found.problems:
        return "\n".join(found.problems)
    named = ", ".join(map(str, paths))
    return f"no transcripts (*.jsonl, *.jsonl.zst) below {named}; `recalld discover` lists what is on this machine"
