"""Backfills through a provider's Batch API: texts are noted for jobs, jobs are polled, their vectors are stored.

The job that embeds an agent's texts notes batch jobs in the ledger (`turn`), and one polling job takes each of them
from step to step (`poll`). The ledger holds every job at the provider, so that any process goes on with it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import structlog

from memory.chunking.chunker import estimate_tokens
from memory.embedding.batch_jobs.batch_api import BatchLine
from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Origin, ledger_path
from memory.embedding.batch_jobs.batch_step import JobRules, step
from memory.embedding.batch_jobs.file_batches import batch_api_of
from memory.embedding.coordination import believed
from memory.embedding.vectors import round_rows
from memory.index.commit_batch import MAX_CHUNKS_PER_COMMIT
from memory.index.indexer import Indexer, dimensions_of
from memory.status.condition_texts import stop_text
from memory.store.reader import Vector
from schemas.conditions import Condition, ConditionCode, StopReason
from schemas.ports import Usage
from workers.middleware.pulses import got_on
from workers.runtime import Runtime

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: Fewer texts are embedded the normal way: a job may take hours.
FEWEST_TEXTS = 200

#: Seconds for which a job that is not full waits for documents that are still being read.
GATHERING_SECONDS = 60.0

#: Seconds after a failed job for which texts are embedded the normal way.
PAUSE_SECONDS = 3600.0

#: Seconds for which ended jobs are listed.
KEPT_SECONDS = 7 * 86_400.0

#: Minimum seconds between two looks.
SOONEST_SECONDS = 0.05

#: Failed calls about a job in a row before it becomes a condition.
MOST_SILENT_FAILURES = 3

#: Seconds of one turn spent on storing results; the next turn stores the rest.
STORING_SECONDS = 240.0

#: Conditions under which texts are embedded the normal way although the settings ask for jobs.
_OF_JOBS = (
    ConditionCode.BATCH_API_MISSING,
    ConditionCode.BATCH_NEEDS_CACHE,
    ConditionCode.BATCH_SUSPENDED,
    ConditionCode.BATCH_JOB_UNREACHABLE,
)

#: Reasons to stop a job after which its texts may go into another one.
_FREEING = (StopReason.OTHER_VECTORS, StopReason.SWITCHED_OFF)


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """Share of batch jobs in an agent's texts.

    `inline`: hashes of the texts to embed the normal way, None for all. `again_seconds`: seconds after which texts that
    wait for the rest of a job are counted again, None without such texts.
    """

    inline: Collection[str] | None = None
    again_seconds: float | None = None


class BatchJobs:
    """Batch jobs of a worker process's agents. Thread-safe.

    Every method raises the errors of `memory.store.errors` if an index, the cache or the ledger cannot be written.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._path = ledger_path(runtime.settings.home)

    def turn(self, indexer: Indexer) -> BatchTurn:
        """Note batch jobs of an agent's waiting texts, and return the share of the others."""
        if not self._used(indexer):
            return BatchTurn()
        with BatchLedger(self._path) as ledger:
            agent = _AgentJobs(self._runtime, indexer, ledger)
            agent.report()
            turn = agent.note_jobs()
            if agent.open_jobs():
                self._runtime.queue.request_polling(agent.id)
            return turn

    def poll(self, indexer: Indexer) -> float | None:
        """Take an agent's due jobs one step further. Return the seconds until the next look; None without jobs."""
        if not self._path.exists():
            return None
        with BatchLedger(self._path) as ledger:
            agent = _AgentJobs(self._runtime, indexer, ledger)
            alone = agent.step_jobs()
            agent.report()
            due = [job.look_at - time.time() for job in agent.open_jobs()]
            return max(min(due), SOONEST_SECONDS if alone else agent.poll_seconds) if due else None

    def keep_house(self, indexer: Indexer) -> None:
        """Remove old jobs, report conditions, and request a look at open jobs."""
        if not self._used(indexer):
            self._runtime.board.replace(_OF_JOBS, (), agent=indexer.agent.id)
            return
        with BatchLedger(self._path) as ledger:
            ledger.clear_away(older_than_seconds=KEPT_SECONDS)
            agent = _AgentJobs(self._runtime, indexer, ledger)
            agent.report()
            if agent.open_jobs():
                self._runtime.queue.request_polling(agent.id)

    def _used(self, indexer: Indexer) -> bool:
        return indexer.agent.remote.batch.enabled or self._path.exists()


