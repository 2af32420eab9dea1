"""Memory of one agent over recalld's own index: its searches, reads, status and probes. Workers index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from memory.documents.agent_files import AgentFiles
from memory.documents.session_database import is_of_rows
from memory.documents.titles import Title, Titles
from memory.index.fingerprint import embedding_of
from memory.index.generations import Generations
from memory.index.readers import SharedReader
from memory.redaction import ASKING, REWRITING, PatternTooCostly, redactor_for
from memory.search.answers import CachedAnswer, Passage, Question, passages_of, question_of, result_of
from memory.search.freshness import DEFAULT_WAIT_MS, Freshness, Moment, on_thread, pending_state
from memory.search.get import late_redactor, read
from memory.search.phrasings import by_phrasings
from memory.search.query_vectors import Unavailable
from memory.search.ranking.query import searched_query
from memory.search.ranking.ranker import SearchParameters
from memory.search.ranking.reranker import Reranker
from memory.search.ranking.times import zone_and_span
from memory.search.resources import QueryEmbedder, SearchResources
from memory.search.retrieval import Candidates, QuerySide, Retrieval, by_keywords, retrieve
from memory.search.scope import Session, Withheld, allows, is_cited, session_of, withheld_from
from memory.search.searchable import ANSWER_UNTIL, SearchableMemory, unavailable, with_corpora
from memory.status.agent import agent_status
from memory.status.condition_texts import text_of
from memory.status.index import StatusSources
from memory.store.errors import StoreCorrupt
from memory.store.reader import StoreReader, Vector
from schemas.conditions import Condition, ConditionCode
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.errors import BrokerUnavailable, RecalldError, UserError
from schemas.ports import Event, EventInbox, Pending, PendingReader
from schemas.search import GetAnswer, GetRequest, Mode, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, Hybrid, Limits, Settings
from schemas.status import AgentStatus, Availability

_log = structlog.get_logger(__name__)

#: Share of the deadline that is reserved for the store while a search waits for a vector.
_STORE_SHARE = 0.1

#: Share of the deadline that is reserved for the partial answer of a late search.
_LATE_SHARE = 0.05

#: Share of the deadline that waiting for pending documents may take; the rest is for the search.
_WAIT_SHARE = 0.75


class UnavailableMemory(SearchableMemory):
    """Memory that cannot be opened. Its answers give the `reason`, except to sessions out of scope."""

    def __init__(self, agent: AgentSettings, reason: str) -> None:
        self.agent = agent
        self._lack = unavailable(reason, action="see `recalld config show`")

    @property
    def limits(self) -> Limits:
        """See `SearchableMemory.limits`."""
        return self.agent.limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return no result, and the reason."""
        if not _allows(self.agent, session_of(request.session_key)):
            return SearchAnswer()
        return with_corpora(SearchAnswer(**self._lack), request.corpus)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Return no result, and the reason."""
        if not _allows(self.agent, session_of(request.session_key)):
            return GetAnswer(path=request.path, status="not_found")
        return with_corpora(GetAnswer(path=request.path, status="error", **self._lack), request.corpus)


def _allows(agent: AgentSettings, session: Session) -> bool:
    return allows(agent.scope, session, agent=agent.id)


class SearchManager(SearchableMemory):
    """Memory of one agent's folder of generations, with its status.

    `pending` reads the queue and `inbox` takes requests to flush; both may be absent. `clock` returns Unix time.
    """

    def __init__(
        self,
        settings: Settings,
        agent: AgentSettings,
        *,
        resources: SearchResources | None = None,
        pending: PendingReader | None = None,
        inbox: EventInbox | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self.agent = agent
        self._owns_resources = resources is None
        self.resources = resources or SearchResources(settings)
        self._pending, self._inbox, self.clock = pending, inbox, clock
        self.files = AgentFiles.of(settings, agent)
        self.titles = Titles(agent, self.files)
        self.generations = Generations.of(settings, agent.id, shelf=self.resources.shelf)
        self._embedder = (self.generations.tokens(), self.resources.embedder(agent))
        self.reader = SharedReader(self.generations, open_indexes=self.resources.open_indexes)
        self.freshness = Freshness(settings, agent, pending=pending, inbox=inbox)

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return self.agent.limits

    @property
    def embedder(self) -> QueryEmbedder:
        """Return the embedder in use, which changes with the generations."""
        tokens = self.generations.tokens()
        if tokens != self._embedder[0]:
            self._embedder = (tokens, self.resources.embedder(self.agent))
        return self._embedder[1]

    @property
    def last_embedder(self) -> QueryEmbedder:
        """Return the embedder of the last look, without looking."""
        return self._embedder[1]

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer within the deadline, even if a read or the provider hangs."""
        answer = await by_phrasings(self._search_in_scope, request, max_results=self.agent.query.max_results)
        return with_corpora(answer, request.corpus)

    async def _search_in_scope(self, request: SearchRequest) -> SearchAnswer:
        started = time.monotonic()
        seconds = min(self.agent.limits.timeout_ms / 1000, max(0.0, round(ANSWER_UNTIL.get() - started, 1)))
        deadline = Deadline(started=started, seconds=seconds)
        session = session_of(request.session_key)
        if not allows(self.agent.scope, session, agent=self.agent.id) or request.corpus == "wiki":
            return SearchAnswer()
        if request.corpus is not None and not request.searched(self.agent.sources):
            return SearchAnswer(
                warning="nothing was searched: the corpus is none of the sources; leave one of them out"
            )
        if request.corpus == SESSIONS_SOURCE and SESSIONS_SOURCE not in self.agent.sources:
            action = 'ask for the corpus memory, or add "sessions" to the setting sources'
            warning = "no transcript was searched"
            lacking = unavailable("transcripts are no part of this memory", warning=warning, action=action)
            return SearchAnswer(**lacking)
        try:
            return await _run_search(self, request, session, deadline)
        except Exception as error:  # noqa: BLE001 - the client gets an answer, and the log keeps the reason
            return self._failure_answer(error, deadline)

    def read_file(self, request: GetRequest) -> GetAnswer:
        """Read lines of a document of this agent; refuse any other path with one uniform answer."""
        if not _allows(self.agent, session_of(request.session_key)) or request.corpus == "wiki":
            return with_corpora(GetAnswer(path=request.path, status="not_found"), request.corpus)
        return with_corpora(read(self.agent, self.files, self.reader, request), request.corpus)

    def status(self, *, deep: bool = False) -> AgentStatus:
        """Compare disk, index and queue; `deep` also checks the index's integrity."""
        embedder = self.embedder
        return agent_status(
            self._settings,
            self.agent,
            StatusSources(
                files=self.files,
                generations=self.generations,
                lease=self.reading,
                pending=self._pending or PendingReader(),
                queue_expected=self._pending is not None,
                provider_failure=embedder.vectors.failure() if embedder.vectors is not None else None,
            ),
            deep=deep,
        )

    def sync(self) -> str | None:
        """Request a comparison of files and index; return None, or the reason why that is not possible."""
        if self._inbox is None:
            return "nothing that watches the files is connected; run `recalld index`"
        try:
            self._inbox.put(Event(kind="reconcile", agent=self.agent.id))
        except BrokerUnavailable as error:
            return str(error)
        return None

    def probe_embedding_availability(self) -> Availability:
        """Embed a text of its own with the provider in use, which is paid for."""
        choice, vectors = self.embedder.choice, self.embedder.vectors
        if vectors is None:
            return Availability(available=False, reason=choice.explanation)
        seconds = self.agent.limits.timeout_ms / 1000
        future = vectors.begin(f"probe {time.time_ns()}", seconds=seconds, agent=self.agent.id)
        try:
            asyncio.run(vectors.result(future, seconds))
        except Unavailable as error:
            return Availability(available=False, reason=str(error))
        return Availability(available=True)

    def probe_vector_availability(self) -> Availability:
        """Look into the index for vectors that can be searched."""
        return self.status().vector_search

    def reading(self) -> AbstractContextManager[StoreReader | None]:
        """Lend the answering generation for the block, None if there is none; see `SharedReader.lease`."""
        return self.reader.lease(passing=True)

    def titled(self, reader: StoreReader, keys: Iterable[DocumentKey], *, look: bool) -> dict[DocumentKey, Title]:
        """Return the titles of documents without secrets; see `Titles.of`."""
        return self.titles.of(reader, set(keys), redact=late_redactor(reader, self.agent), look=look)

    def close(self) -> None:
        """Close everything but shared resources; running reads finish first."""
        self.reader.close()
        if self._owns_resources:
            self.resources.close()

    def _failure_answer(self, error: Exception, deadline: Deadline) -> SearchAnswer:
        """Return the answer of a search that raised."""
        lack = unavailable(str(error), warning="memory search is unavailable", action="run `recalld status`")
        if isinstance(error, StoreCorrupt):
            lack["action"] = "wait until the index is rebuilt, or run `recalld rebuild`"
        elif isinstance(error, PatternTooCostly):
            lack |= {"error": error.of_question, "action": f"ask in other words, or {REWRITING}"}
            lack |= {"warning": "this question was not searched for", "disabled": None}
        elif isinstance(error, UserError):
            lack |= {"warning": "nothing was searched", "action": None, "disabled": None}
        elif not isinstance(error, RecalldError):
            _log.error("search_failed", agent=self.agent.id, exc_info=error)
            lack |= {"error": f"the search failed: {type(error).__name__}", "action": "look into the log"}
        took_ms = round((time.monotonic() - deadline.started) * 1000, 2)
        return SearchAnswer(provider=self.last_embedder.choice.name, took_ms=took_ms, **lack)


