"""Parts that commands share: the ports of the broker, readers of indexes, and coordination of a command's requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from memory.documents.agent_files import AgentFiles
from memory.embedding.breaker import Breaker, waste_path
from memory.embedding.consent import needs_consent
from memory.embedding.coordination import Coordination, alone
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.rate_limit import AccountState, RateLimiter
from memory.embedding.selection import ProviderChoice
from memory.index.fingerprint import Fingerprint, fingerprint
from memory.index.generations import Generations
from memory.index.provider import provider_of
from memory.status.run_files import keep_derived, server_pid
from memory.store.reader import StoreReader
from producers.reconciler import AgentComparison, Indexes, compare_agent
from schemas.conditions import Condition, ConditionCode, Param
from schemas.errors import BrokerUnavailable, RecalldError
from schemas.ports import SpooledUsage, Usage, UsageRecorder
from schemas.settings import AgentSettings, Settings

if TYPE_CHECKING:
    from workers.health.health_store import HealthStore
    from workers.queue.connection import BrokerClient
    from workers.queue.job_queue import BrokerJobQueue, EventQueue
    from workers.queue.names import Keys


#: Seconds in which an endpoint has to answer before a command says that it does not, and seconds for the thread.
PROBE_SECONDS, _SPARE_SECONDS = 1.5, 0.3

#: Account, model, and a step with its arguments (`workers.health.rate_limit`).
AccountStep: TypeAlias = tuple[str, str, str, Sequence[float | str]]


@dataclass(frozen=True, slots=True)
class BrokerSide:
    """Broker as producers and commands see it; as a context it is closed at the end."""

    client: BrokerClient
    keys: Keys
    queue: BrokerJobQueue
    health: HealthStore
    inbox: EventQueue

    def __enter__(self) -> BrokerSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


def open_broker(settings: Settings, *, answer_seconds: float | None = None, reads_only: bool = False) -> BrokerSide:
    """Open the broker's ports, without connecting. A call waits at most `answer_seconds` for an answer.

    With `reads_only` nothing is written to the home, which may be read-only.
    """
    # Here: a command that needs no broker must not wait for these modules.
    from workers.health.health_store import HealthStore
    from workers.queue.connection import PATIENT_SECONDS, connect, namespace
    from workers.queue.job_queue import BrokerJobQueue, EventQueue
    from workers.queue.names import Keys

    client = connect(settings, answer_seconds=PATIENT_SECONDS if answer_seconds is None else answer_seconds)
    keys = Keys(namespace(settings, reads_only=reads_only))
    return BrokerSide(
        client=client,
        keys=keys,
        queue=BrokerJobQueue(client, keys),
        health=HealthStore(client, keys),
        inbox=EventQueue(client, keys),
    )


class CommandRequests(UsageRecorder):
    """Coordination of the requests that a command itself sends to providers (a `Coordinate`).

    Their usage goes to the spool, from which producers count it. A broker that runs shares the rate limiter; none is
    started. `failures` are steps that no broker took.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.failures: list[AccountStep] = []
        self._spent: list[Mapping[str, Usage]] = []

    def __call__(self, provider: EmbeddingProvider) -> Coordination:
        home, account, model = self._settings.home, provider.account, provider.model
        if not account:
            return alone(provider)
        waste = Breaker(waste_path(home, provider), keep=keep_derived)
        if self._settings.broker.url is not None or server_pid(home) is not None:
            from workers.claims import shared_limiter
            from workers.queue.connection import IMPATIENT_SECONDS, connect

            client = connect(self._settings, answer_seconds=IMPATIENT_SECONDS)
            limiter = shared_limiter(client, provider, waste=waste)
        else:

            def take(step: str, *arguments: float | str) -> AccountState:
                if step in ("refused", "failed"):
                    self.failures.append((account, model, step, arguments))
                raise BrokerUnavailable("no broker runs")

            limiter = RateLimiter(provider.limits, shared=take, breaker=waste)
        return Coordination(limiter, usage=self)

    def record_usage(self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False) -> None:
        from producers.spool import write_usage

        self._spent.append(agents)
        with suppress(OSError):  # a home that cannot be written counts nothing
            write_usage(self._settings.home, SpooledUsage(usage, agents, queries=queries, day=datetime.now(UTC).date()))

    def spent_by(self, agent: str) -> Sequence[Usage]:
        """Return an agent's usage in each request."""
        return [shares[agent] for shares in self._spent if agent in shares]


