"""`recalld backfill`: find, estimate, enqueue, wait, report."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from memory.documents.agent_files import AgentFiles
from memory.documents.imports import (
    backfill_halt,
    change_imports,
    imported_folders,
    imports_path,
    keep_halt,
    remember_import,
    with_files,
    without,
)
from memory.documents.roots import document_name, parts_below
from memory.documents.scan import printable
from memory.embedding.batch_jobs.batch_api import batch_api_of
from memory.embedding.batch_jobs.batch_ledger import (
    BatchJob,
    BatchLedger,
    Stage,
    batch_jobs_of,
    choice_path,
    with_batch_jobs,
)
from memory.embedding.consent import Consents
from memory.index.changes import MAX_CHUNKS_PER_COMMIT
from memory.index.estimate import Estimate, Sample
from memory.index.generation_writer import GenerationWriter
from memory.index.transcript_slices import has_other_format
from memory.status.condition_texts import counted
from memory.store.reader import VectorState
from memory.store.writer import DocumentDelete, WriteOutcome
from producers.reconciler import AgentComparison
from recalld.invocation import NOTHING_FOUND, Invocation, to_type
from recalld.runs.consent import Allowance, Question, with_consent
from recalld.runs.estimate import confirm_workspace, cost_body, cost_sentence, estimates, tokens_text
from recalld.runs.outcome import OF_EMPTY_AGENTS, Report
from recalld.runs.run import Forecast, Run
from recalld.runs.selection import TranscriptSelection, find_transcripts
from recalld.runs.status import size
from recalld.terminal_text import fields, printable_json, printable_name, reading
from recalld.up.lifecycle import running_broker
from recalld.up.lock import daemon_pid
from recalld.wiring import AgentIndex, closed, open_broker
from schemas.agents import Scope
from schemas.conditions import StopReason
from schemas.documents import SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.errors import BrokerUnavailable, Permanent, RecalldError, Transient, UserError
from schemas.settings import AgentDirectory, AgentSettings, Settings, has_agent
from workers.queue.names import POLL_BATCH_JOBS

#: Seconds that a cancellation waits for the documents that workers hold, and between two looks at them.
CANCEL_SECONDS, LOOK_SECONDS = 15.0, 0.1

#: Seconds in which a sample is read.
_SAMPLE_SECONDS = 1.5


def run_backfill(
    invocation: Invocation,
    paths: Sequence[Path],
    *,
    as_json: bool,
    dry_run: bool,
    batch_api: bool,
    max_tokens: int | None,
    max_dollars: float | None,
    **chosen: Any,
) -> int:
    """Index the transcripts below some paths, `chosen` as by `find_transcripts`. Return the exit code.

    With `as_json` standard output gets exactly one object, also after a failure.
    """
    outcome: dict[str, Any] = {"ok": False, "dryRun": dry_run, "interrupted": False, "error": None}
    plan, result = None, None
    try:
        settings, plan = _planned(invocation, paths, batch_api=batch_api, exact=dry_run, **chosen)
        click.echo(plan.sentence(), err=as_json)
        code = int(bool(plan.problems))
        if not dry_run:
            confirm_workspace(invocation)
            choice = choice_path(settings.home, plan.agent.id)
            invocation.remember()
            if batch_api:
                choice.parent.mkdir(parents=True, exist_ok=True)
                choice.touch()
            for folder in plan.selection.folders:
                remember_import(imports_path(settings.home, plan.agent.id), folder)
            allowance = Allowance(invocation.yes, max_tokens, max_dollars)
            report, result = _run(settings, plan, allowance)
            if not any(outcome.counts.vectors_pending or outcome.counts.vectors_held for outcome in report.outcomes):
                choice.unlink(missing_ok=True)
            report.print_lines(failures_only=as_json)
            code, outcome["interrupted"] = report.exit_code or code, report.interrupted
        outcome["ok"] = code == 0
    except KeyboardInterrupt:
        outcome |= {"interrupted": True, "error": "interrupted before anything was queued"}
        raise
    except RecalldError as error:
        outcome["error"] = str(error)
        raise
    finally:
        if as_json:
            body = {**outcome, **(plan.body() if plan is not None else {"problems": []}), "result": result}
            click.echo(printable_json(body))
    return code


def _planned(
    invocation: Invocation, paths: Sequence[Path], *, batch_api: bool, exact: bool, **chosen: Any
) -> tuple[Settings, BackfillPlan]:
    """Find the transcripts and plan the run, with a progress line."""
    from recalld.logs import configure_logs

    settings, agent = invocation.settings, invocation.the_agent()
    if "sessions" not in agent.sources:
        raise UserError(f'agent {agent.id} indexes no transcripts: put "sessions" into its sources', exit_code=2)
    if batch_api:
        settings, agent = _with_batches(settings, agent)
    selection = find_transcripts(paths, home=settings.home, **chosen)
    if not selection.transcripts and not selection.left_out:
        below = f"no transcripts (*.jsonl, *.jsonl.zst) below {', '.join(map(str, paths))}"
        sentence = f"{below}; `recalld discover` lists what is on this machine"
        raise UserError("\n".join(selection.problems) or sentence, exit_code=1 if selection.problems else 3)
    configure_logs(level=40)
    plan = plan_backfill(settings, agent, selection, exact=exact)
    for problem in plan.problems:
        click.echo(f"recalld: {printable_name(problem)}", err=True)
    return settings, plan


def _run(settings: Settings, plan: BackfillPlan, allowance: Allowance) -> tuple[Report, dict[str, Any]]:
    """Queue the planned documents, and wait until they are done or the user interrupts. Return the result, and as JSON.

    They are read while a terminal asks for the consent to the most that they may cost. The failed documents of the
    outcome are transcripts of the plan.
    """
    planned = AgentComparison(plan.agent.id, backfill=[*plan.transcripts, *plan.other_documents])
    question = Question.about(settings, plan.agent, plan.estimate.upper, allowance=allowance)
    with Run(settings, [plan.agent], patient=True, question=question) as run:
        # A limit holds for the whole run: it is not granted again.
        rest = Allowance(allowance.yes and not allowance.is_limit, None, None)
        first = partial(run.by_workers, lambda: [planned], forecast=plan.forecast)
        report = with_consent(run, first, allowance=rest)
    [outcome] = report.outcomes
    failed = {key: reason for key, reason in outcome.failed.items() if key in plan.transcripts}
    with closed(AgentIndex(settings, plan.agent).target()) as reader:
        keys = {file.key for file in reader.files()} if reader is not None and plan.transcripts else set()
    left = [key for key in plan.transcripts if key not in keys and key not in failed]
    counts, total = outcome.counts, len(plan.transcripts)
    indexed = total - len(failed) - len(left)
    done = f"{indexed:,} of {counted(total, 'transcript')} indexed in {report.seconds:.1f} s"
    vectors = f", {counts.vectors_ready:,} with vectors" if plan.estimate.provider != "none" else ""
    in_all = f"the index has {counts.chunks:,} chunks{vectors}"
    outcome = replace(
        outcome, failed=failed, left=left, done=f"{done if total else 'no transcript had to be read'}; {in_all}"
    )
    if outcome.condition is not None and outcome.condition.code in OF_EMPTY_AGENTS:
        outcome = replace(outcome, condition=None)  # the user chose the transcripts, not the notes
    body = {
        "indexed": indexed,
        "failed": [{"path": key.path, "reason": reason} for key, reason in failed.items()],
        "left": len(left),
        **outcome.body(),
        "seconds": round(report.seconds, 3),
    }
    return replace(report, outcomes=[outcome]), body


def _with_batches(settings: Settings, agent: AgentSettings) -> tuple[Settings, AgentSettings]:
    """Return the settings with the provider's Batch API switched on for one agent.

    Raises:
        UserError: the Batch API would not be used.
    """
    choice = AgentIndex(settings, agent).choice
    if choice.provider is None:
        raise UserError(f"--batch-api needs an embedding provider: {choice.explanation}", exit_code=2)
    if batch_api_of(choice.provider) is None:
        raise UserError(f"--batch-api: recalld speaks no Batch API of {choice.name}; leave it out", exit_code=2)
    if not settings.cache.enabled:
        raise UserError("--batch-api needs cache.enabled = true: a job's vectors are kept there", exit_code=2)
    changed = with_batch_jobs(agent)
    agents = tuple(changed if entry.id == agent.id else entry for entry in settings.agents)
    return settings.model_copy(update={"agents": agents}), changed


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """Plan of a backfill.

    `transcripts` are those to index, newest first, as they are now; the index has the `unchanged` ones already.
    `other_documents` are for an index of the present settings that does not exist yet: it is built with them.
    `left_out_by_settings` counts transcripts, as `Scan.left_out` does. `problems` are sentences for a person, on paths
    and on transcripts left out. The `estimate` and the `forecast` are of transcripts and other documents together.
    """

    agent: AgentSettings
    selection: TranscriptSelection
    transcripts: Mapping[DocumentKey, FileStat]
    other_documents: Collection[DocumentKey]
    unchanged: int
    problems: Sequence[str]
    left_out_by_settings: Mapping[str, int]
    estimate: Estimate
    forecast: Forecast

    @property
    def size(self) -> int:
        """Return the bytes of the transcripts on the disk."""
        return sum(stat.size for stat in self.transcripts.values())

    def sentence(self) -> str:
        """Return the plan in one line."""
        cost, is_work = self.estimate, bool(self.transcripts or self.other_documents or self.estimate.to_embed)
        other_count = counted(len(self.other_documents), "other document")
        about = "about " if cost.at_most is not None else ""
        by_settings = sorted(self.left_out_by_settings.items())
        parts = [
            f"{counted(len(self.transcripts), 'transcript')} to index ({size(self.size)})",
            f"{self.unchanged:,} indexed already" if self.unchanged else "",
            self.selection.left_out_sentence,
            *(f"{count:,} {kind} left out by the settings" for kind, count in by_settings),
            f"{other_count} as the index is new" if self.other_documents else "",
            f"{cost.failed:,} cannot be read" if cost.failed else "",
            f"{about}{counted(cost.messages, 'message')}, {counted(cost.chunks, 'chunk')}" if is_work else "",
        ]
        text = ", ".join(filter(None, parts))
        programs = [f"{name} {tokens_text(tokens)}" for name, tokens in cost.programs.items()]
        by_program = f"; {', '.join(programs)}" if len(programs) > 1 else ""
        return f"{self.agent.id}: {text}" + (f"; {about}{cost_sentence(cost)}{by_program}" if is_work else "")

    def body(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "agent": self.agent.id,
            "problems": list(self.problems),
            "transcripts": len(self.transcripts),
            "unchanged": self.unchanged,
            "leftOut": sum(self.selection.left_out.values()),
            "leftOutBy": self.selection.left_out,
            "notWanted": dict(self.left_out_by_settings),
            "others": len(self.other_documents),
            "bytes": self.size,
            **fields(self.estimate, "provider", "model"),
            "estimate": {"messages": self.estimate.messages, **cost_body(self.estimate)},
        }


def plan_backfill(
    settings: Settings, agent: AgentSettings, selection: TranscriptSelection, *, exact: bool
) -> BackfillPlan:
    """Compare the transcripts with the index and estimate the cost of the rest.

    An `exact` estimate reads all of it, with a line of progress. Nothing is written.

    Raises:
        StoreUnreadable, StoreCorrupt, StoreBusy: the index or the cache cannot be read.
        UserError: the list of imports is damaged.
    """
    index, names_format = AgentIndex(settings, agent), any(folder.format for folder in selection.folders)
    with closed(index.target()) as target:
        indexed = {file.key: file.stat for file in target.files()} if target is not None else {}
        by_stat = {stat: key for key, stat in indexed.items()}
        files, stats, problems, left_out = documents_of(settings, agent, selection, by_stat)
        missing = {
            key: stat
            for key, stat in stats.items()
            if key not in indexed
            or not indexed[key].agrees_with(stat)
            or (names_format and target is not None and has_other_format(key, files=files, store=target))
        }
        other_stats = _others(index, files, stats) if target is None else {}
        finished = 0  # chunks that do not wait for a vector
        if target is not None:
            counts, chunks = target.counts(), target.chunks_by_path(SESSIONS_SOURCE)
            finished = sum(chunks.get(key.path, 0) for key in stats.keys() & indexed.keys())
            finished = max(0, finished - counts.vectors_pending - counts.vectors_held)
    sizes = {key: stat.size for key, stat in {**missing, **other_stats}.items()}
    for key in sizes.keys() & indexed.keys():
        if indexed[key].inode == missing[key].inode:
            sizes[key] = max(0, sizes[key] - indexed[key].size)  # a transcript is read from where the index has it
    cost = estimates(settings)(agent, files, reading(sizes, sizes=sizes) if exact else Sample(sizes, _SAMPLE_SECONDS))
    problems, unchanged = [*selection.problems, *problems], len(stats) - len(missing)
    forecast = Forecast([*sizes.values()], cost.chunks, finished, cost.rate)
    return BackfillPlan(agent, selection, missing, other_stats, unchanged, problems, left_out, cost, forecast)


def documents_of(
    settings: Settings,
    agent: AgentSettings,
    selection: TranscriptSelection,
    indexed: Mapping[FileStat, DocumentKey] | None = None,
) -> tuple[AgentFiles, dict[DocumentKey, FileStat], list[str], Counter[str]]:
    """Return the agent's files, the transcripts' documents, sentences on those without one, and counts of those that
    the settings leave out. A file in a state of an `indexed` document is that document.

    Raises:
        UserError: the list of imports is damaged, which workers ignore.
    """
    imported_folders(imports_path(settings.home, agent.id))
    files = AgentFiles.of(settings, agent, drafted=selection.folders)
    stats: dict[DocumentKey, FileStat] = {}
    problems: list[str] = []
    left_out: Counter[str] = Counter()
    namers = [source.namer() for source in files.transcripts]
    for path, listed_stat in selection.transcripts.items():
        key, reason = (indexed or {}).get(listed_stat), None
        if not (is_indexed := key is not None and key not in stats):
            key, reason = next((naming for key_of in namers if (naming := key_of(path)) is not None), (None, None))
        if reason is not None:
            left_out[reason] += 1
        elif key is None or key in stats:
            problems.append(f"{printable(path)} is left out: it cannot be told from another transcript; rename it")
        else:
            try:
                # An import is named by its path.
                stat = listed_stat if is_indexed or key.path == path else files.stat(key) or listed_stat
            except (Permanent, Transient):
                stat = listed_stat  # reading it will say why
            if stat.inode == listed_stat.inode:
                stats[key] = stat
                continue
            first = files.path_of(key)
            problems.append(f"{printable(path)} is left out: {first} has the same name ({key.path}); rename one")
    return files, stats, problems, left_out


def _others(
    index: AgentIndex, files: AgentFiles, transcripts: Mapping[DocumentKey, FileStat]
) -> dict[DocumentKey, FileStat]:
    """Return the other documents that a new index needs."""
    with closed(index.generations.open_reader()) as answering:
        before = {file.key for file in answering.files() if file.key.is_transcript} if answering is not None else set()
    imported = files.scan(imported=True).documents if before else {}
    documents = {**files.scan().documents, **{key: imported[key] for key in sorted(before & imported.keys())}}
    return {key: stat for key, stat in documents.items() if key not in transcripts}


def halt_backfill(invocation: Invocation, halt: str) -> int:
    """Halt the backfill of the call's agents, as by `keep_halt`. Return the exit code."""
    for agent in invocation.agents():
        before = backfill_halt(invocation.settings.home, agent.id)
        keep_halt(invocation.settings.home, agent.id, halt)
        if halt == "cancelled":
            text = _cancel(invocation, agent)
        elif halt:
            text = "backfills rest until `recalld backfill --resume`, also after a restart; "
            text += "searches and saved notes go on"
        else:
            text = _resume(invocation.settings, agent, before)
        click.echo(to_type(f"{agent.id}: {text}", agent=agent.id))
    return 0


