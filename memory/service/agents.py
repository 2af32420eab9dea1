"""Agents of one service: their search managers, and the state of their indexes at the last probe."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING

import structlog

from memory.backends.backend import BUILTIN
from memory.backends.backend_fallback import BackendSlots, FallbackMemory
from memory.backends.registry import with_backend
from memory.embedding.coordination import Coordinate, alone
from memory.embedding.selection import choose_provider
from memory.index.generations import Generations
from memory.search.manager import SearchManager, UnavailableMemory, get_search_manager
from memory.search.owners_memory import OwnersMemory, enabled_agents
from memory.search.query_vectors import QueryVectors
from memory.search.resources import SearchResources
from memory.search.searchable import SearchableMemory
from memory.status.home import HomeSizes, home_sizes, read_only_broker, whole_status
from memory.status.processes import known_processes, shared_conditions
from schemas.agents import DEFAULT_TENANT, Scope
from schemas.conditions import Condition, ConditionCode
from schemas.errors import RecalldError, Transient
from schemas.ports import EventInbox, PendingReader
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, FleetState, IndexCounts, Probes, Status

if TYPE_CHECKING:
    from memory.store.postgres.directory import FleetDirectory

_log = structlog.get_logger(__name__)

#: Seconds that a search waits for a model that is still loading.
MODEL_SECONDS = 5.0

#: Seconds for which a status is cached.
STATUS_CACHE_SECONDS = 1.0

#: Seconds that one request about all agents may spend on opening changed indexes. The next request opens the rest.
LOOKING_SECONDS = 1.0

#: Agents that are opened at the start. The others are opened for their first request.
WARM_AGENTS = 8

#: Agents of a fleet that stay open, and the name of a stand-in that answers while the store does not.
MOST_SERVED, STORE_AWAY = 512, "-"

_AWAY = "the store of the fleet does not answer; searches answer again once PostgreSQL does"

#: Agents that one readiness probe looks at. The background task looks at all of them.
AGENTS_AT_A_TIME = 10


@dataclass(frozen=True, slots=True)
class Probe:
    """State of an index at its last probe: `problem` if it cannot be opened, else its counts, None without an index.

    `revision` differs after every commit. `looked` is False before the first probe.
    """

    looked: bool = True
    problem: str | None = None
    counts: IndexCounts | None = None
    dead_letters: int = 0
    revision: str = ""


class ServedAgent:
    """Memory of one agent: its manager, or the `reason` for not having one, and the last probe of its index."""

    def __init__(self, settings: AgentSettings, manager: SearchManager | None, reason: str | None) -> None:
        self.settings = settings
        self.agent = settings.id
        self.manager = manager
        self.reason = reason
        self.builtin: SearchableMemory = manager or UnavailableMemory(settings, reason or "there is no such memory")
        self.probe = Probe(looked=False)
        self.probed_at = 0.0
        self._looks: object = None
        self._status: tuple[float, AgentStatus] | None = None

    def look(self, *, until: float) -> bool:
        """Probe the index if it may have changed since the last probe. Return False if the time is up before that."""
        if self.manager is None:
            return True
        looks: object = None
        try:
            # Before the probe: a commit meanwhile is in its result, or makes the next probe read again.
            looks = self.manager.generations.looks()
            if looks is not None and looks == self._looks:
                return True
            if time.monotonic() > until:
                return False
            with self.manager.reading() as reader:
                probe = Probe()
                if reader is not None:
                    revision = blake2s(repr(reader.change_token()).encode(), digest_size=8).hexdigest()
                    letters = len(reader.dead_letters())
                    probe = Probe(counts=reader.counts(), dead_letters=letters, revision=revision)
        except RecalldError as error:
            looks, probe = None, Probe(problem=str(error))
            # Log it once: a client may probe every two seconds.
            if self.probe.problem != probe.problem:
                _log.warning("index_probe_failed", agent=self.agent, exc_info=True)
        self._looks, self.probe, self.probed_at = looks, probe, time.monotonic()
        return True

    def status(self, *, deep: bool, fresh: bool) -> AgentStatus | None:
        """Return the agent's status, at most a second old; `deep` and `fresh` always look."""
        cached = self._status
        if self.manager is None or (not deep and not fresh and cached is not None and time.monotonic() < cached[0]):
            return cached[1] if cached is not None else None
        status = self.manager.status(deep=deep)
        self._status = time.monotonic() + STATUS_CACHE_SECONDS, status
        return status


