"""A backend with recalld's own index behind it: a search is answered whatever happens to the backend."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from memory.backends.backend import BUILTIN, Backend, MakeBackend, QueryRejected, backend_maker
from memory.documents.agent_files import AgentFiles
from memory.search.scope import Session, allows, resolve_for, session_of, withheld_from
from memory.search.tools import SearchableMemory, unavailable, with_corpora
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, Limits, Settings
from schemas.status import Availability, BackendStatus

_log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")

#: Share of a search's time that a backend may take; the rest is for the own index.
_PRIMARY_SHARE = 0.5

#: Seconds for which a backend that failed is not tried again.
BACKOFF_SECONDS = 10.0


class FallbackMemory(SearchableMemory):
    """Memory of one agent by a backend, and by recalld's own index from the backend's first failure on.

    `primary` is the backend, or the reason why there is none. `builtin` returns the own memory; it is not called before
    it is needed.
    """

    def __init__(
        self,
        agent: AgentSettings,
        primary: Backend | str,
        builtin: Callable[[], SearchableMemory],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent = agent
        self._builtin = builtin
        self._clock = clock
        self._files = AgentFiles(agent)
        self._lock = threading.Lock()
        #: Backend, or the reason why the own index answers.
        self._state = primary
        #: Time of the failure on the clock; None while the backend answers.
        self.failed_at = clock() if isinstance(primary, str) else None

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return self._agent.limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the backend's answer, else that of the own index with the reason, else an unavailable answer."""
        session = session_of(request.session_key)
        if not allows(self._agent.scope, session, agent=self._agent.id):
            return SearchAnswer()
        if request.corpus == "wiki":
            return with_corpora(SearchAnswer(), request.corpus)
        state = self._state
        if isinstance(state, str):
            reason = state
        else:
            try:
                async with asyncio.timeout(self.limits.timeout_ms / 1000 * _PRIMARY_SHARE):
                    answer = await state.searched(request)
                    answer = await asyncio.to_thread(self._permitted, session, answer)
                if not answer.unavailable:
                    return with_corpora(answer, request.corpus)
                reason = self._fail(answer.error or "it is unavailable")
            except QueryRejected as error:
                reason = f"{self._agent.backend} refused the query: {_sentence(error)}"
            except TimeoutError:
                reason = self._fail("it did not answer in time")
            except Exception as error:  # noqa: BLE001 - whatever a backend raises, a search is answered
                reason = self._fail(_sentence(error))
        try:
            answer = await self._builtin().searched(request)
        except Exception as error:  # noqa: BLE001 - as above
            _log.exception("search_failed", agent=self._agent.id)
            lack = unavailable(f"{reason}; recalld's own index: {error}", action="run `recalld status`")
            return SearchAnswer(fallback=True, fallback_reason=reason, **lack)
        if answer.fallback_reason:
            reason = f"{reason}; {answer.fallback_reason}"
        return answer.model_copy(update={"fallback": True, "fallback_reason": reason})

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return lines of a document. The own memory reads what the backend cannot, and refuses what is withheld."""
        session = session_of(request.session_key)
        if not allows(self._agent.scope, session, agent=self._agent.id):
            return self._builtin().read_file(request)
        try:
            if not session.is_owner:
                resolve_for(session, self._files, request.path)
        except RecalldError:
            return self._builtin().read_file(request)
        return self._asked(lambda primary: primary.read_file(request), lambda _: self._builtin().read_file(request))

    def status(self) -> BackendStatus:
        """Return the state of what answers: the backend's own, or that of the fallback with its reason."""

        def problem(reason: str) -> BackendStatus:
            if self.failed_at is None:
                return BackendStatus(backend=self._agent.backend, problem=reason)
            return BackendStatus(backend=BUILTIN, fallback_from=self._agent.backend, problem=reason)

        return self._asked(lambda primary: primary.status(), problem)

    def sync(self) -> str | None:
        """Request an update; return None, or the reason why that is not possible."""
        return self._asked(lambda primary: primary.sync(), str)

    def probe_embedding_availability(self) -> Availability:
        """Return whether the backend embeds queries."""
        return self._asked(lambda primary: primary.probe_embedding_availability(), _not_available)

    def probe_vector_availability(self) -> Availability:
        """Return whether the backend searches vectors."""
        return self._asked(lambda primary: primary.probe_vector_availability(), _not_available)

    def close(self, reason: str = "the backend is closed") -> str:
        """Close the backend, and return the first reason for that; the own index belongs to its owner."""
        with self._lock:
            if isinstance(self._state, str):
                return self._state
            primary, self._state, self.failed_at = self._state, reason, self._clock()
        try:
            primary.close()
        except Exception:  # noqa: BLE001 - a backend that cannot be closed is left
            _log.exception("backend_not_closed", backend=self._agent.backend)
        return reason

    def _permitted(self, session: Session, answer: SearchAnswer) -> SearchAnswer:
        """Return a backend's answer without the results that are withheld from the session."""
        withheld = withheld_from(session, self._files)
        if withheld is None:
            return answer
        results = [
            result.model_copy(update={"also_in": None})
            for result in answer.results
            if not withheld.withholds_text(result.snippet)
            and not withheld.withholds_file(self._files, DocumentKey(result.source, result.path))
        ]
        return answer.model_copy(update={"results": tuple(results)})

    def _asked(self, ask: Callable[[Backend], _Answer], otherwise: Callable[[str], _Answer]) -> _Answer:
        """Return the backend's answer, or one with the reason of a fallback or of what the backend raised."""
        state = self._state
        if isinstance(state, str):
            return otherwise(state)
        try:
            return ask(state)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            _log.warning("backend_call_failed", agent=self._agent.id, backend=self._agent.backend, reason=str(error))
            return otherwise(_sentence(error))

    def _fail(self, problem: str) -> str:
        reason = self.close(f"{self._agent.backend} failed: {problem}")
        _log.warning("backend_failed", agent=self._agent.id, backend=self._agent.backend, reason=reason)
        return reason