def _cancel(invocation: Invocation, agent: AgentSettings) -> str:
    """Stop an agent's batch jobs; drop its waiting documents, their imports, and consents; hold the missing vectors.

    Return a sentence for the user.
    """
    settings, dropped, is_running = invocation.settings, 0, True
    jobs = [job for job in batch_jobs_of(settings, agent.id) if job.agent == agent.id and job.open]
    for job in jobs:
        click.echo(stop_job(invocation, job))
    until = time.monotonic() + CANCEL_SECONDS
    with running_broker(settings), open_broker(settings) as broker:
        while is_running and time.monotonic() < until:
            is_running = bool(broker.queue.pending_set.waiting(agent.id).running)
            dropped += broker.queue.pending_set.drop_backfill(agent.id)
            time.sleep(LOOK_SECONDS if is_running else 0.0)
    grants, identity = Consents.of(settings, agent.id), AgentIndex(settings, agent).choice.identity
    if (tokens := grants.remaining(identity)) > 0:
        grants.use(identity, tokens)
    texts, paths = 0, set[str]()
    with closing(GenerationWriter.at(settings, agent.id)) as generations:
        for store in generations.open_existing():
            while pending := store.pending_hashes(MAX_CHUNKS_PER_COMMIT):
                store.write_vectors({chunk: (text_hash, VectorState.HELD) for chunk, text_hash in pending.items()})
            texts = max(texts, store.counts().vectors_held)
            paths |= {file.key.path for file in store.files()}
    change_imports(imports_path(settings.home, agent.id), lambda imports: with_files(imports, paths))
    if not texts:
        keep_halt(settings.home, agent.id, "")
    if not (texts or dropped or jobs):
        return "no backfill is under way"
    text = f"cancelled; {counted(dropped, 'document')} dropped, {counted(texts, 'text')} left without vectors"
    return f"{text}; `recalld backfill --resume` embeds these" if texts else text


