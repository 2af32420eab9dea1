"""Managers of one service, made for the first request of each agent, and their status of a second ago."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from memory.embedding.coordination import Coordinate, alone
from memory.search.builtin import BuiltinManager, SearchManager, SearchResources, get_search_manager
from memory.search.circuit_breaker import GuardedPendingReader
from memory.search.index_probe import ProbeResult
from memory.search.manager import SearchableMemory, UnavailableMemory
from memory.service.metrics import AgentNumbers, ProcessNumbers
from memory.status.home import HomeSizes, home_sizes
from memory.status.processes import glanced_states, outdated_conditions, process_conditions
from memory.status.summary import read_only_broker, whole_status
from schemas.conditions import Condition
from schemas.ports import EventInbox, PendingReader
from schemas.settings import Settings
from schemas.status import AgentStatus, Status
from schemas.version import recalld_version

#: Seconds for which a status also answers the next requests.
STATUS_KEPT_SECONDS = 1.0

#: Seconds that one request about all agents may spend on opening changed indexes; the next one goes on there.
LOOKING_SECONDS = 1.0

#: Agents that one readiness probe looks at; the background looks at all.
AGENTS_AT_A_TIME = 10


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
        self._pending = GuardedPendingReader(pending) if pending is not None else None
        self._inbox = inbox
        self._resources = SearchResources(settings, coordinate=coordinate)
        self._lock = threading.Lock()
        self._managers: dict[str, tuple[SearchManager | None, str | None]] = {}
        # The oldest first.
        self._status: OrderedDict[str, tuple[float, AgentStatus]] = OrderedDict()
        self._status_lock = threading.Lock()
        self._probed: dict[str, ProbeResult] = {}
        self._looking = threading.Lock()
        self._looked_at = 0
        self._next_ready = 0
        # Agent -> reason for which its index could not be opened.
        self._problems: dict[str, str] = {}
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
                known = get_search_manager(
                    self._settings, agent, resources=self._resources, pending=self._pending, inbox=self._inbox
                )
                self._managers[agent] = known
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
        return whole_status(self._settings, found, self._pending, sizes=sizes)

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
        self._sizes = home_sizes(self._settings, self._pending)
        return self._sizes

    def not_ready(self) -> str | None:
        """Return the reason for which searches cannot be answered, None when they can.

        Looks at `AGENTS_AT_A_TIME` agents: those with a problem, then the others in turn. The others keep their last
        state; an agent without one counts as ready.
        """
        ids, start = self.ids, self._next_ready
        end = start + AGENTS_AT_A_TIME
        self._next_ready = end if end < len(ids) else 0
        self._look(list(dict.fromkeys([*self._problems, *ids[start:end]]))[:AGENTS_AT_A_TIME])
        return next((f"{agent}: {problem}" for agent, problem in self._problems.copy().items()), None)

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
        if self._pending is None:
            return ()
        now = time.time()
        refusal = self._pending.refusal()
        if refusal is not None:
            return (read_only_broker(refusal),)
        states = glanced_states(self._pending.processes())
        return (*process_conditions(states), *outdated_conditions(states, version=recalld_version(), now=now))

    def process_numbers(self) -> ProcessNumbers:
        """Return the metrics of what all agents share."""
        answers = self._resources.answers
        return ProcessNumbers(
            answers_kept=answers.hits,
            answers_searched=answers.misses,
            answers_bytes=answers.kept_bytes,
            open_indexes=len(self._resources.open_readers),
            fleet=self._pending.fleet() if self._pending is not None else None,
            queue_takes=self._pending is None or self._pending.refusal() is None,
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
        with self._status_lock:
            kept = self._status.get(agent)
        if not deep and kept is not None and time.monotonic() - kept[0] < STATUS_KEPT_SECONDS:
            return kept[1]
        status = manager.status(deep=deep)
        with self._status_lock:
            now = time.monotonic()
            self._status[agent] = (now, status)
            self._status.move_to_end(agent)
            # Old statuses of thousands of agents would only take memory.
            while self._status and now - next(iter(self._status.values()))[0] >= STATUS_KEPT_SECONDS:
                self._status.popitem(last=False)
        return status

    def _look(self, agents: Sequence[str]) -> None:
        """Look into these agents' changed indexes, as far as time allows."""
        # One at a time: two would look at the same indexes.
        with self._looking:
            until = time.monotonic() + LOOKING_SECONDS
            start = self._looked_at % max(1, len(agents))
            for place, agent in enumerate([*agents[start:], *agents[:start]], start):
                manager, _ = self.manager(agent)
                if not isinstance(manager, BuiltinManager):
                    continue
                result = manager.probe.last()
                if result is None:
                    if time.monotonic() > until:
                        # The others keep their last figures.
                        self._looked_at = place
                        return
                    result = manager.probe.read()
                self._probed[agent] = result
                if result.problem is None:
                    self._problems.pop(agent, None)
                else:
                    self._problems[agent] = result.problem

    def _numbers(self, agent: str, shared: int) -> AgentNumbers:
        manager, _ = self.manager(agent)
        pending = self._pending.pending(agent) if self._pending is not None else None
        oldest = None
        if pending is not None:
            oldest = max(0.0, time.time() - pending.oldest_at) if pending.oldest_at is not None else 0.0
        probed = self._probed.get(agent)
        figures = probed.figures if probed is not None else None
        provider = manager.provider if isinstance(manager, BuiltinManager) else None
        endpoint = None
        if provider is not None and self._pending is not None:
            endpoint = self._pending.endpoint(provider.account, provider.model)
        return AgentNumbers(
            agent=agent,
            pending=pending.documents if pending is not None else None,
            oldest_seconds=oldest,
            chunks=figures.counts.chunks if figures is not None else None,
            vectors_pending=figures.counts.vectors_pending if figures is not None else None,
            dead_letters=figures.dead_letters if figures is not None else None,
            troubles=shared + len(self._pending.conditions(agent)) if self._pending and pending is not None else None,
            usage=tuple(self._pending.usage(agent)) if self._pending is not None else (),
            endpoint=(provider.name, provider.model, endpoint.condition) if provider and endpoint else None,
        )
