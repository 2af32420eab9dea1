"""Interface of backends, and the slot that one of them fills.

A package offers a backend as an entry point of the group `recalld.backends`: a callable that takes `Settings` and
`AgentSettings` and returns a `Backend`. Its name is the value of the setting `backend`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeAlias

from memory.redaction import ASKING, redactor_for
from memory.status.agent import trouble_of
from schemas.conditions import Condition, ConditionCode
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE
from schemas.errors import RecalldError
from schemas.search import SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, Settings
from schemas.status import AgentStatus, Availability, BackendStatus, Status

#: Group of entry points.
GROUP = "recalld.backends"

#: recalld's own index.
BUILTIN = "builtin"

#: Characters of a backend's text that are looked at: far more than are shown, so that a secret at the end is whole.
READ_CHARACTERS = 100_000

#: Characters of a reason that answers, status and logs show.
_REASON_CHARACTERS = 300

#: File in an agent's folder with the reason for which its backend's last update failed, empty if it did not.
FAILURE = "failure"


class BackendFailed(RecalldError):
    """A backend cannot answer. The message says why; recalld's own index answers from then on."""


class QueryRejected(BackendFailed):
    """A backend cannot answer this one query. The message says why; recalld's own index answers this search only."""


class Backend(ABC):
    """Search of one agent's documents by another program. Thread-safe.

    recalld's own index answers when `searched` raises, is unavailable, finds nothing or takes too long. Each call runs
    on a thread of its own and may block. Each `searched` runs on an event loop of its own: a client bound to an earlier
    loop fails. recalld reads the documents itself, and shows no result of anything else.
    """

    @abstractmethod
    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer, best results first. Raise `QueryRejected` for a query that is at fault."""

    @abstractmethod
    def status(self) -> BackendStatus:
        """Return the backend's state, without waiting for it."""

    @abstractmethod
    def sync(self) -> str | None:
        """Request an update of the backend's index; return None, or the reason why that is not possible."""

    @abstractmethod
    def probe_embedding_availability(self) -> Availability:
        """Return whether the backend embeds queries."""

    @abstractmethod
    def probe_vector_availability(self) -> Availability:
        """Return whether the backend searches vectors."""

    @abstractmethod
    def close(self) -> None:
        """End everything that runs for the backend, without waiting for it."""


MakeBackend: TypeAlias = Callable[[Settings, AgentSettings], Backend]


def backend_maker(name: str) -> MakeBackend:
    """Return what makes a backend.

    Raises:
        BackendFailed: there is none of that name, or it cannot be imported.
    """
    if name == "qmd":
        from memory.backends.qmd import QmdBackend

        return QmdBackend
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        raise BackendFailed(f"no backend is called {name!r}; use builtin or qmd, or install the package that has it")
    try:
        make: MakeBackend = found[0].load()
    except (Exception, SystemExit) as error:
        raise BackendFailed(f"the backend {name!r} cannot be imported ({type(error).__name__}: {error})") from error
    return make


def reason_of(error: BaseException | str, agent: AgentSettings) -> str:
    """Return the text of a backend's error as one short line without secrets, or the name of the error."""
    try:
        text = redactor_for(agent, MEMORY_SOURCE, SESSIONS_SOURCE, budget=ASKING)(str(error)[:READ_CHARACTERS])
    except BaseException:  # noqa: BLE001 - an error that has no text, or whose text needs too costly patterns
        text = ""
    return " ".join(text.encode("utf-8", "replace").decode().split())[:_REASON_CHARACTERS] or type(error).__name__


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


def with_backend(status: AgentStatus, backend: BackendStatus) -> AgentStatus:
    """Return an agent's status with its backend's. A backend with a problem makes the agent not ok."""
    update: dict[str, object] = {"backend": backend}
    if backend.problem is not None:
        failing = Condition(ConditionCode.BACKEND_FAILS, status.agent, params={"reason": backend.problem})
        update |= {"ok": False, "troubles": (*status.troubles, trouble_of(failing, now=time.time()))}
    return status.model_copy(update=update)


def with_absent_backends(settings: Settings, status: Status) -> Status:
    """Return the status of a process whose searches reach no backend, with the last known problem of each."""
    agents = list(status.agents)
    for place, agent in enumerate(map(settings.agent, (agent.agent for agent in agents))):
        if agent.backend != BUILTIN:
            failure = settings.home / "qmd" / agent.id / FAILURE
            problem = absence_of(agent) or (failure.read_text("utf-8", "replace") if failure.exists() else "") or None
            backend = BackendStatus(backend=BUILTIN, fallback_from=agent.backend, problem=problem)
            agents[place] = with_backend(agents[place], backend)
    return status.model_copy(update={"agents": tuple(agents), "ok": all(agent.ok for agent in agents)})
