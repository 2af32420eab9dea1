"""`recalld backfill`: find, estimate, queue with backpressure, wait, report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from memory.store.reader import StoreReader
from producers.finding_transcripts import Found, find_transcripts
from producers.handing_over import mark_in_calls
from recalld.backfill_plan import BackfillPlan, plan_backfill, plan_body, remember_folders
from recalld.backfill_progress import BackfillProgress
from recalld.broker_life import running_broker
from recalld.child import stop_event
from recalld.dry_run import cost_sentence
from recalld.indexing_run import workers_for
from recalld.invocation import Invocation
from recalld.spending import Spending
from recalld.status_view import size
from recalld.up_lock import daemon_pid
from recalld.waiting_for_index import IndexWait, Outcome
from recalld.wiring import BrokerSide, fingerprint_of, generations_of, open_broker
from schemas.documents import DocumentKey, Lane
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings

#: Documents that wait in the queue at a time; the rest is held back here, so that the broker stays small.
WAITING_DOCUMENTS = 20_000


def run_backfill(
    invocation: Invocation,
    paths: Sequence[Path],
    *,
    format: str | None,  # noqa: A002 - the name of the flag
    since: float | None,
    until: float | None,
    limit: int | None,
    dry_run: bool,
    batch_api: bool,
    as_json: bool,
) -> int:
    """Index the transcripts below some paths. Returns the exit code."""
    from recalld.logs import configure_logs

    settings, agent = invocation.settings, invocation.the_agent()
    if "sessions" not in agent.sources:
        raise UserError(f'agent {agent.id} indexes no transcripts: put "sessions" into its sources', exit_code=2)
    if batch_api:
        settings, agent = _with_batches(settings, agent)
    found = find_transcripts(paths, format=format, since=since, until=until, limit=limit)
    for problem in found.problems:
        click.echo(f"recalld: {problem}", err=True)
    if not found.transcripts:
        raise UserError(_nothing(paths, found), exit_code=3)
    configure_logs(level=40)
    plan = plan_backfill(settings, agent, found)
    click.echo(plan_sentence(plan), err=as_json)
    if dry_run:
        if as_json:
            click.echo(json.dumps({"ok": True, "dryRun": True, **plan_body(plan)}, ensure_ascii=False))
        return 0
    invocation.remember()
    remember_folders(settings, agent, found)
    return _run(settings, agent, plan, as_json=as_json)


def plan_sentence(plan: BackfillPlan) -> str:
    """What is to be done, in one line."""
    cost = plan.estimate
    parts = [f"{_count(len(plan.wanted), 'transcript')} to index ({size(plan.bytes)})"]
    parts += [f"{plan.unchanged:,} indexed already"] if plan.unchanged else []
    parts += [f"{plan.found.left_out:,} left out"] if plan.found.left_out else []
    parts += [f"{cost.failed:,} cannot be read"] if cost.failed else []
    if not plan.wanted:
        return f"{plan.agent.id}: {', '.join(parts)}"
    parts += [_count(cost.messages, "message"), _count(cost.chunks, "chunk")]
    return f"{plan.agent.id}: {', '.join(parts)}; {cost_sentence(plan.choice, cost)}"


def _run(settings: Settings, agent: AgentSettings, plan: BackfillPlan, *, as_json: bool) -> int:
    stop = stop_event(supervised=False)
    begun = time.monotonic()
    with running_broker(settings):
        broker = open_broker(settings)
        spending = Spending(broker.board, [agent])
        held_back = list(plan.wanted)
        bar = _bar(settings, agent, plan, spending)
        wait = IndexWait(settings, [agent], broker, bar=bar)
        # The daemon goes on by itself after Ctrl-C.
        detaches = daemon_pid(settings.home) is not None
        try:
            _feed(broker, agent, held_back)
            if held_back or wait.anything_to_do():
                with workers_for(settings) as works:
                    [outcome] = wait.until_done(stop, works=works, feed=lambda: _feed(broker, agent, held_back))
            else:
                [outcome] = wait.outcomes()
            spent = [spending.sentence(agent.id, usage) for usage in spending.of(agent.id)]
        finally:
            wait.close()
            broker.client.close()
    state = _state_of(settings, agent, plan.wanted)
    seconds = time.monotonic() - begun
    if as_json:
        body = _result_body(plan, outcome, state, seconds=seconds, interrupted=stop.is_set())
        click.echo(json.dumps(body, ensure_ascii=False))
    else:
        _report(plan, outcome, state, spent, seconds=seconds)
    if stop.is_set():
        rest = f"; {len(held_back):,} were not queued yet" if held_back else ""
        how = "recalld up goes on with what is queued" if detaches else "what was done is kept"
        click.echo(f"recalld: stopped waiting; {how}{rest}; the same command resumes", err=True)
        return 130
    return 1 if state.failed or outcome.stopped else 0


def _feed(broker: BrokerSide, agent: AgentSettings, held_back: list[DocumentKey]) -> int:
    """Queue as many as there is room for; returns how many are still held back."""
    if held_back:
        pending = broker.board.pending(agent.id)
        room = WAITING_DOCUMENTS - pending.documents if pending is not None else 0
        if room >= min(len(held_back), WAITING_DOCUMENTS // 4):
            mark_in_calls(broker.queue, agent.id, held_back[:room], lane=Lane.BACKFILL)
            del held_back[:room]
    return len(held_back)


class _State:
    """What became of the transcripts: `indexed`, `failed` (path and reason), and `left` for a later run."""

    def __init__(self, indexed: int, failed: dict[str, str], left: int) -> None:
        self.indexed = indexed
        self.failed = failed
        self.left = left


def _state_of(settings: Settings, agent: AgentSettings, keys: Sequence[DocumentKey]) -> _State:
    from memory.agent_files import AgentFiles

    reader = _reader(settings, agent)
    if reader is None:
        return _State(0, {}, len(keys))
    files = AgentFiles.of(settings, agent)
    try:
        letters = {letter.key: letter.reason for letter in reader.dead_letters()}
        stats = {file.key: file.stat for file in reader.files()}
    finally:
        reader.close()
    failed = {key.path: letters[key] for key in keys if key in letters}
    indexed = sum(key not in letters and key in stats and _is_up_to_date(files, key, stats[key]) for key in keys)
    return _State(indexed, failed, len(keys) - indexed - len(failed))


def _is_up_to_date(files: Any, key: DocumentKey, known: Any) -> bool:
    # A transcript that grows meanwhile was indexed as far as it went.
    stat = files.stat(key)
    return stat is not None and (stat == known or known.mtime_ns != 0)


def _reader(settings: Settings, agent: AgentSettings) -> StoreReader | None:
    return generations_of(settings, agent).target_reader(fingerprint_of(settings, agent).digest)


def _bar(settings: Settings, agent: AgentSettings, plan: BackfillPlan, spending: Spending) -> BackfillProgress:
    counted = _ChunkCount(settings, agent)
    return BackfillProgress(
        chunks=plan.estimate.chunks,
        read=counted.since_start,
        embedded=lambda: sum(usage.inputs for usage in spending.all_of(agent.id)),
        failed=counted.failed_since_start,
    )


class _ChunkCount:
    """Chunks and dead letters of the index beyond those that it had."""

    def __init__(self, settings: Settings, agent: AgentSettings) -> None:
        self._settings = settings
        self._agent = agent
        self._chunks, self._failed = self._look()

    def since_start(self) -> int:
        return max(0, self._look()[0] - self._chunks)

    def failed_since_start(self) -> int:
        return max(0, self._look()[1] - self._failed)

    def _look(self) -> tuple[int, int]:
        reader = _reader(self._settings, self._agent)
        if reader is None:
            return 0, 0
        try:
            return reader.counts().chunks, len(reader.dead_letters())
        finally:
            reader.close()


def _with_batches(settings: Settings, agent: AgentSettings) -> tuple[Settings, AgentSettings]:
    """The settings with the provider's Batch API switched on for one agent."""
    if agent.remote.batch.enabled:
        return settings, agent
    if daemon_pid(settings.home) is not None:
        raise UserError(
            "recalld up is running with its own settings: set remote.batch.enabled = true and start it again, "
            "or stop it for the time of this command"
        )
    batch = agent.remote.batch.model_copy(update={"enabled": True})
    wanted = agent.model_copy(update={"remote": agent.remote.model_copy(update={"batch": batch})})
    agents = tuple(wanted if one.id == agent.id else one for one in settings.agents)
    return settings.model_copy(update={"agents": agents}), wanted


