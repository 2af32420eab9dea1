"""Backends by name, and their part in an agent's status.

A package offers a backend as an entry point of the group `recalld.backends`: a callable that takes `Settings` and
`AgentSettings` and returns a `Backend`. Its name is the value of the setting `backend`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points
from typing import TypeAlias

from memory.backends.backend import BUILTIN, FAILURE, Backend, BackendFailed, reason_of
from memory.status.agent import with_conditions
from schemas.conditions import Condition, ConditionCode
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, BackendStatus, Status

#: Group of entry points.
GROUP = "recalld.backends"

MakeBackend: TypeAlias = Callable[[Settings, AgentSettings], Backend]


def backend_maker(name: str) -> MakeBackend:
    """Return the constructor of a backend.

    Raises:
        BackendFailed: there is none of that name, or it cannot be imported.
    """
    if name == "qmd":
        from memory.backends.qmd import QmdBackend

        return QmdBackend
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        raise BackendFailed(f"no backend is called {name!r}; use builtin or qmd, or install the package that has it")
    try:
        make: MakeBackend = points[0].load()
    except (Exception, SystemExit) as error:
        raise BackendFailed(f"the backend {name!r} cannot be imported ({type(error).__name__}: {error})") from error
    return make


def absence_of(agent: AgentSettings) -> str | None:
    """Return the reason why an agent's backend is not there, None if it is. Nothing is opened."""
    try:
        if agent.backend != BUILTIN:
            backend_maker(agent.backend)
        if agent.backend == "qmd":
            from memory.backends.qmd_command import program_of

            if agent.qmd.problem is not None:
                return agent.qmd.problem
            program_of(agent.qmd.command)
    except BackendFailed as error:
        return reason_of(error, agent)
    return None


def last_failure(settings: Settings, agent: AgentSettings) -> str | None:
    """Return the reason why the last update of an agent's backend failed; None if it did not, or without a backend."""
    if agent.backend != BUILTIN:
        with suppress(OSError):
            return (settings.home / "qmd" / agent.id / FAILURE).read_text("utf-8", "replace") or None
    return None


def with_backend(status: AgentStatus, backend: BackendStatus) -> AgentStatus:
    """Return an agent's status with its backend's. A backend with a problem makes the agent not ok."""
    status = status.model_copy(update={"backend": backend})
    if backend.problem is None:
        return status
    failing = Condition(ConditionCode.BACKEND_FAILS, status.agent, params={"reason": backend.problem})
    return with_conditions(status, [failing], now=time.time())


def with_absent_backends(settings: Settings, status: Status) -> Status:
    """Return the status of a process whose searches reach no backend, with the last known problem of each."""
    agents = list(status.agents)
    for place, agent in enumerate(map(settings.agent, (agent.agent for agent in agents))):
        if agent.backend != BUILTIN:
            problem = absence_of(agent) or last_failure(settings, agent)
            backend = BackendStatus(backend=BUILTIN, fallback_from=agent.backend, problem=problem)
            agents[place] = with_backend(agents[place], backend)
    return status.model_copy(update={"agents": tuple(agents), "ok": all(agent.ok for agent in agents)})
