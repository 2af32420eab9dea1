"""The manager over recalld's own index. Reads only; indexing is somebody else's business."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

import structlog

from memory.agent_files import AgentFiles, DocumentGone, DocumentRefused
from memory.embedding.provider import EmbeddingProvider
from memory.generations import Generations
from memory.redaction import query_redactor, redactor_for
from memory.reporting import StatusSources, agent_status
from memory.search.long_term import resolve_for, withheld_from
from memory.search.manager import SearchManager
from memory.search.presenting import passages
from memory.search.readers import SharedReader
from memory.search.reading import page
from memory.search.resources import Embedder, SearchResources
from memory.search.retrieval import Found, Progress, QuerySide, Wanted, retrieve
from memory.search.scope import Session, allows, session_of
from memory.search.transcript_page import remembered_page, transcript_page
from memory.session_roots import SESSIONS_SOURCE
from memory.store.errors import StoreCorrupt
from memory.store.options import StoreOptions
from memory.store.reader import IndexCounts, StoreReader
from memory.taking_over import takeover_token
from memory.watch_state import read_watch_state
from schemas.documents import DocumentKey
from schemas.errors import BrokerUnavailable, Permanent, RecalldError, Transient
from schemas.ports import Event, EventInbox, PendingReader
from schemas.search import GetAnswer, GetRequest, PendingState, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, Limits, Settings
from schemas.status import AgentStatus, Availability

_log = structlog.get_logger(__name__)

#: How often a search that waits for pending documents looks.
_PENDING_POLL_SECONDS = 0.01

#: Milliseconds that a search waits for what was written before it, where it does not say.
DEFAULT_WAIT_MS = 500

#: More documents than this behind are a backlog.
_BACKLOG_DOCUMENTS = 20

#: Share of the deadline that waiting for pending documents may take; the rest is for the search.
_WAIT_SHARE = 0.75

#: Share of the deadline that is kept for showing what has been found when not all of it could be.
_LATE_SHARE = 0.05

_REFUSED = "path required: a document of this memory (MEMORY.md, memory/**/*.md or an extra path)"


#: In a smaller index both sides take less time than handing one of them to another thread.
PARALLEL_FROM_CHUNKS = 10_000


class BuiltinManager(SearchManager):
    """Answers from the agent's folder of generations.

    `pending` says how far the index is behind and `inbox` takes the request of `sync`; both may be absent.
    """

    def __init__(
        self,
        settings: Settings,
        agent: AgentSettings,
        *,
        resources: SearchResources | None = None,
        pending: PendingReader | None = None,
        inbox: EventInbox | None = None,
    ) -> None:
        self._settings = settings
        self._agent = agent
        self._own = resources is None
        self._resources = resources or SearchResources(settings)
        self._pending = pending
        self._inbox = inbox
        self._chosen = (takeover_token(settings, agent), self._resources.embedder(agent))
        self._files = AgentFiles.of(settings, agent)
        self._generations = Generations(
            settings.indexes_path / agent.id, StoreOptions.of(settings.store), shelf=self._resources.shelf
        )
        self._reader = SharedReader(self._generations)
        self._counted: tuple[StoreReader, object, IndexCounts] | None = None
        self._closing = threading.Event()

    @property
    def limits(self) -> Limits:
        """See `SearchManager.limits`."""
        return self._agent.limits

    @property
    def _embedder(self) -> Embedder:
        """The provider in use; another one after a fallback took over, or gave way."""
        token = takeover_token(self._settings, self._agent)
        if token != self._chosen[0]:
            self._chosen = (token, self._resources.embedder(self._agent))
        return self._chosen[1]

    def search(self, request: SearchRequest) -> SearchAnswer:
        """See `SearchManager.search`."""
        started = time.monotonic()
        if not self._allows(session_of(request.session_key)):
            return SearchAnswer()
        try:
            answer = self._search(request, started)
        except StoreCorrupt as error:
            answer = self._unavailable(str(error), action="wait until the index is rebuilt, or run `recalld rebuild`")
        except RecalldError as error:
            answer = self._unavailable(str(error), action="run `recalld status`")
        except Exception as error:  # noqa: BLE001 - an agent gets an answer; the log keeps the reason
            _log.exception("search_failed", agent=self._agent.id)
            answer = self._unavailable(f"the search failed: {type(error).__name__}", action="look into the log")
        return answer.model_copy(update={"took_ms": round((time.monotonic() - started) * 1000, 2)})

    def read_file(self, request: GetRequest) -> GetAnswer:
        """See `SearchManager.read_file`."""
        session = session_of(request.session_key)
        if not self._allows(session):
            return GetAnswer(path=request.path)
        try:
            key = resolve_for(session, self._files, request.path)
            redact = redactor_for(self._agent, key.source)
            if key.source == SESSIONS_SOURCE:
                return transcript_page(self._files, key, first=request.from_, count=request.lines, redact=redact)
            source = self._files.read(key)
        except DocumentRefused:
            _log.warning("read_refused", agent=self._agent.id)
            return GetAnswer(path=request.path, disabled=True, error=_REFUSED)
        except DocumentGone:
            kept = self._remembered(key, request) if key.source == SESSIONS_SOURCE else None
            return kept or GetAnswer(path=request.path, error="not found: there is no such document (any more)")
        except (Permanent, Transient) as error:
            return GetAnswer(path=request.path, error=str(error))
        return page(key.path, redact(source.text), first=request.from_, count=request.lines)

    def _allows(self, session: Session) -> bool:
        return allows(self._agent.scope, session, agent=self._agent.id)

    def _remembered(self, key: DocumentKey, request: GetRequest) -> GetAnswer | None:
        """A page of a transcript whose file is gone and whose memory is not."""
        try:
            with self._reader.lease() as reader:
                if reader is None:
                    return None
                return remembered_page(reader, key, first=request.from_, count=request.lines)
        except RecalldError as error:
            return GetAnswer(path=request.path, error=str(error))

    def status(self, *, deep: bool = False) -> AgentStatus:
        """See `SearchManager.status`."""
        embedder = self._embedder
        return agent_status(
            self._settings,
            self._agent,
            StatusSources(
                files=self._files,
                generations=self._generations,
                lease=self._reader.lease,
                pending=self._pending,
                queue_expected=self._pending is not None,
                choice=embedder.choice,
                provider_failure=embedder.vectors.failure() if embedder.vectors is not None else None,
            ),
            deep=deep,
        )

    def sync(self) -> str | None:
        """See `SearchManager.sync`."""
        if self._inbox is None:
            return "nothing that watches the files is connected; run `recalld index`"
        try:
            self._inbox.put(Event(kind="reconcile", agent=self._agent.id))
        except BrokerUnavailable as error:
            return str(error)
        return None

    def probe_embedding_availability(self) -> Availability:
        """See `SearchManager.probe_embedding_availability`."""
        choice, vectors = self._embedder.choice, self._embedder.vectors
        if vectors is None:
            return Availability(available=False, reason=choice.error or choice.reason or "provider = none")
        outcome = vectors.probe(self._agent.limits.timeout_ms / 1000, agent=self._agent.id)
        return Availability(available=outcome is None, reason=outcome.reason if outcome is not None else None)

    def probe_vector_availability(self) -> Availability:
        """See `SearchManager.probe_vector_availability`."""
        return self.status().vector_search

    @property
    def provider(self) -> EmbeddingProvider | None:
        """The embedding provider in use, None with keywords only."""
        return self._embedder.choice.provider

    def ready(self) -> str | None:
        """None when a search could be answered now, else why not. An index that is still to be made is ready: empty."""
        try:
            with self._reader.lease():
                return None
        except RecalldError as error:
            return str(error)

    def figures(self) -> tuple[IndexCounts, int] | None:
        """Row counts and dead letters of the answering generation; None when there is none or it cannot be read."""
        try:
            with self._reader.lease() as reader:
                return (self._counts(reader), len(reader.dead_letters())) if reader is not None else None
        except RecalldError:
            _log.warning("counting_failed", agent=self._agent.id, exc_info=True)
            return None

    def close(self) -> None:
        """See `SearchManager.close`. Shared resources stay open."""
        self._closing.set()
        self._reader.close()
        if self._own:
            self._resources.close()

    def _search(self, request: SearchRequest, started: float) -> SearchAnswer:
        timeout = self._agent.limits.timeout_ms / 1000
        if not request.query.strip():
            return self._answer(None, request, ())
        # The index holds masks where secrets were, and a provider gets to see none.
        asked = query_redactor(self._agent)(request.query)
        vectors = self._embedder.vectors
        side = None
        if vectors is not None:
            side = QuerySide(
                identity=vectors.provider.identity,
                model=vectors.provider.model,
                vector=vectors.get(asked, agent=self._agent.id),
                threads=self._resources.keyword_threads,
            )
        self._wait_for_changes(request.wait_ms, timeout * _WAIT_SHARE)
        query = self._agent.query
        wanted = Wanted(
            query=asked,
            max_results=request.max_results or query.max_results,
            min_score=request.min_score if request.min_score is not None else query.min_score,
            sources=request.sources if request.sources is not None else self._agent.sources,
            hybrid=query.hybrid,
            deadline=started + timeout,
            timeout_seconds=timeout,
            withheld=withheld_from(session_of(request.session_key)),
        )
        progress = Progress()
        work = self._resources.store_threads.submit(self._retrieve, wanted, side, request, progress)
        try:
            return work.result(max(0.0, wanted.deadline - _LATE_SHARE * timeout - time.monotonic()))
        except FutureTimeout:
            work.cancel()
            found = self._by_words(progress, wanted)
            late = f"the search did not finish within {timeout:g} s" + (": keywords only" if found is not None else "")
            return self._answer(found, request, (late,))

    def _by_words(self, progress: Progress, wanted: Wanted) -> Found | None:
        """What a search that does not end has found by keywords; None when that takes too long, too."""
        by_words = progress.by_words
        if by_words is None:
            return None
        work = self._resources.keyword_threads.submit(by_words)
        try:
            return work.result(max(0.0, wanted.deadline - time.monotonic()))
        except FutureTimeout:
            work.cancel()
        except Exception:  # noqa: BLE001 - the search itself goes on with that store and may be closing it
            _log.warning("late_search_failed", agent=self._agent.id, exc_info=True)
        return None

    def _retrieve(
        self, wanted: Wanted, side: QuerySide | None, request: SearchRequest, progress: Progress
    ) -> SearchAnswer:
        with self._reader.lease() as reader:
            if reader is None:
                return self._answer(None, request, ("there is no index yet: nothing was searched",))
            counts = self._counts(reader)
            if side is not None and counts.chunks < PARALLEL_FROM_CHUNKS:
                side = replace(side, threads=None)
            found = retrieve(reader, wanted, side, progress)
            return self._answer(found, request, found.degraded, counts=counts)

    def _answer(
        self,
        found: Found | None,
        request: SearchRequest,
        degraded: tuple[str, ...],
        *,
        counts: IndexCounts | None = None,
    ) -> SearchAnswer:
        choice = self._embedder.choice
        reasons = list(degraded)
        if choice.provider is None and choice.requested != "none":
            reasons.append(f"{choice.error or choice.reason or 'no embedding provider'}: keywords only")
        cited = self._cites(request.session_key)
        fallback = reasons[0] if reasons and found is not None else None
        pending = self._pending_state(counts)
        if pending is None:
            reasons.append("the queue does not answer: how far the index is behind is not known")
        return SearchAnswer(
            results=self._results(found, cited=cited) if found is not None else (),
            provider=choice.name,
            model=choice.provider.model if choice.provider is not None else None,
            mode=found.mode if found is not None else "none",
            fallback=fallback is not None,
            fallback_reason=fallback,
            citations=cited,
            degraded=tuple(reasons),
            pending=pending or PendingState(vectors=counts.vectors_pending if counts is not None else 0),
        )

    def _results(self, found: Found, *, cited: bool) -> tuple[SearchResult, ...]:
        return tuple(
            SearchResult(
                path=passage.path,
                start_line=passage.start_line,
                end_line=passage.end_line,
                score=passage.score,
                vector_score=passage.vector_score,
                text_score=passage.text_score,
                snippet=passage.snippet,
                source=passage.source,
                citation=passage.citation if cited else None,
            )
            for passage in passages(found, max_snippet_chars=self._agent.limits.max_snippet_chars)
        )

    def _cites(self, session_key: str | None) -> bool:
        if self._agent.citations != "auto":
            return self._agent.citations == "on"
        return not session_of(session_key).is_shared

    def _pending_state(self, counts: IndexCounts | None) -> PendingState | None:
        """How far the answer is behind; None when the queue was asked and does not answer."""
        vectors = counts.vectors_pending if counts is not None else 0
        if self._pending is None:
            return PendingState(vectors=vectors)
        pending = self._pending.pending(self._agent.id)
        if pending is None:
            return None
        oldest = max(0.0, time.time() - pending.oldest_at) if pending.oldest_at is not None else None
        return PendingState(
            documents=pending.documents,
            oldest_seconds=round(oldest, 3) if oldest is not None else None,
            vectors=vectors,
        )

    def _counts(self, reader: StoreReader) -> IndexCounts:
        """Counting 100,000 rows for every search would be most of its time; a commit makes it count again."""
        token = reader.change_token()
        known = self._counted
        if known is None or known[0] is not reader or known[1] != token:
            known = (reader, token, reader.counts())
            self._counted = known
        return known[2]

    def _wait_for_changes(self, wait_ms: int | None, at_most_seconds: float) -> None:
        """Let what was written before this search be queued at once, and wait until it is indexed.

        Nobody who did not ask for it waits for a backlog.
        """
        wanted = DEFAULT_WAIT_MS if wait_ms is None else wait_ms
        if self._pending is None or not wanted:
            return
        deadline = time.monotonic() + min(wanted / 1000, at_most_seconds)
        if self._pending.pending(self._agent.id) is None:
            return  # the queue is away
        if self._inbox is not None and self._agent.sync.on_search and self._is_watched():
            self._inbox.ask(Event(kind="flush", agent=self._agent.id), deadline - time.monotonic())
        most = _BACKLOG_DOCUMENTS if wait_ms is None else math.inf
        while True:
            pending = self._pending.pending(self._agent.id)
            if pending is None or not 0 < pending.documents <= most or time.monotonic() >= deadline:
                return
            if self._closing.wait(_PENDING_POLL_SECONDS):
                return

    def _is_watched(self) -> bool:
        """Whether somebody would answer who watches the files."""
        return read_watch_state(self._settings.home, self._agent.id) is not None

    def _unavailable(self, error: str, *, action: str) -> SearchAnswer:
        return SearchAnswer(
            provider=self._embedder.choice.name,
            disabled=True,
            unavailable=True,
            error=error,
            warning="memory search is unavailable",
            action=action,
            pending=self._pending_state(None) or PendingState(),
        )
