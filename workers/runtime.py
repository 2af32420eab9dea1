"""Resources of a worker process: its queue, its health store, and the open indexes of its agents."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial

import structlog

from memory.documents.agent_files import AgentFiles
from memory.documents.imports import backfill_halt
from memory.embedding.batch_jobs.batch_ledger import choice_path, sent_in_jobs, with_batch_jobs
from memory.embedding.batch_jobs.batch_step import BATCH_TIMING, BatchTiming
from memory.embedding.breaker import FIRST_PAUSE_SECONDS
from memory.embedding.cache import EmbeddingCache
from memory.embedding.consent import needs_consent
from memory.embedding.coordination import UNUSUAL_SECONDS, Coordinate, alone
from memory.embedding.sender import PATIENCE_SECONDS
from memory.embedding.supply import EmbeddingSupply
from memory.index.fingerprint import fingerprint
from memory.index.generation_writer import GenerationWriter, IndexOwner
from memory.index.generations import Generations
from memory.index.indexer import Indexer
from memory.index.provider import addresses_path, provider_of, settle_address, successor, written_provider
from memory.index.readers import OpenIndexes
from memory.status.run_files import USAGE_PATH, write_derived
from schemas.agents import Scope, tenant_of
from schemas.conditions import OF_PROVIDER
from schemas.errors import RecalldError
from schemas.settings import AgentDirectory, AgentSettings, Settings
from workers.background import Courtesy
from workers.failure_policy import LOST_AFTER_SECONDS
from workers.health.health_store import HealthStore
from workers.health.heartbeat import BEAT_SECONDS
from workers.queue.counters import today_utc
from workers.queue.job_queue import BrokerJobQueue

log = structlog.get_logger(__name__)

#: Agents whose indexes stay open. Opening another one costs about a millisecond.
MAX_OPEN_AGENTS = 64

#: Seconds for requests in flight at the end. A vector that comes later is paid again.
KEEPING_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of a worker process in seconds."""

    #: A job leaves the rest to the end of the queue: agents take turns.
    turn: float = 10.0
    #: The same while messages of other agents wait in the lane.
    shared_turn: float = 1.0
    #: A job waits for its provider.
    patience: float = PATIENCE_SECONDS
    #: Pause after useless answers of a provider.
    first_pause: float = FIRST_PAUSE_SECONDS
    #: A request without an answer is reported.
    late_answer: float = UNUSUAL_SECONDS
    #: After passing failures for that long a fallback provider takes over.
    lost_provider: float = LOST_AFTER_SECONDS
    #: Documents that this process leaves to others are reported: there may be no others.
    untaken: float = 10.0
    #: Between two heartbeats.
    heartbeat: float = BEAT_SECONDS
    batch: BatchTiming = BATCH_TIMING


#: Times outside of tests.
TIMING = Timing()


