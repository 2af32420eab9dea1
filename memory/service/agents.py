"""Managers of one service, made for the first request of each agent, and their status of a second ago."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2s

import structlog

from memory.embedding.coordination import Coordinate, alone
from memory.index.generations import Generations, Looks
from memory.search.freshness import GuardedPendingReader
from memory.search.manager import SearchManager, UnavailableMemory, get_search_manager
from memory.search.resources import SearchResources
from memory.search.tools import SearchableMemory
from memory.service.metrics import AgentNumbers, ProcessNumbers
from memory.status.home import HomeSizes, home_sizes
from memory.status.processes import known_processes, outdated_conditions, process_conditions
from memory.status.summary import read_only_broker, whole_status
from memory.store.reader import IndexCounts, StoreReader
from schemas.conditions import Condition
from schemas.errors import RecalldError
from schemas.ports import EventInbox, PendingReader
from schemas.settings import Settings
from schemas.status import AgentStatus, Status
from schemas.version import recalld_version

_log = structlog.get_logger(__name__)

#: Seconds for which a status also answers the next requests.
STATUS_KEPT_SECONDS = 1.0

#: Seconds that one request about all agents may spend on opening changed indexes; the next one goes on there.
LOOKING_SECONDS = 1.0

#: Agents that one readiness probe looks at; the background looks at all.
AGENTS_AT_A_TIME = 10


@dataclass(frozen=True, slots=True)
class Figures:
    """Row counts of an index. `revision` differs after every commit."""

    counts: IndexCounts
    dead_letters: int
    revision: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe: `problem` is the reason why the index cannot be opened; without an index `figures` is None."""

    problem: str | None = None
    figures: Figures | None = None


class IndexProbe:
    """Figures of one agent's index, read once after each change. Thread-safe: two threads may read the same."""

    def __init__(
        self,
        agent: str,
        generations: Generations,
        reading: Callable[[], AbstractContextManager[StoreReader | None]],
    ) -> None:
        self._agent = agent
        self._generations = generations
        self._reading = reading
        self._last: tuple[Looks, ProbeResult] | None = None
        self._problem: str | None = None

    def last(self) -> ProbeResult | None:
        """Return the result of the last probe; None without one, or if the index may have changed since."""
        try:
            looks = self._generations.looks()
        except RecalldError as error:
            return ProbeResult(problem=str(error))
        last = self._last
        return last[1] if last is not None and last[0] == looks and looks.settled else None

    def read(self) -> ProbeResult:
        """Open the index, if it is not open, and read its figures."""
        try:
            # First, so that a commit during the probe is in its result, or makes the next one read again.
            looks = self._generations.looks()
            with self._reading() as reader:
                figures = None
                if reader is not None:
                    revision = blake2s(repr(reader.change_token()).encode(), digest_size=8).hexdigest()
                    figures = Figures(reader.counts(), len(reader.dead_letters()), revision)
        except RecalldError as error:
            # Log it once: a client may probe every two seconds.
            if str(error) != self._problem:
                _log.warning("index_probe_failed", agent=self._agent, exc_info=True)
            self._problem = str(error)
            return ProbeResult(problem=str(error))
        self._problem = None
        result = ProbeResult(figures=figures)
        self._last = (looks, result)
        return result