class FleetAgents(OrderedDict[str, ServedAgent]):
    """Agents of a fleet that were asked for last, opened when they are. Thread-safe."""

    def __init__(self, fleet: FleetDirectory, serve: Callable[[AgentSettings], ServedAgent], away: ServedAgent) -> None:
        super().__init__()
        self._fleet, self._serve, self._away = fleet, serve, away
        self._lock = threading.Lock()

    def __missing__(self, agent_id: str) -> ServedAgent:
        return self._away if agent_id == STORE_AWAY else self.open(agent_id)

    def open(self, agent_id: str) -> ServedAgent:
        """Return an agent with its present settings. Raises KeyError, and the errors of the store."""
        settings = self._fleet.agent(agent_id)
        served = self.get(agent_id)
        if served is None or served.manager is None or served.settings != settings:
            served = self._serve(settings)
        with self._lock:
            # Running searches keep an agent that is dropped here; `OpenIndexes` closes its index.
            self[agent_id] = served
            self.move_to_end(agent_id)
            if len(self) > MOST_SERVED:
                self.popitem(last=False)
        return served


class ServedAgents:
    """Agents of a service. Thread-safe.

    `coordinate` returns the limits that queries share with other users of their embedding provider.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        pending: PendingReader | None,
        inbox: EventInbox | None,
        coordinate: Coordinate = alone,
    ) -> None:
        self.settings = settings
        self.queue = pending or PendingReader()
        self.resources = SearchResources(settings, coordinate=coordinate, model_wait_seconds=MODEL_SECONDS)

        def serve(agent: AgentSettings) -> ServedAgent:
            of_agent = settings.model_copy(update={"agents": (agent,)})
            return ServedAgent(
                agent, *get_search_manager(of_agent, agent.id, resources=self.resources, pending=pending, inbox=inbox)
            )

        #: By agent id, in the order of the settings.
        self.served = {agent.id: serve(agent) for agent in settings.agents if settings.store.url is None}
        self.fleet: FleetDirectory | None = None
        #: Model of a fleet's replica that is not loaded yet.
        self._model: QueryVectors | None = None
        if settings.store.url is not None:
            from memory.store.postgres.directory import FleetDirectory

            self.fleet = FleetDirectory.of(settings)
            with suppress(Transient):  # a store that is away comes back; any other fault ends the start
                self.fleet.page(DEFAULT_TENANT, limit=1)
            by_default = self.fleet.settings_of(Scope(DEFAULT_TENANT, "away"))
            away = ServedAgent(by_default, None, _AWAY)
            vectors_enabled = settings.store.vector.enabled
            provider = choose_provider(by_default, settings.credentials, vectors_enabled=vectors_enabled).provider
            if provider is not None and not provider.account:
                self._model = self.resources.vectors_of(provider)
            self.served = FleetAgents(self.fleet, serve, away)
        self._backends = BackendSlots(settings)
        self._looking = threading.Lock()
        self._sizes: HomeSizes | None = None

    def memory(self, agent: str | None) -> SearchableMemory:
        """Return the memory that answers for an agent: recalld's own, or another backend with that as its fallback.

        None is the owner, who searches all agents that are not switched off.
        """
        if agent is None:
            searched = [agent.id for agent in enabled_agents(self.settings)]
            return OwnersMemory({agent: self.memory(agent) for agent in searched}, self.settings)
        served = self.served[agent]
        return self._backend_of(served) or served.builtin

    def warm_up(self) -> None:
        """Load models, open the agents that were used last, and log the problems in one line.

        A provider with an account gets no request: nothing is paid for before a question.
        """
        self.resources.warm_up()
        enabled = [served for served in self.served.values() if served.settings.enabled]
        used_at = {served: Generations.of(self.settings, served.agent).used_at() for served in enabled}
        recent = sorted(enabled, key=used_at.__getitem__)[-WARM_AGENTS:]
        try:
            problems = {served.agent: problem for served in recent if (problem := self._problem_of(served)) is not None}
        except (RecalldError, RuntimeError) as error:  # status has the reason; or the service is closed by now
            _log.info("memory_not_warmed_up", reason=str(error))
            return
        write = _log.warning if problems else _log.info
        write("memory_warmed_up", agents=len(recent), not_well=problems or None)

    def _problem_of(self, served: ServedAgent) -> str | None:
        """Return the reason why an agent's backend, vectors or embedding do not work, after one use of each."""
        backend, manager = self._backend_of(served), served.manager
        if backend is not None and (problem := backend.status().problem) is not None:
            return problem
        if manager is None:
            return served.reason
        with manager.reader.lease() as reader:
            if reader is not None and reader.vector_reason is not None:
                return reader.vector_reason
        choice = manager.embedder.choice
        if choice.provider is None:
            return choice.error
        if not choice.provider.account:
            try:
                choice.provider.embed_query("memory")
            except RecalldError as error:
                return str(error)
        return None

    def status(
        self, agents: Sequence[str], *, deep: bool = False, fresh: bool = False, fleet: FleetState | None = None
    ) -> Status:
        """Return the status of these agents, with the sums. Sizes in the home are those of the last `look_around`."""
        looks = (self._status_of(self._opened(agent), deep=deep, fresh=fresh) for agent in agents)
        statuses = tuple(status for status in looks if status is not None)
        sizes = self._sizes or self._look_at_home()
        return whole_status(self.settings, statuses, self.queue, sizes=sizes, fleet=fleet)

    def look_around(self) -> None:
        """Look up the figures that cost more with every agent: the state of each index, and the sizes in the home."""
        # One by one: a readiness probe waits for one agent at most.
        for agent in list(self.served) if self.fleet is None else ():
            self.probed([agent])
        self._look_at_home()

    def not_ready(self) -> str | None:
        """Return the reason for which searches cannot be answered, None when they can.

        Looks at `AGENTS_AT_A_TIME` agents: those with a problem, then those that were never looked at. The others keep
        the state that `look_around` found.
        """
        if self.fleet is not None:
            try:
                self.fleet.page(DEFAULT_TENANT, limit=1)
            except RecalldError as error:
                return str(error)
            if self._model is not None and not self._model.is_loaded:
                return "the embedding model is still loading"
            self._model = None  # if it cannot be loaded, a later attempt is no reason
        openable = [served for served in list(self.served.values()) if served.manager is not None]
        unprobed = [served.agent for served in openable if not served.probe.looked]
        self.probed([*self._problems(), *unprobed][:AGENTS_AT_A_TIME])
        return next((f"{agent}: {problem}" for agent, problem in self._problems().items()), None)

    def probed(self, agents: Sequence[str]) -> list[ServedAgent]:
        """Return these agents after a look into their changed indexes, as far as time allows."""
        served_agents = [self._opened(agent) for agent in agents]
        # One at a time: two would look at the same indexes.
        with self._looking:
            until = time.monotonic() + LOOKING_SECONDS
            # The next call begins with the agents that this call does not reach.
            for served in sorted(served_agents, key=lambda served: served.probed_at):
                before = served.probe
                if not served.look(until=until):
                    break
                is_changed = before.looked and served.probe.revision != before.revision
                if is_changed and (backend := self._backend_of(served)) is not None:
                    backend.sync()
        return served_agents

    def shared_conditions(self) -> tuple[Condition, ...]:
        """Return the conditions of the queue and of the processes that work for all agents."""
        if (refusal := self.queue.broker().refusal) is not None:
            return (read_only_broker(refusal),)
        return tuple(shared_conditions(known_processes(self.queue, wait=None), now=time.time()))

    def close(self) -> None:
        """Close all managers and their shared resources."""
        self._backends.close()
        for served in self.served.values():
            if served.manager is not None:
                served.manager.close()
        self.resources.close()

    def _opened(self, agent: str) -> ServedAgent:
        """Return an agent, of a fleet with its present settings."""
        return self.served.open(agent) if isinstance(self.served, FleetAgents) else self.served[agent]

    def _backend_of(self, served: ServedAgent) -> FallbackMemory | None:
        if served.settings.backend == BUILTIN:
            return None
        return self._backends.memory(served.settings, lambda: served.builtin)

    def _status_of(self, served: ServedAgent, *, deep: bool, fresh: bool) -> AgentStatus | None:
        backend = self._backend_of(served)
        memory, probes = backend or served.manager, None
        if deep and memory is not None:
            # First: the status has the failure of a probe.
            embedding, vectors = memory.probe_embedding_availability(), memory.probe_vector_availability()
            probes = Probes(embedding=embedding, vectors=vectors)
        status = served.status(deep=deep, fresh=fresh)
        if status is not None and probes is not None:
            status = status.model_copy(update={"probes": probes})
            codes = {trouble.code for trouble in status.troubles}
            if served.manager is not None and ConditionCode.DOCUMENTS_UNQUEUED in codes:
                served.manager.sync()
        return status if status is None or backend is None else with_backend(status, backend.status())

    def _look_at_home(self) -> HomeSizes:
        self._sizes = home_sizes(self.settings, self.queue)
        return self._sizes

    def _problems(self) -> dict[str, str]:
        """Return agents and reasons for which their indexes could not be opened."""
        problems = ((agent, served.probe.problem) for agent, served in list(self.served.items()))
        return {agent: problem for agent, problem in problems if problem is not None}
