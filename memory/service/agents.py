"""The managers of one service, made when first asked for, and what they said a second ago."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from memory.embedding.coordination import Coordinate, alone
from memory.reporting import whole_status
from memory.search.resting import RestingPendingReader
from memory.search_manager import BuiltinManager, SearchManager, SearchResources, get_search_manager
from memory.service.metrics import AgentNumbers
from schemas.ports import EventInbox, PendingReader
from schemas.settings import Settings
from schemas.status import AgentStatus, Status

#: Seconds for which a status is good enough for the next one who asks.
STATUS_KEPT_SECONDS = 1.0


class ServedAgents:
    """All agents of a service. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        *,
        pending: PendingReader | None,
        inbox: EventInbox | None,
        coordinate: Coordinate = alone,
    ) -> None:
        self._settings = settings
        self._pending = RestingPendingReader(pending) if pending is not None else None
        self._inbox = inbox
        self._resources = SearchResources(settings, coordinate=coordinate)
        self._lock = threading.Lock()
        self._managers: dict[str, tuple[SearchManager | None, str | None]] = {}
        self._status: dict[str, tuple[float, AgentStatus]] = {}
        self._status_lock = threading.Lock()

    @property
    def ids(self) -> tuple[str, ...]:
        """All agent ids, in the order of the settings."""
        return tuple(agent.id for agent in self._settings.agents)

    def manager(self, agent: str) -> tuple[SearchManager | None, str | None]:
        """The agent's manager, or None and why."""
        with self._lock:
            known = self._managers.get(agent)
            if known is None:
                known = get_search_manager(
                    self._settings, agent, resources=self._resources, pending=self._pending, inbox=self._inbox
                )
                self._managers[agent] = known
        return known

    def warm_up(self) -> None:
        """Choose every agent's provider and start loading models, in the background."""
        for agent in self.ids:
            self.manager(agent)
        self._resources.warm_up()

    def status(self, agents: Sequence[str], *, deep: bool) -> Status:
        """The status of these agents; not older than a second, except that `deep` always looks."""
        found = tuple(status for agent in agents if (status := self._agent_status(agent, deep=deep)) is not None)
        return whole_status(self._settings, found, self._pending)

    def not_ready(self) -> str | None:
        """Why searches cannot be answered, None when they can."""
        for agent in self.ids:
            manager, _ = self.manager(agent)
            reason = manager.ready() if isinstance(manager, BuiltinManager) else None
            if reason is not None:
                return f"{agent}: {reason}"
        return None

    def numbers(self, agents: Sequence[str]) -> list[AgentNumbers]:
        """What metrics tell of these agents. Cheap: no look at the disk."""
        return [self._numbers(agent) for agent in agents]

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
            self._status[agent] = (time.monotonic(), status)
        return status

    def _numbers(self, agent: str) -> AgentNumbers:
        manager, _ = self.manager(agent)
        pending = self._pending.pending(agent) if self._pending is not None else None
        oldest = None
        if pending is not None:
            oldest = max(0.0, time.time() - pending.oldest_at) if pending.oldest_at is not None else 0.0
        figures = manager.figures() if isinstance(manager, BuiltinManager) else None
        provider = manager.provider if isinstance(manager, BuiltinManager) else None
        endpoint = None
        if provider is not None and self._pending is not None:
            endpoint = self._pending.endpoint(provider.account, provider.model)
        return AgentNumbers(
            agent=agent,
            pending=pending.documents if pending is not None else None,
            oldest_seconds=oldest,
            chunks=figures[0].chunks if figures is not None else None,
            vectors_pending=figures[0].vectors_pending if figures is not None else None,
            dead_letters=figures[1] if figures is not None else None,
            usage=tuple(self._pending.usage(agent)) if self._pending is not None else (),
            endpoint=(provider.name, provider.model, endpoint.condition) if provider and endpoint else None,
        )