class AgentIndex:
    """Index of one agent as commands see it: its generations, for reading, and the provider of its documents.

    With `rebuild`, provider and fingerprint are those of an index that is built anew on purpose.
    """

    def __init__(self, settings: Settings, agent: AgentSettings, *, rebuild: bool = False) -> None:
        self.settings = settings
        self.agent = agent
        self._rebuild = rebuild
        self.generations = Generations.of(settings, agent.id)

    @property
    def choice(self) -> ProviderChoice:
        """Choice of the embedding provider, which changes when a fallback takes over."""
        return provider_of(self.settings, self.agent, rebuild=self._rebuild)

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity that the index should have."""
        return fingerprint(self.agent, self.choice.identity)

    def target(self) -> StoreReader | None:
        """Open the generation to compare with the disk; see `Generations.target_reader`."""
        return self.generations.target_reader(self.fingerprint.digest)


class EndpointProbes:
    """Look, once for each endpoint of some agents, whether it answers; begun at once, in threads of their own."""

    def __init__(self, settings: Settings, agents: Iterable[AgentSettings]) -> None:
        self._conditions: list[Condition] = []
        providers = (AgentIndex(settings, agent).choice.provider for agent in agents if agent.enabled)
        by_account = {provider.account: provider for provider in providers if provider is not None and provider.account}
        # A name that the system does not resolve in time must not hold up the end of the process.
        self._threads = [Thread(target=self._probe, args=(each,), daemon=True) for each in by_account.values()]
        self._until = time.monotonic() + PROBE_SECONDS
        for thread in self._threads:
            thread.start()

    def unreachable(self, *, waits: bool) -> list[Condition]:
        """Return a condition for each endpoint without an answer, once; with `waits`, when its time is up."""
        for thread in self._threads if waits else ():
            thread.join(max(0.0, self._until + _SPARE_SECONDS - time.monotonic()))
        count = len(self._conditions)
        conditions, self._conditions[:count] = self._conditions[:count], []
        return conditions

    def _probe(self, provider: EmbeddingProvider) -> None:
        try:
            provider.reach(seconds=PROBE_SECONDS)
        except RecalldError as error:
            params: dict[str, Param] = {"error": str(error)}
            self._conditions.append(Condition(ConditionCode.PROVIDER_UNREACHABLE, provider.name, params=params))
        finally:
            provider.close()


@contextmanager
def closed(reader: StoreReader | None) -> Iterator[StoreReader | None]:
    """Close a reader, if there is one, at the end of the block."""
    try:
        yield reader
    finally:
        if reader is not None:
            reader.close()


def indexes_of(settings: Settings) -> Indexes:
    """Return the functions by which `reconcile` opens the indexes of agents."""
    return Indexes(
        indexed=lambda agent: AgentIndex(settings, agent).target(),
        answering=lambda agent: Generations.of(settings, agent.id).open_reader(),
        building=lambda agent: Generations.of(settings, agent.id).next() is not None,
        asks=lambda agent: needs_consent(settings, agent, provider_of(settings, agent).provider),
    )


def compare(settings: Settings, agent: AgentSettings, *, records_folders: bool = True) -> AgentComparison:
    """Compare an agent's files with its generations."""
    files = AgentFiles.of(settings, agent)
    return compare_agent(agent, files, indexes_of(settings), records_folders=records_folders)