class _AgentJobs:
    """Batch jobs of one agent, and of agents that are not configured any more. It is the `JobDesk` of their steps."""

    def __init__(self, runtime: Runtime, indexer: Indexer, ledger: BatchLedger) -> None:
        self._runtime = runtime
        self._indexer = indexer
        self._ledger = ledger
        self._supply = indexer.supply
        self._settings = indexer.agent.remote.batch
        self._provider = indexer.supply.choice.provider
        self._api = batch_api_of(self._provider)
        self.id = indexer.agent.id
        self.poll_seconds = self._settings.poll_interval_ms / 1000

    def open_jobs(self) -> list[BatchJob]:
        """Return the open jobs."""
        known = {one.id for one in self._runtime.settings.agents}
        return [job for job in self._ledger.jobs() if job.open and (job.agent == self.id or job.agent not in known)]

    def report(self) -> None:
        """Report the conditions that keep the agent from batch jobs."""
        found = [
            Condition(ConditionCode.BATCH_JOB_UNREACHABLE, job.reference, params={"error": job.message})
            for job in self.open_jobs()
            if job.attempts >= MOST_SILENT_FAILURES
        ]
        if self._settings.enabled and self._provider is not None:
            failed = self._failed_lately()
            if self._api is None:
                found.append(Condition(ConditionCode.BATCH_API_MISSING, self._provider.name))
            elif self._supply.cache is None:
                found.append(Condition(ConditionCode.BATCH_NEEDS_CACHE))
            elif failed is not None:
                said = failed.message or stop_text(failed.stop_reason)
                reason = f"the last batch job at {failed.provider} came to nothing ({failed.stage.value}: {said})"
                until = (failed.ended_at or 0.0) + PAUSE_SECONDS
                found.append(Condition(ConditionCode.BATCH_SUSPENDED, params={"reason": reason, "until": until}))
        self._runtime.board.replace(_OF_JOBS, found, agent=self.id)

    # Texts become jobs

    def note_jobs(self) -> BatchTurn:
        """Note jobs of waiting texts, as many as may be open; return the share of the others."""
        # In this order: documents that are not being read any more are among those that wait.
        gathering = self._gathering()
        pending = dict.fromkeys(self._indexer.target().pending_hashes().values())
        identity = self._supply.identity
        held: set[str] = set()
        if (
            self._provider is not None
            and self._api is not None
            and self._settings.enabled
            and self._supply.cache is not None
            and self._failed_lately() is None
        ):
            origin = Origin(self.id, identity, self._provider.account, self._provider.name, self._provider.model)
            waiting = self._for_jobs(pending)
            most = self._api.limits.inputs
            if len(waiting) < FEWEST_TEXTS or not gathering or len(waiting) >= most:
                gathering = False
                waiting = self._without_paid(waiting)
            while not gathering and len(waiting) >= FEWEST_TEXTS:
                noted = self._ledger.note(origin, waiting[:most], most_open=self._settings.concurrency)
                if not noted:
                    break
                waiting = [text_hash for text_hash in waiting if text_hash not in noted]
            held = set(waiting) if len(waiting) >= FEWEST_TEXTS else set()
        elsewhere = held | self._ledger.hashes(identity)
        if not elsewhere:
            return BatchTurn()
        return BatchTurn(pending.keys() - elsewhere, self.poll_seconds if gathering and held else None)

    def _for_jobs(self, pending: Iterable[str]) -> list[str]:
        """Return the texts that could go into a job, the oldest first."""
        known = self._ledger.known_hashes(self._supply.identity)
        return [text_hash for text_hash in pending if text_hash not in known]

    def _failed_lately(self) -> BatchJob | None:
        """Return the last job with these vectors if it came to nothing within `PAUSE_SECONDS`."""
        ended = [job for job in self._ledger.jobs() if job.identity == self._supply.identity and not job.open]
        last = max(ended, key=lambda job: job.ended_at or 0.0, default=None)
        lately = last is not None and (last.ended_at or 0.0) > time.time() - PAUSE_SECONDS
        return last if last is not None and lately and last.came_to_nothing else None

    def _gathering(self) -> bool:
        """Return True if documents are still being read, for less than `GATHERING_SECONDS`."""
        marks = self._runtime.queue.marks
        waiting = marks.waiting(self.id)
        if not waiting.backfill and not waiting.running:
            return False
        oldest = marks.pending(self.id).oldest_at
        return oldest is not None and time.time() - oldest < GATHERING_SECONDS

    def _without_paid(self, waiting: list[str]) -> list[str]:
        """Write the vectors that were paid for already. Return the texts without a vector."""
        found: set[str] = set()
        ids = self._chunks()
        for group in _groups(iter(waiting)):
            vectors = self._supply.lookup(group)
            vectors |= self._indexer.held_vectors([text_hash for text_hash in group if text_hash not in vectors])
            found |= vectors.keys()
            self._write(vectors, ids)
        return [text_hash for text_hash in waiting if text_hash not in found]

    # Jobs become vectors

    def step_jobs(self) -> bool:
        """Take the jobs that are due one step further. Return False if another worker does so."""
        due = [job for job in self.open_jobs() if job.look_at <= time.time()]
        complete = True
        for owner in {job.agent for job in due}:
            with self._ledger.working_on(owner) as alone:
                complete &= alone
                for job in due if alone else ():
                    # Read again under the lock: another process may have changed it.
                    current = self._ledger.job(job.reference) if job.agent == owner else None
                    if current is not None and current.open and current.look_at <= time.time():
                        self._step(current)
        return complete

    def _step(self, job: BatchJob) -> None:
        rules = JobRules(self.poll_seconds, self._settings.timeout_minutes * 60, self._reason_to_stop(job))
        reachable = self._provider is not None and (self._provider.account, self._provider.name) == (
            job.account,
            job.provider,
        )
        api = self._api if reachable else None
        got_on(waits_for=f"the Batch API of {job.provider}")
        after = step(job, api, self, rules, now=time.time())
        freed = self._ledger.hashes_in(job.reference) if not after.open and after.stop_reason in _FREEING else ()
        self._ledger.save(after, without=freed)
        if after.stage is not job.stage or after.attempts > job.attempts:
            log.info("batch_job", reference=job.reference, job=after.job_id, stage=after.stage, message=after.message)
        if after.open:
            return
        self._record(job, requests=1, failed=int(after.came_to_nothing))
        if api is not None and after.job_id is not None:
            api.clean_up(after.job_id)
        # Other agents may have the same texts.
        for agent in self._runtime.settings.agents:
            self._runtime.queue.request_vectors(agent.id)

    def _reason_to_stop(self, job: BatchJob) -> StopReason | None:
        if job.identity != self._supply.identity:
            return StopReason.OTHER_VECTORS
        if not self._settings.enabled:
            return StopReason.SWITCHED_OFF
        return StopReason.AGENT_GONE if job.agent != self.id else None

    def texts(self, job: BatchJob) -> Iterator[tuple[str, str]]:
        """Yield (text hash, text) of the job's texts that still lack vectors, the oldest first."""
        hashes = self._ledger.hashes_in(job.reference)
        store = self._indexer.target()
        chunks = ((text_hash, ids[0]) for text_hash, ids in self._chunks().items() if text_hash in hashes)
        for group in _groups(chunks):
            rows = store.chunk_rows([chunk for _, chunk in group])
            yield from ((text_hash, rows[chunk].text) for text_hash, chunk in group if chunk in rows)

    def submitting(self, job: BatchJob, hashes: Collection[str]) -> None:
        """Write the job to the ledger, with these texts alone."""
        self._ledger.save(job, without=self._ledger.hashes_in(job.reference).difference(hashes))

    def collect(self, job: BatchJob, lines: Iterator[BatchLine]) -> int | None:
        """Store results until all have come, or time is out. Return how many were usable."""
        deadline = time.monotonic() + STORING_SECONDS
        left = self._ledger.hashes_in(job.reference)
        ids = self._chunks()
        usable = 0
        begun = time.monotonic()
        for group in _groups(lines) if left else ():
            ours = {line.custom_id: line for line in group if line.custom_id in left}
            left.difference_update(ours)
            if ours:
                usable += self._keep(job, ours, ids, begun)
            got_on(waits_for=f"results of {job.provider}'s Batch API")
            if time.monotonic() > deadline:
                return None
            begun = time.monotonic()
        return usable

    def _keep(self, job: BatchJob, lines: Mapping[str, BatchLine], ids: Mapping[str, list[int]], begun: float) -> int:
        """Keep some results: the cache first, then the index, then the ledger. Each step may be repeated."""
        vectors = self._usable(job, lines)
        tokens = self._tokens({text_hash: lines[text_hash].tokens for text_hash in vectors}, ids)
        if self._supply.cache is not None:
            self._supply.cache.put_many(job.identity, vectors)
        if job.identity == self._supply.identity:
            joined = self._write(vectors, ids)
            self._runtime.board.record_vectors(self.id, count=joined, seconds=time.monotonic() - begun)
        self._record(job, inputs=len(vectors), tokens=tokens)
        self._ledger.settle(job.reference, vectors.keys())
        refused = lines.keys() - vectors.keys()
        if refused:
            # They stay in the job until it ends. Then they are embedded the normal way.
            reasons = Counter(lines[text_hash].reason or "its vector is of no use" for text_hash in refused)
            [(reason, _)] = reasons.most_common(1)
            log.warning("batch_lines_failed", reference=job.reference, lines=len(refused), reason=reason)
        return len(vectors)

    def _usable(self, job: BatchJob, lines: Mapping[str, BatchLine]) -> dict[str, Vector]:
        """Return the finite, non-zero vectors of the right width, rounded as in the cache."""
        found = {text_hash: line.vector for text_hash, line in lines.items() if line.vector is not None}
        width = dimensions_of(self._indexer.target()) if job.identity == self._supply.identity else None
        if width is None and found:
            [(width, _)] = Counter(vector.shape[0] for vector in found.values()).most_common(1)
        fitting = {text_hash: vector for text_hash, vector in found.items() if width and vector.shape == (width,)}
        if not fitting:
            return {}
        rows, unusable = round_rows(np.stack(list(fitting.values())), expected=len(fitting), dimensions=width)
        return {text_hash: row for text_hash, row, bad in zip(fitting, rows, unusable, strict=True) if not bad}

    def _tokens(self, told: Mapping[str, int | None], ids: Mapping[str, list[int]]) -> int:
        """Return the tokens that the provider counted, or an estimate where its count is missing or implausible."""
        rows = self._indexer.target().chunk_rows([ids[text_hash][0] for text_hash in told if text_hash in ids])
        total = 0
        for text_hash, tokens in told.items():
            row = rows.get(ids[text_hash][0]) if text_hash in ids else None
            estimated = estimate_tokens(row.text) if row is not None else 0.0
            counted = believed(tokens, estimated)
            total += round(estimated) if counted is None else counted
        return total

    def _chunks(self) -> dict[str, list[int]]:
        """Return text hash -> chunks, of the chunks without a vector."""
        found: dict[str, list[int]] = {}
        for chunk, text_hash in self._indexer.target().pending_hashes().items():
            found.setdefault(text_hash, []).append(chunk)
        return found

    def _write(self, vectors: Mapping[str, Vector], ids: Mapping[str, list[int]]) -> int:
        rows = {chunk: (text_hash, row) for text_hash, row in vectors.items() for chunk in ids.get(text_hash, ())}
        return self._indexer.target().write_vectors(rows) if rows else 0

    def _record(self, job: BatchJob, *, requests: int = 0, failed: int = 0, inputs: int = 0, tokens: int = 0) -> None:
        if self._supply.coordination is not None:
            usage = Usage(job.provider, job.model, requests=requests, failed=failed, inputs=inputs, tokens=tokens)
            self._supply.coordination.usage.record_usage(usage, agents={job.agent: usage})


def _groups(items: Iterator[T]) -> Iterator[list[T]]:
    """Yield lists of at most one commit's size."""
    while group := list(islice(items, MAX_CHUNKS_PER_COMMIT)):
        yield group
