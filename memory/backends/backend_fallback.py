"""A backend with recalld's own index behind it, which answers the searches that the backend does not."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from memory.backends.backend import BUILTIN, READ_CHARACTERS, Backend, BackendFailed, QueryRejected, reason_of
from memory.backends.registry import MakeBackend, backend_maker
from memory.documents.agent_files import AgentFiles
from memory.redaction import ASKING, PatternTooCostly, redactor_for
from memory.search.answers import citation_of
from memory.search.phrasings import by_phrasings
from memory.search.ranking.query import sought
from memory.search.scope import Session, allows, is_cited, session_of, withheld_from
from memory.search.searchable import LEAST_CHARACTERS, SearchableMemory, footer, injected, unavailable, with_corpora
from schemas.conditions import ConditionCode
from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, Limits, Settings
from schemas.status import Availability, BackendStatus

_log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")
_Shape = TypeVar("_Shape", SearchAnswer, BackendStatus)

#: Share of a search's time that a backend may take; the rest is for the own index.
_PRIMARY_SHARE = 0.5

#: Seconds for which a backend that failed is not tried again.
BACKOFF_SECONDS = 10.0

#: Calls of an agent's backends that may run past their deadline, as no thread can be ended; then no new one begins.
MOST_STUCK = 2

#: Seconds that the end of the service waits for its backends to close.
_CLOSE_SECONDS = 2.0


class FallbackMemory(SearchableMemory):
    """Memory of one agent by a backend, and by recalld's own index from the backend's first failure on.

    `make` returns the backend. `builtin` returns the own memory; it is not called before it is needed. `running` are
    the calls of the agent's backends that have not returned, and their deadlines on the monotonic clock.
    """

    def __init__(
        self,
        agent: AgentSettings,
        make: Callable[[], Backend],
        builtin: Callable[[], SearchableMemory],
        *,
        files: AgentFiles | None = None,
        running: dict[Future[Any], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent = agent
        self._builtin = builtin
        self._clock = clock
        self._files = files or AgentFiles(agent)
        self._lock = threading.Lock()
        self._seconds = agent.limits.timeout_ms / 1000 * _PRIMARY_SHARE
        self.running = running if running is not None else {}
        self._primary = self._begun(make)
        #: Reason why the own index answers; None while the backend does.
        self._reason: str | None = None
        #: Time of the failure on the clock; None while the backend answers.
        self.failed_at: float | None = None

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
        reason, empty = self._reason, None
        if request.since is not None or request.until is not None:
            reason = reason or f"{self._agent.backend} cannot be limited to a time; this is recalld's own index"
        if reason is None:
            try:
                call = self._begun(lambda: self._answered(request, session))
                async with asyncio.timeout(self._seconds):
                    answer = with_corpora(await asyncio.wrap_future(call), request.corpus)
                if answer.unavailable:
                    reason = self._fail(answer.error or "it is unavailable")
                elif answer.results or not sought(request.query):
                    return answer
                else:
                    reason, empty = f"{self._agent.backend} found nothing; this is recalld's own index", answer
            except (QueryRejected, PatternTooCostly) as error:
                reason = f"{self._agent.backend} did not answer this query: {reason_of(error, self._agent)}"
            except TimeoutError:
                reason = self._fail("it did not answer in time")
            except RecalldError as error:
                reason = self._fail(error)
        try:
            answer = await self._builtin().searched(request)
        except Exception as error:  # noqa: BLE001 - a search is answered
            _log.exception("search_failed", agent=self._agent.id)
            answer = SearchAnswer(
                **unavailable(f"{reason}; recalld's own index: {error}", action="run `recalld status`")
            )
        if empty is not None and answer.unavailable:
            return empty
        if answer.fallback_reason:
            reason = f"{reason}; {answer.fallback_reason}"
        return answer.model_copy(update={"fallback": answer.fallback or empty is None, "fallback_reason": reason})

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return lines of a document. The own memory reads them."""
        return self._builtin().read_file(request)

    def status(self) -> BackendStatus:
        """Return the state of the backend, or that of the fallback with its reason."""

        def problem(reason: str) -> BackendStatus:
            if self.failed_at is None:
                return BackendStatus(backend=self._agent.backend, problem=reason)
            return BackendStatus(backend=BUILTIN, fallback_from=self._agent.backend, problem=reason)

        def state(primary: Backend) -> BackendStatus:
            status = primary.status()
            trouble = reason_of(status.problem, self._agent) if status.problem else None
            return _sendable(status.model_copy(update={"problem": trouble}))

        return self._asked(state, problem)

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
        """Begin to close the backend, and return the first reason for that; the own index belongs to its owner."""
        with self._lock:
            if self._reason is not None:
                return self._reason
            self._reason, self.failed_at = reason, self._clock()
        self._begun(lambda: self._primary.result().close(), always=True)
        return reason

    # Calls of the backend

    def _begun(self, call: Callable[[], _Answer], *, always: bool = False) -> Future[_Answer]:
        """Begin a call on a thread that the end of the process does not wait for; its errors are RecalldErrors."""
        future: Future[_Answer] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(call())
            except (RecalldError, TimeoutError) as error:
                future.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - whatever a backend raises: a cancellation, an exit
                future.set_exception(BackendFailed(reason_of(error, self._agent)))
            finally:
                self.running.pop(future, None)

        now = time.monotonic()
        stuck = sum(now >= until for until in list(self.running.values()))
        if stuck >= MOST_STUCK and not always:
            future.set_exception(BackendFailed(f"{stuck} earlier calls of it have not returned"))
            return future
        self.running[future] = now + self._seconds
        threading.Thread(target=run, name=f"backend-{self._agent.id}", daemon=True).start()
        return future

    def _made(self) -> Backend:
        try:
            return self._primary.result(self._seconds)
        except RecalldError as error:
            self.close(reason_of(error, self._agent))
            raise

    def _asked(self, ask: Callable[[Backend], _Answer], otherwise: Callable[[str], _Answer]) -> _Answer:
        """Return the backend's answer, or one with the reason of a fallback or of the backend's error."""
        if (reason := self._reason) is not None:
            return otherwise(reason)
        try:
            return self._begun(lambda: ask(self._made())).result(self._seconds)
        except TimeoutError:
            reason = "it did not answer in time"
        except RecalldError as error:
            reason = reason_of(error, self._agent)
        _log.warning("backend_call_failed", agent=self._agent.id, backend=self._agent.backend, reason=reason)
        return otherwise(reason)

    def _fail(self, problem: RecalldError | str) -> str:
        reason = self.close(f"{self._agent.backend} failed: {reason_of(problem, self._agent)}")
        _log.warning("backend_failed", agent=self._agent.id, backend=self._agent.backend, reason=reason)
        return reason

    # Answers of the backend

    def _answered(self, request: SearchRequest, session: Session) -> SearchAnswer:
        """Return the backend's answer with the results that the session may see, shortened and without secrets."""
        primary, agent, started = self._made(), self._agent, time.monotonic()
        redact = redactor_for(agent, MEMORY_SOURCE, SESSIONS_SOURCE, budget=ASKING)
        queries = tuple(map(redact, request.queries or ()))
        request = request.model_copy(update={"query": redact(request.query), "queries": queries or None})
        qmd = agent.qmd.limits if agent.backend == "qmd" else None
        bounds, most = qmd or agent.limits, request.max_results or (qmd or agent.query).max_results
        answer = asyncio.run(asyncio.wait_for(by_phrasings(primary.searched, request, max_results=most), self._seconds))
        cited, sources = is_cited(agent.citations, session), request.searched(agent.sources)
        withheld, room, results = withheld_from(session, self._files), bounds.max_injected_chars, []
        for result in answer.results:
            key = self._key_of(result)
            if key is None or key.source not in sources or result.score < (request.min_score or 0):
                continue
            # Tools add the source of a snippet, once.
            snippet = result.snippet[:READ_CHARACTERS].removesuffix(footer(result.citation or ""))
            if withheld and (withheld.withholds_text(snippet) or withheld.withholds_file(self._files, key)):
                continue
            update: dict[str, Any] = {"path": key.path, "source": key.source, "citation": None}
            # No command comes from another program.
            update |= {"title": None, "resume": None}
            update |= {"snippet": redact(snippet.encode("utf-8", "replace").decode())}
            update |= {"also_in": None} if withheld else {}
            short = result.model_copy(update=update)
            [short] = injected([short], max_chars=min(room, bounds.max_snippet_chars))
            citation = citation_of(key.path, short.start_line, short.end_line) if cited else None
            results.append(short.model_copy(update={"citation": citation}))
            room -= len(short.snippet)
            if len(results) == most or room < LEAST_CHARACTERS:
                break
        for condition in answer.conditions:
            ConditionCode(condition.code)
        texts = ("provider", "model", "warning", "action", "error")
        update = {name: reason_of(text, agent) for name in texts if (text := getattr(answer, name)) is not None}
        update |= {"degraded": tuple(reason_of(text, agent) for text in answer.degraded), "citations": cited}
        took_ms = round((time.monotonic() - started) * 1000, 2)
        return _sendable(answer.model_copy(update={**update, "results": tuple(results), "took_ms": took_ms}))

    def _key_of(self, result: SearchResult) -> DocumentKey | None:
        """Return the document of a result; None if it is none of this agent, is gone, or has wrong lines or scores."""
        first, last = result.snippet_start_line or result.start_line, result.snippet_end_line or result.end_line
        scores = result.score, result.vector_score or 0.0, result.text_score or 0.0, result.rerank_score or 0.0
        valid = 0 <= result.score <= 1 and all(map(math.isfinite, scores))
        if valid and 1 <= result.start_line <= first <= last <= result.end_line < 2**53:
            with suppress(RecalldError):
                key = self._files.resolve(result.path)
                # Vanished transcripts stay in memory.
                return key if key.is_transcript or self._files.stat(key) is not None else None
        return None


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
                make, running = partial(self._made, agent), slot.running if slot is not None else None
                files = AgentFiles.of(self._settings, agent)
                slot = self._slots[key] = FallbackMemory(
                    agent, make, builtin, files=files, running=running, clock=self._clock
                )
            return slot

    def close(self) -> None:
        """Close all backends."""
        with self._lock:
            slots = list(self._slots.values())
            self._slots.clear()
        for memory in slots:
            memory.close()
        wait([call for memory in slots for call in list(memory.running)], timeout=_CLOSE_SECONDS)

    def _made(self, agent: AgentSettings) -> Backend:
        backend: object = self._maker(agent.backend)(self._settings, agent)
        if isinstance(backend, Backend):
            return backend
        raise BackendFailed(f"the backend {agent.backend!r} is no memory.backends.backend.Backend")


def _sendable(answer: _Shape) -> _Shape:
    """Return an answer, if it can be sent as JSON; raise ValueError if not."""
    answer.model_dump_json()
    return answer


def _not_available(reason: str) -> Availability:
    return Availability(available=False, reason=reason)