class Runtime:
    """Resources of jobs beyond their arguments. `coordinate` returns the coordination with other processes."""

    def __init__(
        self,
        settings: Settings,
        queue: BrokerJobQueue,
        health: HealthStore,
        *,
        coordinate: Coordinate = alone,
        timing: Timing = TIMING,
    ) -> None:
        self.settings = settings
        self.directory: AgentDirectory = settings
        self._shared_reads: Callable[[Scope], AbstractContextManager[None]] = lambda _: nullcontext()
        if settings.store.url is not None:
            from memory.store.postgres.connection import Database
            from memory.store.postgres.directory import FleetDirectory

            self.directory = FleetDirectory.of(settings)
            self._shared_reads = Database.of(settings.store).shared_reads
        self.timing = timing
        self.queue = queue
        self.health = health
        #: Set when the process is to end: jobs give back documents that they have not begun.
        self.stopping = threading.Event()
        self.courtesy = Courtesy(queue, self.stopping)
        self._coordinate = coordinate
        self._owner = IndexOwner.of(settings)
        #: Cache of each tenant; None where the settings want none.
        self._caches: dict[str, EmbeddingCache | None] = {}
        self._supplies: dict[tuple[str, str | None, str], EmbeddingSupply] = {}
        self._lock = threading.Lock()
        self._indexers: OpenIndexes[Indexer] = OpenIndexes(MAX_OPEN_AGENTS)

    @contextmanager
    def indexer(self, agent_id: str) -> Iterator[Indexer]:
        """Lend an agent's indexer; it is not closed while lent. Raises KeyError for an unknown agent."""
        agent = self.directory.agent(agent_id)
        if choice_path(self.settings.home, agent_id).exists():
            agent = with_batch_jobs(agent)
        with (
            self._shared_reads(Scope.of(agent_id)),
            self._indexers.lease(agent_id, partial(self._open, agent), partial(self._token, agent)) as indexer,
        ):
            yield indexer

    def owns(self) -> bool:
        """Return True if this process owns the indexes of the home."""
        return self._owner.owns()

    def halt(self, agent_id: str) -> str | None:
        """Return the state in which a user halted the agent's backfill, as `backfill_halt` does."""
        return backfill_halt(self.settings.home, agent_id)

    def settle_address(self, agent_id: str) -> None:
        """Compare another address of the index's model, if this process owns the indexes; see `settle_address`."""
        if self.owns():
            settle_address(self.settings, self.directory.agent(agent_id), self._coordinate)

    def spent_budget(self, agent_id: str) -> int | None:
        """Return the tokens a day of the agent's tenant if they are used up today (UTC), None otherwise."""
        budget = self.directory.share(agent_id).tokens_a_day
        if budget is None:
            return None
        usages = self.health.usage(tenant_of(agent_id), day=today_utc())
        return budget if sum(usage.tokens for usage in usages) >= budget else None

    def forget(self, agent_id: str) -> None:
        """Close an agent's index after its last user, so that the next job opens it anew."""
        self._indexers.forget(agent_id)

    def take_over(self, agent_id: str, *, reason: str) -> bool:
        """Let the agent's configured fallback provider take over. Return False if there is none or it did already.

        The owner of the indexes decides it; another process returns False. It begins a generation. The job that looks
        after its completion marks the documents.

        Raises:
            NoRoom, StoreCorrupt: see `GenerationWriter.begin`.
        """
        agent = self.directory.agent(agent_id)
        succession = successor(self.settings, agent, reason=reason) if self._owner.owns() else None
        if succession is None:
            return False
        fallback, takeover = succession
        wanted = fingerprint(agent, fallback.identity)
        GenerationWriter.at(self.settings, agent_id, owner=self._owner).begin(wanted, takeover=takeover)
        log.warning("fallback_took_over", agent=agent_id, fallback=fallback.name, reason=reason)
        self.health.replace(OF_PROVIDER, (), agent=agent_id)
        self.queue.request_completion(agent_id)
        return True

    def flush_caches(self) -> None:
        """Write embeddings that waited for a store that was away, full or busy; renew the claims on the others."""
        for cache in filter(None, list(self._caches.values())):
            cache.flush()
        for supply in list(self._supplies.values()):
            if supply.batcher is not None:
                supply.batcher.renew_claims()

    def note_usage(self) -> None:
        """Keep the usage for a status without the broker. Raises OSError."""
        agents, usages = ["*", *(agent.id for agent in self.settings.agents)], self.health.usage
        days = {"ever": None, str(today_utc()): today_utc()}
        noted = {
            name: {agent: [*map(asdict, usages(agent, day=day))] for agent in agents} for name, day in days.items()
        }
        if noted["ever"]["*"]:  # the broker answers, and did not lose its data
            write_derived(self.settings.home / USAGE_PATH, noted)

    def maintain_cache(self) -> bool:
        """Shrink the embedding caches to their bound, and truncate a log. Return True if there was work."""
        return sum(cache.maintain() for cache in list(self._caches.values()) if cache is not None) > 0

    def close(self, *, seconds: float = KEEPING_SECONDS, in_use: bool = False) -> None:
        """Close everything. Embeddings in flight have `seconds`, at most `KEEPING_SECONDS`, to reach the cache.

        With `in_use`, a thread still uses indexes and cache: they stay open until the process ends.
        """
        supplies = list(self._supplies.values())
        until = time.monotonic() + min(max(seconds, 0.0), KEEPING_SECONDS)
        for batcher in filter(None, (supply.batcher for supply in supplies)):
            batcher.stop()
        for supply in supplies:
            supply.close(timeout_seconds=max(0.0, until - time.monotonic()))
        if in_use:
            return
        self._indexers.close()
        self._owner.close()
        for cache in filter(None, self._caches.values()):
            cache.close()

    def warm_up(self) -> None:
        """Load the models of this process's agents before the first job."""
        try:
            for agent in self.settings.agents:
                supply = self._supply(agent)
                if supply.slow and supply.provider is not None:
                    supply.provider.warm_up()
        except (RecalldError, OSError) as error:
            # The first job meets the same error and reports it.
            log.warning("warm_up_failed", error=str(error))

    def _open(self, agent: AgentSettings) -> Indexer:
        if (lack := provider_of(self.settings, agent).error) is not None:
            with suppress(RecalldError):  # the job meets the same error and reports it
                self.take_over(agent.id, reason=lack)
        generations = GenerationWriter.at(self.settings, agent.id, owner=self._owner)
        files, supply = AgentFiles.of(self.settings, agent), self._supply(agent)
        return Indexer(
            agent,
            files=files,
            generations=generations,
            supply=supply,
            holds=needs_consent(self.settings, agent, supply.provider),
            may_buy=lambda: self.spent_budget(agent.id) is None,
        )

    def _token(self, agent: AgentSettings) -> object:
        """Return a value that changes with the generations, the settings, the owner and comparisons of addresses."""
        path = addresses_path(self.settings.home)
        noted_at = path.stat().st_mtime_ns if path.exists() else 0
        return Generations.of(self.settings, agent.id).tokens(), self._owner.owns(), agent, noted_at

    def _supply(self, agent: AgentSettings) -> EmbeddingSupply:
        choice = (provider_of if self._owner.owns() else written_provider)(self.settings, agent)
        # Two keys may mean the same vectors, but not the same limits and bills. No request mixes tenants.
        tenant = Scope.of(agent.id).tenant
        key = (choice.identity, choice.provider.account if choice.provider is not None else choice.error, tenant)
        with self._lock:
            if key not in self._supplies:
                if tenant not in self._caches:
                    self._caches[tenant] = EmbeddingCache.of(self.settings, tenant)
                self._supplies[key] = EmbeddingSupply(
                    choice.provider,
                    self._caches[tenant],
                    identity=choice.identity,
                    error=choice.error,
                    coordinate=self._coordinate,
                    sent=partial(sent_in_jobs, self.settings, tenant),
                    patience_seconds=self.timing.patience,
                )
            return self._supplies[key]