class ServedAgents:
    """Agents of a service. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        *,
        pending: PendingReader | None,
        inbox: EventInbox | None,
        coordinate: Coordinate = alone,
    ) -> None:
        self._settings = settings
        #: The queue, behind the only circuit breaker of the service.
        self.queue = GuardedPendingReader(pending)
        self._has_queue = pending is not None
        self._inbox = inbox
        self._resources = SearchResources(settings, coordinate=coordinate)
        self._lock = threading.Lock()
        self._managers: dict[str, tuple[SearchManager | None, str | None]] = {}
        self._status: dict[str, tuple[float, AgentStatus]] = {}
        self._looking = threading.Lock()
        self._probes: dict[str, IndexProbe] = {}
        self._probed: dict[str, ProbeResult] = {}
        self._looked_at: dict[str, float] = {}
        self._sizes: HomeSizes | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """Return all agent ids, in the order of the settings."""
        return tuple(agent.id for agent in self._settings.agents)

    def manager(self, agent: str) -> tuple[SearchManager | None, str | None]:
        """Return the agent's manager, or None and the reason."""
        with self._lock:
            known = self._managers.get(agent)
            if known is None:
                queue = self.queue if self._has_queue else None
                known = get_search_manager(
                    self._settings, agent, resources=self._resources, pending=queue, inbox=self._inbox
                )
                self._managers[agent] = known
                if (manager := known[0]) is not None:
                    self._probes[agent] = IndexProbe(agent, manager.generations, manager.reading)
        return known

    def memory(self, agent: str) -> SearchableMemory:
        """Return the memory of one of `ids`; without a manager, one whose answers give the reason."""
        manager, reason = self.manager(agent)
        return manager or UnavailableMemory(self._settings.agent(agent), reason or "there is no such memory")

    def warm_up(self) -> None:
        """Choose every agent's provider and start loading models, in the background."""
        for agent in self.ids:
            self.manager(agent)
        self._resources.warm_up()

    def status(self, agents: Sequence[str], *, deep: bool) -> Status:
        """Return the status of these agents, at most a second old; `deep` always looks.

        Sizes in the home are those of the last `look_around`.
        """
        found = tuple(status for agent in agents if (status := self._agent_status(agent, deep=deep)) is not None)
        sizes = self._sizes or self._look_at_home()
        return whole_status(self._settings, found, self.queue if self._has_queue else None, sizes=sizes)

    def look_around(self) -> None:
        """Look up what costs more with every agent: the state of each index, and the sizes in the home.

        Raises:
            RecalldError: the embedding cache cannot be read.
        """
        ids = self.ids
        # In parts: a readiness probe meanwhile waits for one part.
        for start in range(0, len(ids), AGENTS_AT_A_TIME):
            self._look(ids[start : start + AGENTS_AT_A_TIME])
        self._look_at_home()

    def _look_at_home(self) -> HomeSizes:
        self._sizes = home_sizes(self._settings, self.queue if self._has_queue else None)
        return self._sizes

    def not_ready(self) -> str | None:
        """Return the reason for which searches cannot be answered, None when they can.

        Looks at `AGENTS_AT_A_TIME` agents: those with a problem, then those that were never looked at. The others keep
        the state that `look_around` found.
        """
        unknown = [agent for agent in self.ids if agent not in self._probed]
        self._look([*self._problems(), *unknown][:AGENTS_AT_A_TIME])
        return next((f"{agent}: {problem}" for agent, problem in self._problems().items()), None)

    def numbers(self, agents: Sequence[str]) -> list[AgentNumbers]:
        """Return the metrics of these agents. Cheap: no look at the disk, and into an index only when it changed."""
        self._look(agents)
        shared = len(self.shared_conditions())
        return [self._numbers(agent, shared) for agent in agents]

    def probed(self, agents: Sequence[str]) -> dict[str, ProbeResult]:
        """Return the figures of these agents' indexes, as cheap as `numbers`; agents without any are left out."""
        self._look(agents)
        return {agent: self._probed[agent] for agent in agents if agent in self._probed}

    def shared_conditions(self) -> tuple[Condition, ...]:
        """Return what is wrong with the queue and the processes that work for all agents."""
        refusal = self.queue.refusal()
        if refusal is not None:
            return (read_only_broker(refusal),)
        states = known_processes(self.queue, wait=None)
        return (*process_conditions(states), *outdated_conditions(states, version=recalld_version(), now=time.time()))

    def process_numbers(self) -> ProcessNumbers:
        """Return the metrics of what all agents share."""
        answers = self._resources.answers
        return ProcessNumbers(
            answers_kept=answers.hits,
            answers_searched=answers.misses,
            answers_bytes=answers.kept_bytes,
            open_indexes=len(self._resources.open_readers),
            fleet=self.queue.fleet(),
            queue_takes=self.queue.refusal() is None,
        )

    def close(self) -> None:
        """Close all managers and what they share."""
        with self._lock:
            managers = [manager for manager, _ in self._managers.values() if manager is not None]
            self._managers.clear()
        for manager in managers:
            manager.close()
        self._resources.close()

    def _agent_status(self, agent: str, *, deep: bool) -> AgentStatus | None:
        manager, _ = self.manager(agent)
        if manager is None:
            return None
        kept = self._status.get(agent)
        if not deep and kept is not None and time.monotonic() - kept[0] < STATUS_KEPT_SECONDS:
            return kept[1]
        status = manager.status(deep=deep)
        with self._lock:
            now = time.monotonic()
            # Old statuses of thousands of agents would only take memory.
            fresh = {one: kept for one, kept in self._status.items() if now - kept[0] < STATUS_KEPT_SECONDS}
            self._status = {**fresh, agent: (now, status)}
        return status

    def _problems(self) -> dict[str, str]:
        """Return agent -> reason for which its index could not be opened."""
        return {agent: probed.problem for agent, probed in self._probed.copy().items() if probed.problem is not None}

    def _look(self, agents: Sequence[str]) -> None:
        """Look into these agents' changed indexes, as far as time allows."""
        # One at a time: two would look at the same indexes.
        with self._looking:
            until = time.monotonic() + LOOKING_SECONDS
            # The next look begins with those that this one does not reach.
            for agent in sorted(agents, key=lambda agent: self._looked_at.get(agent, 0.0)):
                self.manager(agent)
                probe = self._probes.get(agent)
                if probe is None:
                    continue
                result = probe.last()
                if result is None:
                    if time.monotonic() > until:
                        return
                    result = probe.read()
                    self._looked_at[agent] = time.monotonic()
                self._probed[agent] = result

    def _numbers(self, agent: str, shared: int) -> AgentNumbers:
        manager, _ = self.manager(agent)
        pending = self.queue.pending(agent)
        oldest = None
        if pending is not None:
            oldest = max(0.0, time.time() - pending.oldest_at) if pending.oldest_at is not None else 0.0
        probed = self._probed.get(agent)
        figures = probed.figures if probed is not None else None
        provider = manager.provider if manager is not None else None
        endpoint = self.queue.endpoint(provider.account, provider.model) if provider is not None else None
        return AgentNumbers(
            agent=agent,
            pending=pending.documents if pending is not None else None,
            oldest_seconds=oldest,
            chunks=figures.counts.chunks if figures is not None else None,
            vectors_pending=figures.counts.vectors_pending if figures is not None else None,
            dead_letters=figures.dead_letters if figures is not None else None,
            troubles=shared + len(self.queue.conditions(agent)) if pending is not None else None,
            usage=tuple(self.queue.usage(agent)),
            endpoint=(provider.name, provider.model, endpoint.condition) if provider and endpoint else None,
        )
