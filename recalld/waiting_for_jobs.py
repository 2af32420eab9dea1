"""What `recalld index` has to know of batch jobs: how far they are, and whether they are all that is left."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Stage, ledger_path
from memory.index.provider_fallback import provider_of
from memory.store.reader import StoreReader
from schemas.settings import AgentSettings, Settings

#: Seconds between two looks into the ledger.
_LOOK_SECONDS = 0.5


class JobsWait:
    """Looks at the batch jobs of some agents. `begun` (Unix seconds) is when the command began."""

    def __init__(self, settings: Settings, agents: Sequence[AgentSettings]) -> None:
        self._settings = settings
        self._ids = {agent.id for agent in agents if agent.remote.batch.enabled}
        self._path = ledger_path(settings.home)
        self._begun = time.time()
        self._looked_at = 0.0
        self._jobs: list[BatchJob] = []

    def progress(self) -> str:
        """Where the open jobs are and how far; "" without any."""
        jobs = [job for job in self._open_jobs() if job.agent in self._ids]
        if not jobs:
            return ""
        providers = ", ".join(sorted({job.provider for job in jobs}))
        done, texts = sum(job.completed for job in jobs), sum(job.texts for job in jobs)
        return f"{len(jobs)} batch job{'s' * (len(jobs) != 1)} at {providers} {done:,}/{texts:,}"

    def are_all_that_is_left(self, agent: AgentSettings, reader: StoreReader | None) -> bool:
        """Whether every chunk without a vector is in a job that somebody looked at since the command began.

        Never where the settings say that jobs are waited for.
        """
        if agent.id not in self._ids or agent.remote.batch.wait or reader is None:
            return False
        provider = provider_of(self._settings, agent).provider
        jobs = [job for job in self._open_jobs() if provider is not None and job.identity == provider.identity]
        if not any(job.agent == agent.id for job in jobs) or not all(self._is_running(job) for job in jobs):
            return False
        with BatchLedger(self._path) as ledger:
            at_provider = ledger.hashes(jobs[0].identity)
        return at_provider.issuperset(reader.pending_hashes().values())

    def _is_running(self, job: BatchJob) -> bool:
        return job.stage is Stage.RUNNING and max(job.looked_at, job.made_at) >= self._begun

    def _open_jobs(self) -> Iterable[BatchJob]:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS and self._ids and self._path.exists():
            self._looked_at = now
            with BatchLedger(self._path) as ledger:
                self._jobs = [job for job in ledger.jobs() if job.open]
        return self._jobs