def stop_job(invocation: Invocation, job: BatchJob) -> str:
    """Cancel an open batch job at its provider. Return a sentence for the user."""
    settings, reference = invocation.settings, job.reference
    with BatchLedger.of(settings, Scope.of(job.agent).tenant) as ledger:
        if not ledger.stop(reference, StopReason.CANCELLED.value):
            return f"{reference} is being stopped already"
        later = _ask_provider(settings, job, invocation.fleet or settings)
        if later is None:
            ledger.save(replace(job, stage=Stage.STOPPING, look_at=0.0))
    # Without the broker, the next worker that starts polls the job.
    with open_broker(settings) as broker, suppress(BrokerUnavailable):
        broker.queue.request(POLL_BATCH_JOBS, job.agent)
    return f"{reference}: {later or f'{job.provider} was asked to stop it'}; what it did is kept"


def _ask_provider(settings: Settings, job: BatchJob, directory: AgentDirectory) -> str | None:
    """Ask the provider at once to stop a job. Return the reason why a worker has to do it; None if done."""
    agent = directory.agent(job.agent) if has_agent(directory, job.agent) else None
    provider = AgentIndex(settings, agent).choice.provider if agent is not None else None
    api = batch_api_of(provider) if provider is not None and provider.account == job.account else None
    if provider is None or api is None or job.job_id is None:
        return "the next look at it stops it"
    try:
        if not api.cancel(job.job_id):
            return f"{job.provider} did not take it now and is asked again"
    except RecalldError as error:
        return f"{job.provider} did not take it now ({error}) and is asked again"
    finally:
        provider.close()
    return None