def _nothing(paths: Sequence[Path], found: Found) -> str:
    named = ", ".join(map(str, paths))
    if found.left_out:
        return f"none of the {found.left_out:,} transcripts below {named} is wanted by --since, --until and --limit"
    return f"no transcripts (*.jsonl, *.jsonl.zst) below {named}; `recalld discover` lists what is on this machine"


def _report(plan: BackfillPlan, outcome: Outcome, state: _State, spent: Sequence[str], *, seconds: float) -> None:
    counts = outcome.counts
    click.echo(
        f"{plan.agent.id}: {state.indexed:,} of {_count(len(plan.wanted), 'transcript')} indexed in {seconds:.1f} s; "
        f"the index has {counts.chunks:,} chunks, {counts.vectors_ready:,} with vectors"
    )
    for line in spent:
        click.echo(f"  spent: {line}")
    for path, reason in state.failed.items():
        click.echo(f"  failed: {path}: {reason}", err=True)
    if state.failed:
        click.echo("  `recalld dead show PATH` says more, `recalld dead retry PATH` tries again", err=True)
    if outcome.stopped:
        click.echo(f"  {counts.vectors_pending:,} chunks wait for their vectors: {outcome.stopped}", err=True)
    elif outcome.in_jobs:
        click.echo(f"  {counts.vectors_pending:,} chunks wait in batch jobs (`recalld jobs`)")


def _result_body(
    plan: BackfillPlan, outcome: Outcome, state: _State, *, seconds: float, interrupted: bool
) -> dict[str, Any]:
    counts = outcome.counts
    return {
        "ok": not (interrupted or state.failed or outcome.stopped),
        "interrupted": interrupted,
        **plan_body(plan),
        "indexed": state.indexed,
        "failed": [{"path": path, "reason": reason} for path, reason in state.failed.items()],
        "left": state.left,
        "chunks": counts.chunks,
        "vectorsReady": counts.vectors_ready,
        "vectorsPending": counts.vectors_pending,
        "stopped": outcome.stopped,
        "inBatchJobs": outcome.in_jobs,
        "seconds": round(seconds, 3),
    }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