def get_search_manager(
    settings: Settings,
    agent_id: str,
    *,
    resources: SearchResources | None = None,
    pending: PendingReader | None = None,
    inbox: EventInbox | None = None,
) -> tuple[SearchManager | None, str | None]:
    """Return an agent's manager, or None and the reason in one sentence.

    The managers of a process share `resources`, which the caller closes. `pending` reads the queue,
    and `inbox` takes the request of `sync`.
    """
    try:
        agent = settings.agent(agent_id)
    except KeyError as error:
        return None, str(error.args[0])
    if not agent.enabled:
        return None, f"the memory of agent {agent_id!r} is switched off (enabled = false)"
    try:
        return SearchManager(settings, agent, resources=resources, pending=pending, inbox=inbox), None
    except RecalldError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the other agents are answered; the log keeps the reason
        _log.exception("search_manager_failed", agent=agent_id)
        return None, f"the memory of agent {agent_id!r} cannot be opened: {type(error).__name__}"


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time limit of a search: `seconds` after its arrival, at `started` on the monotonic clock."""

    started: float
    seconds: float

    def left(self, *, keeping: float = 0.0) -> float:
        """Return the seconds until the deadline, less the share `keeping` of the whole time; at least 0."""
        return max(0.0, self.started + (1 - keeping) * self.seconds - time.monotonic())


#: Parameters of a search before its first step.
_UNPREPARED = SearchParameters(query="", max_results=0, min_score=0.0, sources=(), hybrid=Hybrid())


@dataclass(frozen=True, slots=True)
class _Step:
    """State of a search after one of its steps: the `search`, with its running work, or with its answer.

    `vector` is that of the query, None with keywords only. `words` are the hits of the keywords.
    """

    search: _Search
    vector: Future[Vector] | None = None
    words: Future[Candidates | None] | None = None
    answer: SearchAnswer | None = None


async def _run_search(on: SearchManager, request: SearchRequest, session: Session, deadline: Deadline) -> SearchAnswer:
    """Return the answer within the deadline, with the results found by then.

    Blocking work runs on the threads of `SearchResources`: a thread that still hangs at the deadline is abandoned.
    While a slow provider embeds the query, the search holds no thread, and its keywords are searched already.

    Raises the errors of the store, and RuntimeError while the resources are being closed.
    """
    reading, asking = on.resources.reading, on.resources.asking
    step = _Step(_Search(on, request, session, deadline, on.last_embedder))
    limit = asyncio.timeout(deadline.left(keeping=_LATE_SHARE))
    try:
        async with limit:
            step = await on_thread(asking, step.search.prepare)
            if step.answer is None and step.words is None:
                # The provider embeds while the search waits for changes.
                search = step.search
                moment = await on.freshness.settled(search.moment, request.wait_ms, search.wait_until, asking)
                step = await on_thread(asking, replace(search, moment=moment).start, step.vector)
            if step.answer is not None:
                return step.answer
            side = await step.search.query_side(step.vector)
            return await on_thread(reading, step.search.answer_of_both_sides, side, step.words)
    except TimeoutError:
        if not limit.expired():
            raise
        return await step.search.late_answer(step.words)


@dataclass(frozen=True, slots=True)
class _Search:
    """One search: its request, and from `prepare` on its query and the conditions of its moment."""

    on: SearchManager
    request: SearchRequest
    session: Session
    deadline: Deadline
    embedder: QueryEmbedder
    parameters: SearchParameters = _UNPREPARED
    #: Reason why a part of the query was not searched for.
    cut: Condition | None = None
    withheld: Withheld | None = None
    #: Key of the cached answer; None for an answer that is not cached.
    question: Question | None = None
    moment: Moment = field(default_factory=Moment)

    @property
    def wait_until(self) -> float:
        """Monotonic time until which the search waits for changes."""
        wait_ms = DEFAULT_WAIT_MS if self.request.wait_ms is None else self.request.wait_ms
        return self.deadline.started + min(wait_ms / 1000, _WAIT_SHARE * self.deadline.seconds)

    def prepare(self) -> _Step:
        """Mask the query's secrets, choose the provider, begin to embed, look for changes that wait, and `start`."""
        agent, request = self.on.agent, self.request
        # The index holds masks where secrets were, and a provider gets to see none.
        redact, rerank = redactor_for(agent, "memory", "sessions", budget=ASKING), agent.query.rerank
        searched = searched_query(request.query, redact)
        withheld = withheld_from(self.session, self.on.files)
        sources = request.searched(agent.sources)
        if SESSIONS_SOURCE in sources and withheld is not None and withheld.transcripts is not None:
            notes = tuple(source for source in sources if source != SESSIONS_SOURCE)
            sources = (*notes, *sorted(withheld.transcripts))
        now = self.on.clock()
        zone, span = zone_and_span(request, now)
        parameters = SearchParameters(
            query=searched.text,
            max_results=request.max_results or agent.query.max_results,
            min_score=request.min_score if request.min_score is not None else agent.query.min_score,
            sources=sources,
            hybrid=agent.query.hybrid,
            withheld=withheld,
            now=now,
            zone=zone,
            span=span,
            reranker=Reranker(rerank, searched.text, redact, self.deadline.left)
            if rerank.base_url is not None
            else None,
        )
        embedder, question = self.on.embedder, None
        if parameters.query and embedder.lack is None:
            provider = embedder.choice.provider
            embedding = (provider.identity, provider.model) if provider is not None else None
            limit = agent.limits.max_snippet_chars
            question = question_of(agent.id, parameters, max_snippet_chars=limit, embedding=embedding)
        search = replace(
            self, parameters=parameters, cut=searched.cut, withheld=withheld, embedder=embedder, question=question
        )
        if not parameters.query:
            return _Step(search, answer=search.answer((), "none", ()))
        is_cached = question is not None and self.on.resources.answers.knows(question)
        vector = None if is_cached else search.embed()
        search = replace(search, moment=self.on.freshness.look(request.wait_ms, self.wait_until))
        if search.moment.waits(request.wait_ms, self.wait_until):
            return _Step(search, vector)
        return search.start(vector)

    def start(self, vector: Future[Vector] | None) -> _Step:
        """Return the cached answer, if the index has not changed since; else begin to embed and to search keywords."""
        if vector is None and self.question is not None:
            with self.on.reader.lease() as reader:
                token = reader.change_token() if reader is not None else None
            cached = self.on.resources.answers.get(self.question, token)
            if cached is not None:
                return _Step(self, answer=self.answer(cached.passages, cached.mode, (), vectors=cached.vectors_pending))
            vector = self.embed()
        # Queued before the thread that waits for it, so the two never wait for each other.
        return _Step(self, vector, self.on.resources.reading.submit(self._search_words))

    def embed(self) -> Future[Vector] | None:
        """Begin to embed the query; None with keywords only, and for a query that the model does not read."""
        if (vectors := self.embedder.vectors) is None or vectors.provider.unread_script(self.parameters.query):
            return None
        seconds = self.deadline.left(keeping=_STORE_SHARE)
        # A search that waits for nothing, as those for prompts, is answered by keywords while the model loads.
        waits = self.request.wait_ms != 0
        return vectors.begin(self.parameters.query, seconds=seconds, agent=self.on.agent.id, waits_for_model=waits)

    async def query_side(self, vector: Future[Vector] | None) -> QuerySide | None:
        """Wait for the query's vector; None with keywords only."""
        vectors = self.embedder.vectors
        if vectors is None or vector is None:
            return None
        identity, model = vectors.provider.identity, vectors.provider.model
        try:
            return QuerySide(identity, model, await vectors.result(vector, self.deadline.left(keeping=_STORE_SHARE)))
        except Unavailable as error:
            lack = Condition(ConditionCode.QUERY_NOT_EMBEDDED, params={"reason": str(error)})
            return QuerySide(identity, model, None, lack)

    def answer_of_both_sides(self, side: QuerySide | None, words: Future[Candidates | None] | None) -> SearchAnswer:
        """Return the answer by both sides, and keep it if it is complete."""
        with self.on.reader.lease(snapshot=True) as reader:
            if reader is None:
                return self.answer((), "none", (Condition(ConditionCode.INDEX_MISSING),))
            token = reader.change_token()
            if (vectors := self.embedder.vectors) is not None and side is not None:
                width = reader.meta("dimensions")
                if width and embedding_of(reader.meta("identity")) == side.identity:
                    vectors.dimensions = int(width)
            pending = self.on.freshness.vectors_pending(reader, token)
            retrieval = retrieve(reader, self.parameters, side, partial(self._keyword_candidates, words))
            passages = self._passages(reader, retrieval)
            complete = not retrieval.lacks and self.deadline.left() > 0
            if self.question is not None and complete and reader.change_token() == token:
                self.on.resources.answers.put(self.question, token, CachedAnswer(passages, retrieval.mode, pending))
        return self.answer(passages, retrieval.mode, retrieval.lacks, vectors=pending)

    async def late_answer(self, words: Future[Candidates | None] | None) -> SearchAnswer:
        """Return the answer at the deadline: by keywords, or empty."""
        params = {"seconds": self.deadline.seconds}
        if words is not None and words.done():
            try:
                async with asyncio.timeout(self.deadline.left()):
                    passages = await on_thread(self.on.resources.reading, self._keyword_passages, words)
            except TimeoutError:
                pass
            except Exception:  # noqa: BLE001 - the search itself goes on with that store and may be closing it
                _log.warning("late_search_failed", agent=self.on.agent.id, exc_info=True)
            else:
                late = (Condition(ConditionCode.SEARCH_LATE_KEYWORDS, params=params),)
                return self.answer(passages, "keyword", late, look=False)
        return self.answer((), "none", (Condition(ConditionCode.SEARCH_LATE, params=params),), look=False)

    def answer(
        self,
        passages: tuple[Passage, ...],
        mode: Mode,
        lacks: tuple[Condition, ...],
        *,
        vectors: int = 0,
        look: bool = True,
    ) -> SearchAnswer:
        """Return the answer with the conditions of this moment; `look` at the disk for the best copy of a passage."""
        lacking = [*lacks, *([self.embedder.lack] if self.embedder.lack is not None else [])]
        fallback = text_of(lacking[0]) if lacking and mode != "none" else None
        pending, unwatched = self.moment.pending, self.moment.unwatched
        if pending is None:
            lacking.append(Condition(ConditionCode.QUEUE_UNREACHABLE))
        elif unwatched is not None:
            lacking.append(unwatched)
        if self.cut is not None:
            lacking.append(self.cut)
        cited = is_cited(self.on.agent.citations, self.session)
        choice = self.embedder.choice
        results = [
            result_of(passage, self._exists if look else None, cited=cited)
            for passage in (map(self._permitted_places, passages) if look else passages)
            if passage
        ]
        return SearchAnswer(
            results=tuple(self._titled(results) if look and results else results),
            provider=choice.name,
            model=choice.provider.model if choice.provider is not None else None,
            mode=mode,
            fallback=fallback is not None,
            fallback_reason=fallback,
            citations=cited,
            degraded=tuple(map(text_of, lacking)),
            conditions=tuple(lacking),
            pending=pending_state(pending or Pending(), vectors=vectors),
            stale=True if pending is not None and pending.documents else None,
            took_ms=round((time.monotonic() - self.deadline.started) * 1000, 2),
        )

    def _titled(self, results: Sequence[SearchResult]) -> Iterator[SearchResult]:
        """Yield the results with the titles of their documents. Working directories are for the owner alone."""
        keys = [DocumentKey(result.source, result.path) for result in results]
        with self.on.reader.lease(snapshot=True) as reader:
            titles = self.on.titled(reader, keys, look=self.session.is_owner) if reader is not None else {}
        for result, key in zip(results, keys, strict=True):
            title = titles.get(key)
            facts = {"title": title.text, "resume": title.resume} if title is not None else {}
            yield result.model_copy(update=facts)

    def _search_words(self) -> Candidates | None:
        with self.on.reader.lease(snapshot=True) as reader:
            if reader is None:
                return None
            return by_keywords(reader, self.parameters, needed=self.embedder.vectors is None)

    def _keyword_candidates(self, words: Future[Candidates | None] | None) -> Candidates | None:
        # At the deadline this thread stops waiting for a hanging read of keywords.
        return words.result(self.deadline.left()) if words is not None else None

    def _keyword_passages(self, words: Future[Candidates | None]) -> tuple[Passage, ...]:
        """Return the passages by keywords of a search that is late."""
        with self.on.reader.lease() as reader:
            if reader is None:
                return ()
            return self._passages(reader, retrieve(reader, self.parameters, None, words.result))

    def _passages(self, reader: StoreReader, retrieval: Retrieval) -> tuple[Passage, ...]:
        if (redact := late_redactor(reader, self.on.agent)) is not None:
            hits = [(fused, replace(row, text=redact(row.key.source, row.text))) for fused, row in retrieval.hits]
            retrieval = replace(retrieval, hits=tuple(hits))

        def of_rows(key: DocumentKey) -> bool:
            indexed = reader.file(key)
            return indexed is not None and is_of_rows(indexed.stat)

        max_chars = self.on.agent.limits.max_snippet_chars
        return tuple(passages_of(retrieval, max_snippet_chars=max_chars, is_of_rows=of_rows))

    def _permitted_places(self, passage: Passage) -> Passage:
        """Return the places of a passage, without the documents that are withheld by their files now."""
        if (withheld := self.withheld) is None:
            return passage
        keys = [DocumentKey(place.source, place.path) for place in passage]
        hidden = {key for key in keys if withheld.withholds_file(self.on.files, key)}
        return tuple(place for place, key in zip(passage, keys, strict=True) if key not in hidden)

    def _exists(self, key: DocumentKey) -> bool:
        try:
            return self.on.files.stat(key) is not None
        except RecalldError:
            return True  # the disk does not say