def _resume(settings: Settings, agent: AgentSettings, before: str | None) -> str:
    """Let an agent's backfill, halted as `before`, go on. Return a sentence for the user."""
    resumed = 0
    if batch_jobs_of(settings, agent.id):
        with BatchLedger.of(settings, Scope.of(agent.id).tenant) as ledger:
            resumed = ledger.resume(agent.id)
    with open_broker(settings) as broker, suppress(BrokerUnavailable):  # workers that start look by themselves
        broker.queue.continue_indexing(agent.id)
        broker.queue.request_vectors_now(agent.id)
    if before is None and not resumed:
        return "no backfill is halted"
    when = "" if daemon_pid(settings.home) else " as soon as `recalld up`, or the same backfill, runs"
    return f"the backfill goes on{when}"


def forget_import(invocation: Invocation, path: Path) -> int:
    """Take the imported transcripts at or below a path out of the agent's memory. Return the exit code.

    Raises:
        UserError: nothing was imported from there.
    """
    settings, agent, real = invocation.settings, invocation.the_agent(), document_name(os.path.realpath(path))
    place, keys = imports_path(settings.home, agent.id), set[DocumentKey]()
    before = imported_folders(place)
    with closing(GenerationWriter.at(settings, agent.id)) as generations:
        stores = generations.open_existing()
        indexed = (file.key for store in stores for file in store.files() if file.key.is_transcript)
        keys.update(key for key in indexed if parts_below(key.path, real) is not None)
        if not keys and (without(before, real) == before or not path.exists()):
            name = printable_name(str(path))
            raise UserError(f"nothing was imported from {name}; {place} lists the imports", exit_code=NOTHING_FOUND)
        # First: a worker that reads one of them meanwhile leaves it out.
        change_imports(place, lambda imports: without(imports, real))
        for store in stores:
            for key in keys:
                while WriteOutcome.CONFLICT in store.write([DocumentDelete(key, store.revision(key))]):
                    pass  # a worker wrote it between the two
    click.echo(f"{agent.id}: forgot {counted(len(keys), 'transcript')}; no file is touched")
    return 0
