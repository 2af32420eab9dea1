"""Backfills through a provider's Batch API: jobs are made and polled, and their vectors are stored.

A turn does the work that is due and returns the time of the next turn (`workers.actors`). The ledger holds every job at
the provider, so that a turn continues where another one, in any process, ended.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from memory.embedding.batch_jobs.batch_api import BatchApi
from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Origin, ledger_path
from memory.embedding.batch_jobs.file_batches import batch_api_of
from memory.index.commit_batch import MAX_CHUNKS_PER_COMMIT
from memory.index.indexer import Indexer
from schemas.conditions import Condition, ConditionCode, Param
from workers.batch_following import JobFollower, grouped, ids_by_hash
from workers.runtime import Runtime

#: Fewer texts are embedded the normal way: a job may take hours.
FEWEST_TEXTS = 200

#: Seconds for which a job that is not full waits for documents that are still being read.
GATHERING_SECONDS = 60.0

#: Seconds without a look after which texts in another agent's job are embedded the normal way.
NEGLECTED_SECONDS = 900.0

#: Seconds for which ended jobs are listed.
KEPT_SECONDS = 7 * 86_400.0

#: Minimum seconds between two looks.
SOONEST_SECONDS = 0.05

#: Failed calls about a job in a row before it becomes a condition.
MOST_SILENT_FAILURES = 3

#: Conditions under which texts are embedded the normal way although the settings ask for jobs.
_OF_JOBS = (
    ConditionCode.BATCH_API_MISSING,
    ConditionCode.BATCH_NEEDS_CACHE,
    ConditionCode.BATCH_SUSPENDED,
    ConditionCode.BATCH_JOB_UNREACHABLE,
)


@dataclass(frozen=True, slots=True)
class BatchTurn:
    """Result of a turn.

    `inline`: hashes of the texts to embed the normal way, None for all. `again_seconds`: seconds until the next look at
    jobs, None without jobs. `idle`: all waiting texts are in jobs.
    """

    inline: Collection[str] | None = None
    again_seconds: float | None = None
    idle: bool = False


class BatchJobs:
    """Batch jobs of a worker process's agents. Thread-safe.

    Every method raises the errors of `memory.store.errors` if an index, the cache or the ledger cannot be written.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._path = ledger_path(runtime.settings.home)
        # Agent -> state at its last idle turn: checking 50,000 texts would take a tenth of the time between two looks.
        self._idle: dict[str, object] = {}

    def turn(self, indexer: Indexer) -> BatchTurn:
        """Do the work that is due for an agent's batch jobs."""
        agent = indexer.agent.id
        if not indexer.agent.remote.batch.enabled and not self._path.exists():
            return BatchTurn()
        with BatchLedger(self._path) as ledger:
            turn = _Turn(self._runtime, indexer, ledger)
            turn.follow_jobs()
            turn.report()
            token = (indexer.target().change_token(), ledger.change_token())
            again_seconds = turn.next_look_seconds()
            if again_seconds is not None and self._idle.get(agent) == token:
                return BatchTurn(frozenset(), again_seconds, idle=True)
            if turn.make_jobs():
                turn.report()
            outcome = turn.outcome()
            self._idle.pop(agent, None)
            if outcome.idle:
                self._idle[agent] = (indexer.target().change_token(), ledger.change_token())
            return outcome

    def keep_house(self, indexer: Indexer) -> None:
        """Remove old jobs, report conditions, and request a turn for open jobs, independent of other work."""
        agent = indexer.agent.id
        if not indexer.agent.remote.batch.enabled and not self._path.exists():
            self._runtime.board.replace(_OF_JOBS, (), agent=agent)
            return
        with BatchLedger(self._path) as ledger:
            ledger.clear_away(older_than_seconds=KEPT_SECONDS)
            turn = _Turn(self._runtime, indexer, ledger)
            turn.report()
            if turn.jobs():
                self._runtime.queue.request_vectors(agent)