class BackendSlots:
    """Backends of a process's agents, one for each agent and its settings. Thread-safe.

    A backend that failed leaves its slot; after `BACKOFF_SECONDS` the next request fills it again.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        maker: Callable[[str], MakeBackend] = backend_maker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._maker = maker
        self._clock = clock
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, str], FallbackMemory] = {}

    def memory(self, agent: AgentSettings, builtin: Callable[[], SearchableMemory]) -> FallbackMemory:
        """Return the memory of an agent whose backend is not recalld's own index. Never raises."""
        key = agent.id, agent.model_dump_json()
        with self._lock:
            slot = self._slots.get(key)
            if slot is None or (slot.failed_at is not None and self._clock() >= slot.failed_at + BACKOFF_SECONDS):
                slot = self._slots[key] = FallbackMemory(agent, self._made(agent), builtin, clock=self._clock)
            return slot

    def close(self) -> None:
        """Close all backends."""
        with self._lock:
            slots = list(self._slots.values())
            self._slots.clear()
        for memory in slots:
            memory.close()

    def _made(self, agent: AgentSettings) -> Backend | str:
        """Return an agent's backend, or the reason why there is none."""
        try:
            made: object = self._maker(agent.backend)(self._settings, agent)
        except Exception as error:  # noqa: BLE001 - a wrong backend stops nothing
            reason = _sentence(error)
        else:
            if isinstance(made, Backend):
                return made
            reason = f"the backend {agent.backend!r} is no memory.backends.backend.Backend"
        _log.warning("backend_not_opened", agent=agent.id, backend=agent.backend, reason=reason)
        return reason


def _not_available(reason: str) -> Availability:
    return Availability(available=False, reason=reason)


def _sentence(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
