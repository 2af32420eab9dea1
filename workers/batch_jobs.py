"""Backfills through a provider's Batch API: texts are noted for jobs, jobs are polled, their vectors are stored.

The job that embeds an agent's texts notes batch jobs in the ledger, and one polling job (`poll_batches`) takes each
of them from step to step. The ledger holds every job at the provider, so that any process goes on with it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import structlog

from memory.chunking.chunker import estimate_tokens
from memory.embedding.batch_jobs.batch_api import BatchLine, batch_api_of
from memory.embedding.batch_jobs.batch_ledger import FREEING, BatchJob, BatchLedger, Stage, choice_path
from memory.embedding.batch_jobs.batch_step import JobRules, step
from memory.embedding.batch_jobs.ledger_reader import has_ledger
from memory.embedding.breaker import Permit
from memory.embedding.coordination import believed
from memory.embedding.providers.endpoint import LONGEST_WAIT_SECONDS
from memory.embedding.vectors import round_rows
from memory.index.changes import MAX_CHUNKS_PER_COMMIT
from memory.index.indexer import Indexer, dimensions_of
from memory.status.condition_texts import counted, stop_text
from memory.store.reader import Vector
from schemas.agents import Scope
from schemas.conditions import Condition, ConditionCode, Param, StopReason
from schemas.errors import Unusable
from schemas.metrics import VECTORS
from schemas.ports import Usage
from schemas.settings import has_agent
from workers.middleware import got_on
from workers.queue.job_queue import SKEW_SECONDS
from workers.queue.names import POLL_BATCH_JOBS
from workers.runtime import Runtime

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: Fewer texts are embedded the normal way: a job may take hours.
FEWEST_TEXTS = 200

#: Seconds from their beginning for which ended jobs are listed, and lost ones looked for.
KEPT_SECONDS = 7 * 86_400.0

#: Minimum seconds between two looks.
SOONEST_SECONDS = 0.05

#: Failed calls about a job in a row before it becomes a condition.
MOST_SILENT_FAILURES = 3

#: Seconds of one turn spent on storing results; the next turn stores the rest.
STORING_SECONDS = 240.0

#: Unix time by a clock that is never set, at its zero.
_STEADY_ZERO = time.time() - time.monotonic()

#: Conditions of batch jobs.
_OF_JOBS = (
    ConditionCode.BATCH_API_MISSING,
    ConditionCode.BATCH_NEEDS_CACHE,
    ConditionCode.BATCH_SUSPENDED,
    ConditionCode.BATCH_JOB_UNREACHABLE,
)


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """Share of batch jobs in an agent's texts.

    `inline`: hashes of the texts to embed the normal way, None for all. `again_seconds`: seconds after which texts that
    wait for the rest of a job are counted again, None without such texts.
    """

    inline: Collection[str] | None = None
    again_seconds: float | None = None


@contextmanager
def batch_jobs(runtime: Runtime, indexer: Indexer) -> Iterator[AgentJobs | None]:
    """Open the ledger for the block; yield None if neither the settings nor a ledger know batch jobs."""
    if not indexer.agent.remote.batch.enabled and not has_ledger(runtime.settings):
        yield None
        return
    with BatchLedger.of(runtime.settings, Scope.of(indexer.agent.id).tenant) as ledger:
        yield AgentJobs(runtime, indexer, ledger)


def keep_batch_jobs(runtime: Runtime, indexer: Indexer) -> None:
    """Remove old batch jobs, end the choice of a backlog that is done, report conditions, and look at open jobs."""
    agent, choice = indexer.agent.id, choice_path(runtime.settings.home, indexer.agent.id)
    target, documents = indexer.target(), runtime.queue.pending_set.pending(agent).documents
    backlog = documents or target.pending_hashes(1) or target.held_hashes(1)
    # The documents of a new choice are queued within seconds.
    if not backlog and choice.exists() and time.time() - choice.stat().st_mtime > runtime.timing.batch.gathering:
        choice.unlink(missing_ok=True)
    with batch_jobs(runtime, indexer) as jobs:
        if jobs is None:
            runtime.health.replace(_OF_JOBS, (), agent=agent)
        else:
            jobs.ledger.clear_away(older_than_seconds=KEPT_SECONDS)
            jobs.look_after()


class AgentJobs:
    """Batch jobs of one agent, and of agents that are not configured any more. It is the `JobDesk` of their steps.

    Every method raises the errors of `memory.store.errors` if an index, the cache or the ledger cannot be written.
    """

    def __init__(self, runtime: Runtime, indexer: Indexer, ledger: BatchLedger) -> None:
        self._runtime = runtime
        self._indexer = indexer
        self.ledger = ledger
        self._supply = indexer.supply
        self._settings = indexer.agent.remote.batch
        self._provider = indexer.supply.provider
        self._api = batch_api_of(self._provider)
        self._agent = indexer.agent.id
        self._poll_seconds = self._settings.poll_interval_ms / 1000
        self._timing = runtime.timing.batch

    def look_after(self) -> None:
        """Report conditions, and request a look at open jobs."""
        if self._report():
            self._runtime.queue.request(POLL_BATCH_JOBS, self._agent)

    def note(self) -> BatchTurn:
        """Note jobs of waiting texts, as many as may be open; return the share of the others."""
        # In this order: documents that are not being read any more are among those that wait.
        reading_seconds = self._reading_seconds()
        pending = dict.fromkeys(self._indexer.target().pending_hashes().values())
        in_jobs = self.ledger.hashes(self._supply.identity)  # first: a job that ends meanwhile is still in it
        gathered: set[str] = set()
        gathering = False
        coordination = self._supply.coordination
        waste = coordination.limiter.breaker.waste() if coordination is not None else None
        if self._api is not None and self._settings.enabled and self._obstacle() is None:
            unsettled = self._unsettled(pending)
            ledger_hashes = set().union(*(hashes for _, hashes in unsettled))
            waiting = [text_hash for text_hash in pending if text_hash not in ledger_hashes]
            fills_job = len(waiting) >= FEWEST_TEXTS
            # What is too little for a job yet may fill one with texts that are still read.
            patience = self._timing.gathering if fills_job else math.inf
            gathering = reading_seconds < patience and len(waiting) < self._api.most_texts
            is_cancelled = any(job.stop_reason == StopReason.CANCELLED for job, _ in unsettled)
            if is_cancelled or gathering:
                gathered = set(waiting) - self._indexer.overdue
            elif waste is not None:
                gathered = set(waiting if fills_job else ())
            else:
                gathered = set(self._noted(waiting, most_open=self._settings.concurrency))
                for job, hashes in unsettled:
                    if job.rest == "next_job":  # one at a time: jobs may have failed because there were several
                        self._noted([*hashes], most_open=1, fewest=1, number=job.number + 1)
            gathered.update(*(hashes for job, hashes in unsettled if job.rest == "next_job" or self._waits(job)))
            if waste is not None:  # as many texts as were billed in vain are its trial, outside of jobs
                gathered, gathering = set(islice(gathered, max(1, waste.texts - waste.good), None)), True
        # A lost job is looked for before its texts are paid for again.
        given_up = [job for job in self._due() if not job.open and job.identity == self._supply.identity]
        sought = pending.keys() & set().union(*(self.ledger.hashes_in(job.reference) for job in given_up))
        self.look_after()
        elsewhere = gathered | sought | in_jobs | self.ledger.hashes(self._supply.identity)
        if not elsewhere:
            return BatchTurn()
        return BatchTurn(pending.keys() - elsewhere, self._poll_seconds if sought or (gathering and gathered) else None)

    def step(self) -> float | None:
        """Take the jobs that are due one step further. Return the seconds until the next look; None without jobs."""
        due = self._due()
        pause = SOONEST_SECONDS
        for owner in {job.agent for job in due}:
            with self.ledger.working_on(owner) as alone:
                pause = pause if alone else self._poll_seconds
                for job in due if alone else ():
                    # Read again under the lock: another process may have changed it.
                    current = self.ledger.job(job.reference) if job.agent == owner else None
                    if current is not None and current.followed and not self._seconds_until(current):
                        self._indexer.generations.look_again()  # a step may wait for the provider
                        self._step(current)
        jobs = self._report()
        is_open = any(job.open for job in jobs)
        return max(min(map(self._seconds_until, jobs)), pause) if is_open else None

    def _followed(self) -> list[BatchJob]:
        jobs = [job for job in self.ledger.jobs() if job.followed]
        return [job for job in jobs if job.agent == self._agent or not has_agent(self._runtime.directory, job.agent)]

    def _due(self) -> list[BatchJob]:
        return [job for job in self._followed() if not self._seconds_until(job)]

    def _seconds_until(self, job: BatchJob) -> float:
        """Return the seconds until the next look at a job. A time that no rule gives is one of a clock set back."""
        seconds = job.look_at - time.time()
        return seconds if 0.0 < seconds <= max(self._poll_seconds, LONGEST_WAIT_SECONDS) + SKEW_SECONDS else 0.0

    # Conditions

    def _report(self) -> list[BatchJob]:
        """Report conditions, and return the jobs that are followed."""
        jobs = self._followed()
        unreachable = [
            Condition(ConditionCode.BATCH_JOB_UNREACHABLE, job.reference, params={"error": job.message})
            for job in jobs
            if job.open and job.attempts >= MOST_SILENT_FAILURES
        ]
        obstacle = self._obstacle() if self._settings.enabled else None
        if self._settings.enabled and obstacle is None and not any(job.open for job in jobs):
            obstacle = self._suspension()
        self._runtime.health.replace(_OF_JOBS, [*unreachable, *filter(None, [obstacle])], agent=self._agent)
        return jobs

    def _obstacle(self) -> Condition | None:
        """Return the reason why texts go the normal way although the settings ask for jobs; None without one."""
        if self._provider is None:
            return None
        if self._api is None:
            return Condition(ConditionCode.BATCH_API_MISSING, self._provider.name)
        return Condition(ConditionCode.BATCH_NEEDS_CACHE) if self._supply.cache is None else None

    def _suspension(self) -> Condition | None:
        """Return the condition that texts wait after batch jobs that left them; None without any."""
        waiting = [(job, hashes) for job, hashes in self._unsettled(self._chunks()) if self._waits(job)]
        if not waiting:
            return None
        job, texts = waiting[-1][0], counted(sum(len(hashes) for _, hashes in waiting), "text")
        end = ": ".join(filter(None, (job.stage.value, job.message or stop_text(job.stop_reason))))
        params: dict[str, Param] = {"texts": texts, "provider": job.provider, "end": end}
        return Condition(ConditionCode.BATCH_SUSPENDED, params=params | {"taken": job.taken, "sent": job.texts})

    def _unsettled(self, pending: Collection[str]) -> list[tuple[BatchJob, set[str]]]:
        """Return the jobs that hold, or left, pending texts, each with these."""
        jobs = [job for job in self.ledger.jobs() if job.identity == self._supply.identity]
        texts = [self.ledger.hashes_in(job.reference).intersection(pending) for job in jobs]
        return [(job, hashes) for job, hashes in zip(jobs, texts, strict=True) if hashes]

    def _waits(self, job: BatchJob) -> bool:
        """Return True if the texts that a job left wait: for the user, or for the time of `full_price_after`."""
        hours = self._settings.full_price_after.removesuffix("h")
        is_late = hours != "never" and time.time() - (job.ended_at or 0.0) >= float(hours) * 3600
        return job.rest == "waits" and (job.stop_reason == StopReason.CANCELLED or not is_late)

    # Texts become jobs

    def _reading_seconds(self) -> float:
        """Return the seconds since the oldest document that still waits was marked; infinity if no old one does."""
        pending_set = self._runtime.queue.pending_set
        waiting = pending_set.waiting(self._agent)
        oldest = pending_set.pending(self._agent).oldest_at if waiting.backfill or waiting.running else None
        return math.inf if oldest is None else abs(time.time() - oldest)

    def _noted(self, waiting: list[str], *, most_open: int, fewest: int = FEWEST_TEXTS, number: int = 1) -> list[str]:
        """Note jobs of texts. Return the texts that wait until another job may be open."""
        if self._provider is None or self._api is None or len(waiting) < fewest:
            return []
        waiting = self._without_paid(waiting)
        while len(waiting) >= fewest:
            texts = waiting[: self._api.most_texts]
            noted = self.ledger.note(self._agent, self._provider, texts, most_open=most_open, number=number)
            if not noted:
                return waiting
            waiting = [text_hash for text_hash in waiting if text_hash not in noted]
        return []

    def _without_paid(self, waiting: list[str]) -> list[str]:
        """Write the vectors that were paid for already. Return the texts without a vector."""
        paid: set[str] = set()
        ids = self._chunks()
        for group in _groups(iter(waiting)):
            vectors = self._indexer.paid_vectors(group)
            paid |= vectors.keys()
            self._write(vectors, ids)
        return [text_hash for text_hash in waiting if text_hash not in paid]

    # Jobs become vectors

    def _step(self, job: BatchJob) -> None:
        timeout_seconds = self._settings.timeout_minutes * 60
        rules = JobRules(self._poll_seconds, timeout_seconds, self._reason_to_stop(job), self._timing)
        at = (self._provider.account, self._provider.name) if self._provider is not None else None
        api = self._api if at == (job.account, job.provider) else None
        got_on(waits_for=f"the Batch API of {job.provider}")
        after = step(job, api, self, rules, now=time.time(), steady=_STEADY_ZERO + time.monotonic())
        is_over = not after.open and after.stage is not Stage.LOST
        freed = self.ledger.hashes_in(job.reference) if is_over and after.stop_reason in FREEING else ()
        self.ledger.save(after, without=freed)
        if after.stage is job.stage is Stage.LOST:
            return
        degraded = after.attempts > job.attempts or after.came_to_nothing
        if degraded or after.stage is not job.stage:
            write = log.warning if degraded else log.info
            write("batch_job", reference=job.reference, job=after.job_id, stage=after.stage, message=after.message)
        if after.open:
            return
        self._record(job, requests=1, failed=int(after.came_to_nothing))
        # Files stay until their vectors are in the cache.
        saved = self.ledger.job(job.reference)
        cached = self._supply.cache is not None and saved is not None and (saved.taken > 0 or not saved.completed)
        if api is not None and after.job_id is not None and is_over and cached:
            api.clean_up(after.job_id)
        # Other agents may have the same texts.
        for agent in dict.fromkeys([self._agent, *(agent.id for agent in self._runtime.settings.agents)]):
            self._runtime.queue.request_vectors(agent)

    def _reason_to_stop(self, job: BatchJob) -> StopReason | None:
        if job.identity != self._supply.identity:
            return StopReason.OTHER_VECTORS
        if not self._settings.enabled:
            return StopReason.SWITCHED_OFF
        return StopReason.AGENT_GONE if job.agent != self._agent else None

    def texts(self, job: BatchJob) -> Iterator[tuple[str, str]]:
        """Yield (text hash, text) of the job's texts that still lack vectors, the oldest first."""
        hashes = self.ledger.hashes_in(job.reference)
        store = self._indexer.target()
        chunks = ((text_hash, ids[0]) for text_hash, ids in self._chunks().items() if text_hash in hashes)
        for group in _groups(chunks):
            rows = store.chunk_rows([chunk for _, chunk in group])
            yield from ((text_hash, rows[chunk].text) for text_hash, chunk in group if chunk in rows)

    def submitting(self, job: BatchJob, hashes: Collection[str]) -> None:
        """Write the job to the ledger, with these texts alone."""
        self.ledger.save(job, without=self.ledger.hashes_in(job.reference).difference(hashes))

    def collect(self, job: BatchJob, lines: Iterator[BatchLine]) -> int | None:
        """Store results until all have come, time is out or the process ends. Return how many were usable."""
        deadline = time.monotonic() + STORING_SECONDS
        unread = self.ledger.hashes_in(job.reference)
        ids = self._chunks()
        usable = 0
        begin = time.monotonic()
        for group in _groups(lines) if unread else ():
            ours = {line.custom_id: line for line in group if line.custom_id in unread}
            unread.difference_update(ours)
            if ours:
                usable += self._keep(job, ours, ids, begin)
            got_on(waits_for=f"results of {job.provider}'s Batch API")
            if unread and (time.monotonic() > deadline or self._runtime.stopping.is_set()):
                return None
            begin = time.monotonic()
        return usable

    def _keep(self, job: BatchJob, lines: Mapping[str, BatchLine], ids: Mapping[str, list[int]], begin: float) -> int:
        """Keep some results: the cache first, then the index, then the ledger. Each step may be repeated."""
        vectors = self._usable(job, lines)
        tokens = self._tokens({text_hash: lines[text_hash].tokens for text_hash in vectors}, ids)
        if self._supply.cache is not None:
            self._supply.cache.put_many(job.identity, vectors)
        if job.identity == self._supply.identity:
            joined = self._write(vectors, ids)
            self._runtime.health.counters.add(VECTORS, joined)
            self._runtime.health.record_vectors(self._agent, count=joined, seconds=time.monotonic() - begin)
        self._record(job, inputs=len(vectors), tokens=tokens)
        self._report_useless(job, lines, vectors)
        self.ledger.settle(job.reference, vectors.keys())
        refused = lines.keys() - vectors.keys()
        if refused:
            # They stay in the job until it ends. Then they go into another one.
            reasons = Counter(lines[text_hash].reason or "its vector is of no use" for text_hash in refused)
            [(reason, _)] = reasons.most_common(1)
            log.warning("batch_lines_failed", reference=job.reference, lines=len(refused), reason=reason)
        return len(vectors)

    def _usable(self, job: BatchJob, lines: Mapping[str, BatchLine]) -> dict[str, Vector]:
        """Return the finite, non-zero vectors of the right width, rounded as in the cache."""
        raw_vectors = {text_hash: line.vector for text_hash, line in lines.items() if line.vector is not None}
        width = dimensions_of(self._indexer.target()) if job.identity == self._supply.identity else None
        if width is None and raw_vectors:
            [(width, _)] = Counter(vector.shape[0] for vector in raw_vectors.values()).most_common(1)
        fitting = {text_hash: vector for text_hash, vector in raw_vectors.items() if width and vector.shape == (width,)}
        if not fitting:
            return {}
        rows, unusable = round_rows(np.stack(list(fitting.values())), expected=len(fitting), dimensions=width)
        return {text_hash: row for text_hash, row, bad in zip(fitting, rows, unusable, strict=True) if not bad}

    def _report_useless(self, job: BatchJob, lines: Mapping[str, BatchLine], vectors: Mapping[str, Vector]) -> None:
        """Stop the provider if most of its vectors are useless: in requests they would be paid again."""
        useless = {name: line for name, line in lines.items() if line.vector is not None and name not in vectors}
        limiter = self._supply.coordination.limiter if self._supply.coordination is not None else None
        if limiter is None or job.identity != self._supply.identity or len(useless) <= len(vectors):
            return
        widths = Counter(line.vector.shape[0] for line in useless.values() if line.vector is not None)
        error = Unusable("the vectors of a batch job are of no use")
        [(width, _)] = widths.most_common(1)
        if (expected := dimensions_of(self._indexer.target())) not in {None, width}:
            reason = f"a batch job returned vectors of {width} dimensions instead of {expected}"
            error = Unusable(reason, got=width, expected=expected)
        tokens = self._tokens({name: line.tokens for name, line in useless.items()}, self._chunks())
        limiter.report(error, Permit(len(useless)), tokens=tokens)

    def _tokens(self, counts: Mapping[str, int | None], ids: Mapping[str, list[int]]) -> int:
        """Return the tokens that the provider counted, or an estimate where its count is missing or implausible."""
        rows = self._indexer.target().chunk_rows([ids[text_hash][0] for text_hash in counts if text_hash in ids])
        total = 0
        for text_hash, tokens in counts.items():
            row = rows.get(ids[text_hash][0]) if text_hash in ids else None
            estimated = estimate_tokens(row.text) if row is not None else 0.0
            counted = believed(tokens, estimated)
            total += round(estimated) if counted is None else counted
        return total

    def _chunks(self) -> dict[str, list[int]]:
        """Return text hash -> chunks, of the chunks without a vector."""
        chunks: dict[str, list[int]] = {}
        for chunk, text_hash in self._indexer.target().pending_hashes().items():
            chunks.setdefault(text_hash, []).append(chunk)
        return chunks

    def _write(self, vectors: Mapping[str, Vector], ids: Mapping[str, list[int]]) -> int:
        rows = {chunk: (text_hash, row) for text_hash, row in vectors.items() for chunk in ids.get(text_hash, ())}
        return self._indexer.target().write_vectors(rows) if rows else 0

    def _record(self, job: BatchJob, *, requests: int = 0, failed: int = 0, inputs: int = 0, tokens: int = 0) -> None:
        coordination = self._supply.coordination
        if coordination is not None and coordination.usage is not None:
            usage = Usage(job.provider, job.model, requests, failed, inputs, tokens, batched=tokens)
            coordination.usage.record_usage(usage, agents={job.agent: usage})
            self._runtime.health.counters.flush()


def _groups(items: Iterator[T]) -> Iterator[list[T]]:
    """Yield lists of at most one commit's size."""
    while group := list(islice(items, MAX_CHUNKS_PER_COMMIT)):
        yield group