class _Turn:
    """Turn of one agent. Only the holder of the agent's lock sends requests to the provider."""

    def __init__(self, runtime: Runtime, indexer: Indexer, ledger: BatchLedger) -> None:
        self.runtime = runtime
        self.indexer = indexer
        self.ledger = ledger
        self.held: Collection[str] = frozenset()
        self.pending: Collection[str] = frozenset()
        self.agent = self.indexer.agent.id
        self.settings = self.indexer.agent.remote.batch
        self.supply = self.indexer.supply
        provider = self.supply.choice.provider
        self.api: BatchApi | None = batch_api_of(provider)

    @property
    def poll_seconds(self) -> float:
        return self.settings.poll_interval_ms / 1000

    @property
    def usable(self) -> BatchApi | None:
        """Batch API, if new jobs are wanted."""
        return self.api if self.settings.enabled and self.supply.cache is not None else None

    def jobs(self) -> list[BatchJob]:
        """Return the open jobs of this agent and of agents that are not configured any more."""
        known = {one.id for one in self.runtime.settings.agents}
        return [job for job in self.ledger.jobs() if job.open and (job.agent == self.agent or job.agent not in known)]

    def follow_jobs(self) -> None:
        """Look at the jobs that are due."""
        jobs = self.jobs()
        for owner in {job.agent for job in jobs}:
            with self.ledger.working_on(owner) as alone:
                if not alone:
                    continue
                for job in jobs:
                    # Read again under the lock: another process may have changed it.
                    current = self.ledger.job(job.reference) if job.agent == owner else None
                    if current is not None and current.open and current.look_at <= time.time():
                        self._follower().follow(current)

    def make_jobs(self) -> bool:
        """Make jobs of waiting texts, as many as may be open. Return True if one was tried."""
        # Read first: a later commit requests a turn of its own.
        self.pending = set(self.indexer.target().pending_hashes().values())
        identity = self.supply.identity
        api = self.usable
        if api is None or self._provider_refuses() or self.ledger.suspension(identity) is not None:
            return False
        # In this order: documents that are not being read any more are among those that wait.
        gathering = self._gathering()
        waiting = self._waiting(identity)
        if len(waiting) < FEWEST_TEXTS:
            return False
        self.held = waiting
        if self._no_more_may_be_open() or (gathering and len(waiting) < api.limits.inputs):
            return False
        with self.ledger.working_on(self.agent) as alone:
            if not alone:
                return False
            waiting = self._without_paid(waiting)
            while len(waiting) >= FEWEST_TEXTS and self.ledger.suspension(identity) is None:
                taken = self._make_job(api, waiting)
                if not taken:
                    break
                waiting = [text_hash for text_hash in waiting if text_hash not in taken]
        self.held = self._waiting(identity)
        if len(self.held) < FEWEST_TEXTS or self.ledger.suspension(identity) is not None:
            self.held = frozenset()
        return True

    def next_look_seconds(self) -> float | None:
        """Return the seconds until the next look at the agent's own jobs; None without open jobs."""
        due = [job.look_at for job in self.ledger.jobs() if job.open and job.agent == self.agent]
        return max(min(due) - time.time(), SOONEST_SECONDS) if due else None

    def outcome(self) -> BatchTurn:
        """Return the result of this turn."""
        now = time.time()
        identity = self.supply.identity
        jobs = [job for job in self.ledger.jobs() if job.open and job.identity == identity]
        trusted = [
            job for job in jobs if job.agent == self.agent or now - max(job.looked_at, job.made_at) < NEGLECTED_SECONDS
        ]
        elsewhere: set[str] = set(self.held)
        if len(trusted) == len(jobs):
            elsewhere |= self.ledger.hashes(identity)
        else:
            elsewhere.update(*(self.ledger.hashes_in(job.reference) for job in trusted))
        again = self.next_look_seconds()
        if not elsewhere and (self.usable is None or self.ledger.suspension(identity) is not None):
            return BatchTurn(None, again)
        pending = set(self.pending)
        others = any(job.agent != self.agent for job in trusted) and not elsewhere.isdisjoint(pending)
        if self.held or others:
            again = min(again, self.poll_seconds) if again is not None else self.poll_seconds
        inline = pending - elsewhere
        return BatchTurn(inline, again, idle=again is not None and not self.held and not inline)

    def report(self) -> None:
        """Report the conditions that keep the agent from batch jobs."""
        provider = self.supply.choice.provider
        suspension = self.ledger.suspension(self.supply.identity)
        found = [
            Condition(ConditionCode.BATCH_JOB_UNREACHABLE, job.reference, params={"error": job.message})
            for job in self.jobs()
            if job.attempts >= MOST_SILENT_FAILURES
        ]
        if self.settings.enabled and provider is not None:
            if self.api is None:
                found.append(Condition(ConditionCode.BATCH_API_MISSING, provider.name))
            elif self.supply.cache is None:
                found.append(Condition(ConditionCode.BATCH_NEEDS_CACHE))
            elif suspension is not None:
                params: dict[str, Param] = {"reason": suspension.reason, "until": suspension.until}
                found.append(Condition(ConditionCode.BATCH_SUSPENDED, params=params))
        self.runtime.board.replace(_OF_JOBS, found, agent=self.agent)

    # Making a job

    def _provider_refuses(self) -> bool:
        return self.supply.coordination is not None and self.supply.coordination.limiter.hold() is not None

    def _no_more_may_be_open(self) -> bool:
        provider = self.supply.choice.provider
        same = [
            job for job in self.ledger.jobs() if job.open and provider is not None and job.account == provider.account
        ]
        return sum(job.identity == self.supply.identity for job in same) >= self.settings.concurrency

    def _waiting(self, identity: str) -> list[str]:
        """Return the texts that could go into a job, each once, the oldest first."""
        elsewhere = self.ledger.hashes(identity) | self.ledger.inline_hashes(identity)
        pending = dict.fromkeys(self.indexer.target().pending_hashes().values())
        return [text_hash for text_hash in pending if text_hash not in elsewhere]

    def _gathering(self) -> bool:
        """Return True if documents are still being read, for less than `GATHERING_SECONDS`."""
        marks = self.runtime.queue.marks
        waiting = marks.waiting(self.agent)
        if not waiting.backfill and not waiting.running:
            return False
        oldest = marks.pending(self.agent).oldest_at
        return oldest is not None and time.time() - oldest < GATHERING_SECONDS

    def _without_paid(self, waiting: Sequence[str]) -> list[str]:
        """Write the vectors that were paid for already. Return the texts without a vector."""
        store = self.indexer.target()
        found: set[str] = set()
        ids = ids_by_hash(store.pending_hashes())
        for group in grouped(iter(waiting), MAX_CHUNKS_PER_COMMIT):
            vectors = self.supply.lookup(group)
            vectors |= self.indexer.held_vectors([text_hash for text_hash in group if text_hash not in vectors])
            found |= vectors.keys()
            if vectors:
                store.write_vectors(
                    {chunk: (text_hash, v) for text_hash, v in vectors.items() for chunk in ids[text_hash]}
                )
        return [text_hash for text_hash in waiting if text_hash not in found]

    def _make_job(self, api: BatchApi, waiting: Sequence[str]) -> set[str]:
        """Record a job and submit it. Return its texts, none if no more jobs may be open."""
        provider = self.supply.choice.provider
        if provider is None:
            return set()
        origin = Origin(self.agent, provider.identity, provider.account, provider.name, provider.model)
        noted = self.ledger.note(origin, waiting[: api.limits.inputs], most_open=self.settings.concurrency)
        if noted is None:
            return set()
        reference, taken = noted
        job = self.ledger.job(reference)
        if job is not None:
            self._follower().send(job)
        return set(taken)

    def _follower(self) -> JobFollower:
        return JobFollower(self.runtime, self.indexer, self.ledger, self.api)
