"""A backend with recalld's own index behind it: a search is answered whatever happens to the backend."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from memory.backends.backend import BUILTIN, Backend, BackendFailed, MakeBackend, backend_maker
from memory.search.scope import allows, session_of
from memory.search.tools import SearchableMemory, unavailable
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

    `builtin` returns the own memory; it is not called before it is needed. `failed` gets the reason of a failure.
    """

    def __init__(
        self,
        agent: AgentSettings,
        primary: Backend | str,
        builtin: Callable[[], SearchableMemory],
        *,
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._agent = agent
        self._builtin = builtin
        self._on_failed = failed
        self._lock = threading.Lock()
        self._primary = primary if isinstance(primary, Backend) else None
        #: Reason why the own index answers; None while the backend does.
        self.reason = primary if isinstance(primary, str) else None

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return self._agent.limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the backend's answer, else that of the own index with the reason, else an unavailable answer."""
        if not allows(self._agent.scope, session_of(request.session_key), agent=self._agent.id):
            return SearchAnswer()
        primary = self._primary
        if primary is not None:
            try:
                async with asyncio.timeout(self.limits.timeout_ms / 1000 * _PRIMARY_SHARE):
                    answer = await primary.searched(request)
                if not answer.unavailable:
                    return answer
                self._fail(BackendFailed(answer.error or "it is unavailable"))
            except TimeoutError:
                self._fail(BackendFailed("it did not answer in time"))
            except Exception as error:  # noqa: BLE001 - whatever a backend raises, a search is answered
                self._fail(error)
        reason = self.reason or "the backend is closed"
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
        """Return lines of a document. A backend that cannot read one is an answer, and no failure."""
        primary = self._primary
        if primary is None:
            return self._builtin().read_file(request)
        try:
            return primary.read_file(request)
        except Exception as error:  # noqa: BLE001 - as for a search
            _log.warning("read_failed", agent=self._agent.id, backend=self._agent.backend, reason=str(error))
            lack = unavailable(
                f"the document cannot be read now ({error})", action="ask again, or run `recalld status`"
            )
            return GetAnswer(path=request.path, status="error", **lack)

    def status(self) -> BackendStatus:
        """Return the state of what answers: the backend's own, or that of the fallback with its reason."""
        primary = self._primary
        if primary is not None:
            try:
                return primary.status()
            except Exception as error:  # noqa: BLE001 - a status never raises
                return BackendStatus(backend=self._agent.backend, problem=_sentence(error))
        return BackendStatus(backend=BUILTIN, fallback_from=self._agent.backend, problem=self.reason)

    def sync(self) -> str | None:
        """Request an update; return None, or the reason why that is not possible."""
        return self._asked(lambda primary: primary.sync(), lambda reason: reason)

    def probe_embedding_availability(self) -> Availability:
        """Return whether the backend embeds queries."""
        return self._asked(lambda primary: primary.probe_embedding_availability(), _not_available)

    def probe_vector_availability(self) -> Availability:
        """Return whether the backend searches vectors."""
        return self._asked(lambda primary: primary.probe_vector_availability(), _not_available)

    def close(self) -> None:
        """Close the backend; the own index belongs to its owner."""
        with self._lock:
            primary, self._primary = self._primary, None
            self.reason = self.reason or "the backend is closed"
        if primary is not None:
            try:
                primary.close()
            except Exception:  # noqa: BLE001 - a backend that cannot be closed is left
                _log.exception("backend_not_closed", backend=self._agent.backend)

    def _asked(self, ask: Callable[[Backend], _Answer], otherwise: Callable[[str], _Answer]) -> _Answer:
        """Return the backend's answer; what it raises is an answer, too, and so is a fallback."""
        primary = self._primary
        if primary is None:
            return otherwise(self.reason or "the backend is closed")
        try:
            return ask(primary)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises
            return otherwise(_sentence(error))

    def _fail(self, error: Exception) -> None:
        reason = f"{self._agent.backend} failed: {_sentence(error)}"
        with self._lock:
            self.reason = self.reason or reason
        _log.warning("backend_failed", agent=self._agent.id, backend=self._agent.backend, reason=reason)
        self.close()
        self._on_failed(reason)


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
        self._again_at: dict[tuple[str, str], float] = {}

    def memory(self, agent: AgentSettings, builtin: Callable[[], SearchableMemory]) -> FallbackMemory:
        """Return the memory of an agent whose backend is not recalld's own index. Never raises."""
        key = agent.id, agent.model_dump_json()
        with self._lock:
            held = self._slots.get(key)
            if held is not None and (held.reason is None or self._clock() < self._again_at.get(key, 0.0)):
                return held
            primary: Backend | str
            try:
                primary = self._maker(agent.backend)(self._settings, agent)
            except Exception as error:  # noqa: BLE001 - a wrong backend stops nothing
                primary = _sentence(error)
                _log.warning("backend_not_opened", agent=agent.id, backend=agent.backend, reason=primary)
                self._again_at[key] = self._clock() + BACKOFF_SECONDS
            made = FallbackMemory(agent, primary, builtin, failed=lambda _: self._leave(key))
            self._slots[key] = made
            return made

    def close(self) -> None:
        """Close all backends."""
        with self._lock:
            slots = list(self._slots.values())
            self._slots.clear()
        for memory in slots:
            memory.close()

    def _leave(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._again_at[key] = self._clock() + BACKOFF_SECONDS


def _not_available(reason: str) -> Availability:
    return Availability(available=False, reason=reason)


def _sentence(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
