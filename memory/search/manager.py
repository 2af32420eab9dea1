"""Memory of one agent over recalld's own index: its searches, reads, status and probes. Workers index."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import structlog

from memory.documents.agent_files import AgentFiles
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.selection import ProviderChoice
from memory.index.generations import Generations
from memory.index.provider_fallback import takeover_token
from memory.index.readers import SharedReader
from memory.redaction import ASKING, REWRITING, PatternTooCostly, redactor_for
from memory.search.answers import KeptAnswer, Passage, Question, passages, question_of, shown
from memory.search.freshness import DEFAULT_WAIT_MS, Freshness, GuardedPendingReader, Moment, on_thread
from memory.search.get import late_redactor, read
from memory.search.query_vectors import Unavailable
from memory.search.ranking.ranker import Wanted
from memory.search.ranking.terms import searched_query
from memory.search.resources import QueryEmbedder, SearchResources
from memory.search.retrieval import Candidates, Found, QuerySide, by_keywords, retrieve
from memory.search.scope import Session, allows, session_of, withheld_from
from memory.search.tools import SearchableMemory, unavailable, with_corpora
from memory.status.agent import agent_status
from memory.status.condition_texts import text_of
from memory.status.index import StatusSources
from memory.store.errors import StoreCorrupt
from memory.store.reader import StoreReader, Vector
from schemas.conditions import Condition, ConditionCode
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.errors import BrokerUnavailable, RecalldError
from schemas.ports import Event, EventInbox, PendingReader
from schemas.search import ConditionState, GetAnswer, GetRequest, Mode, PendingState, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, Limits, Settings
from schemas.status import AgentStatus, Availability

_log = structlog.get_logger(__name__)

#: Share of the deadline that is kept for the store while a search waits for a vector.
_STORE_SHARE = 0.1

#: Share of the deadline that is kept for the partial answer of a late search.
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
    """Memory of one agent's folder of generations, with its status and its probes.

    `pending` reads the queue and `inbox` takes the request of `sync`; both may be absent.
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
        self.agent = agent
        self._own = resources is None
        self.resources = resources or SearchResources(settings)
        self._pending = pending
        self._inbox = inbox
        self._chosen = (takeover_token(settings, agent), self.resources.embedder(agent))
        self.files = AgentFiles.of(settings, agent)
        self.generations = Generations.of(settings, agent.id, shelf=self.resources.shelf)
        self.reader = SharedReader(self.generations, open_readers=self.resources.open_readers)
        self.freshness = Freshness(settings, agent, pending=pending, inbox=inbox, threads=self.resources.asking)

    @property
    def limits(self) -> Limits:
        """Upper bounds of this agent's answers."""
        return self.agent.limits

    @property
    def embedder(self) -> QueryEmbedder:
        """Return the embedder in use, which changes when a fallback takes over or gives way."""
        token = takeover_token(self._settings, self.agent)
        if token != self._chosen[0]:
            self._chosen = (token, self.resources.embedder(self.agent))
        return self._chosen[1]

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        """Return the answer within the deadline, whatever hangs."""
        answer = await self._found(request)
        return with_corpora(answer, request.corpus) if request.corpus is not None else answer

    async def _found(self, request: SearchRequest) -> SearchAnswer:
        deadline = Deadline(started=time.monotonic(), seconds=self.agent.limits.timeout_ms / 1000)
        if not _allows(self.agent, session_of(request.session_key)) or request.corpus == "wiki":
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
            return await _Search(self, request, deadline).answer()
        except Exception as error:  # noqa: BLE001 - the client gets an answer, and the log keeps the reason
            return self._failed(error, deadline)

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
                lease=self.reader.visit,
                pending=self._pending or GuardedPendingReader(None),
                queue_expected=self._pending is not None,
                choice=embedder.chosen,
                queries=embedder.choice,
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
        """Embed a word with the chosen provider."""
        choice, vectors = self.embedder.choice, self.embedder.vectors
        if vectors is None:
            return Availability(available=False, reason=choice.error or choice.reason or "provider = none")
        reason = vectors.probe(self.agent.limits.timeout_ms / 1000, agent=self.agent.id)
        return Availability(available=reason is None, reason=reason)

    def probe_vector_availability(self) -> Availability:
        """Search the vectors of the index once."""
        return self.status().vector_search

    @property
    def chosen(self) -> ProviderChoice:
        """Return the choice of an embedding provider by the settings."""
        return self.embedder.chosen

    @property
    def provider(self) -> EmbeddingProvider | None:
        """Return the embedding provider of the settings, None with keywords only."""
        return self.embedder.chosen.provider

    def reading(self) -> AbstractContextManager[StoreReader | None]:
        """Lend the answering generation for the block, None if there is none; see `SharedReader.visit`."""
        return self.reader.visit()

    def close(self) -> None:
        """Close everything but shared resources; running reads finish first."""
        self.reader.close()
        if self._own:
            self.resources.close()

    def _failed(self, error: Exception, deadline: Deadline) -> SearchAnswer:
        """Return the answer of a search that raised."""
        lack = unavailable(str(error), warning="memory search is unavailable", action="run `recalld status`")
        if isinstance(error, StoreCorrupt):
            lack["action"] = "wait until the index is rebuilt, or run `recalld rebuild`"
        elif isinstance(error, PatternTooCostly):
            lack |= {"error": error.of_question, "action": f"ask in other words, or {REWRITING}"}
            lack |= {"warning": "this question was not searched for", "disabled": None}
        elif not isinstance(error, RecalldError):
            _log.error("search_failed", agent=self.agent.id, exc_info=error)
            lack |= {"error": f"the search failed: {type(error).__name__}", "action": "look into the log"}
        took_ms = round((time.monotonic() - deadline.started) * 1000, 2)
        return SearchAnswer(provider=self._chosen[1].choice.name, took_ms=took_ms, **lack)


def get_search_manager(
    settings: Settings,
    agent_id: str,
    *,
    resources: SearchResources | None = None,
    pending: PendingReader | None = None,
    inbox: EventInbox | None = None,
) -> tuple[SearchManager | None, str | None]:
    """Return an agent's manager, or None and the reason in one sentence.

    `resources` are those that the managers of a process share, and that the caller closes. `pending` reads the queue,
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


@dataclass(slots=True)
class _Asked:
    """Searched part of a request, without its secrets, and the embedding of it that has begun.

    `question` is the key of the answer's cache, None for an answer that is not kept.
    """

    wanted: Wanted
    embedder: QueryEmbedder
    cut: Condition | None
    question: Question | None
    begun: Future[Vector] | None = None

    def without_provider(self) -> Condition | None:
        """Return the reason for keywords only; None with a provider, or if the settings ask for keywords only."""
        choice = self.embedder.choice
        if choice.provider is not None or choice.requested == "none":
            return None
        reason = choice.error or choice.reason or "no embedding provider"
        return Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": reason})


class _Search:
    """One search from its arrival to its answer: wait for changes, look into the cache, embed, retrieve, answer.

    Whatever blocks runs on the threads of `SearchResources`, and at the deadline there is an answer in any case: a
    thread that still hangs is abandoned. While a slow provider embeds the query, the search holds no thread, and its
    keywords are searched already.
    """

    def __init__(self, on: SearchManager, request: SearchRequest, deadline: Deadline) -> None:
        self._on = on
        self._request = request
        self._deadline = deadline
        self._asked: _Asked | None = None
        self._words: Future[Candidates | None] | None = None
        self._moment = Moment()
        # Until then the search waits for changes.
        wait_ms = DEFAULT_WAIT_MS if request.wait_ms is None else request.wait_ms
        self._until = deadline.started + min(wait_ms / 1000, _WAIT_SHARE * deadline.seconds)

    async def answer(self) -> SearchAnswer:
        """Return the answer within the deadline, with the results found by then.

        Raises what the store raises, and RuntimeError while the resources are being closed.
        """
        limit = asyncio.timeout(self._deadline.left(keeping=_LATE_SHARE))
        try:
            async with limit:
                return await self._run()
        except TimeoutError:
            if not limit.expired():
                raise
            return await self._late()

    async def _run(self) -> SearchAnswer:
        reading, asking = self._on.resources.reading, self._on.resources.asking
        asked = await on_thread(asking, self._prepare)
        if not asked.wanted.query:
            return self._answer(asked, (), "none", ())
        # The provider embeds while the search waits for changes.
        self._moment = await self._on.freshness.settled(self._moment, self._request.wait_ms, self._until)
        if asked.begun is None and (kept := await on_thread(reading, lambda: self._kept(asked))) is not None:
            return kept
        # Queued before the thread that waits for it, so the two never wait for each other.
        self._words = words = reading.submit(lambda: self._search_words(asked))
        side = await self._side(asked)
        return await on_thread(reading, lambda: self._retrieved(asked, side, words))

    async def _late(self) -> SearchAnswer:
        """Return the answer at the deadline: by keywords, or empty."""
        params = {"seconds": self._deadline.seconds}
        asked, words = self._asked, self._words
        if asked is not None and words is not None and words.done():
            try:
                async with asyncio.timeout(self._deadline.left()):
                    found = await on_thread(self._on.resources.reading, lambda: self._by_words(asked, words))
            except TimeoutError:
                pass
            except Exception:  # noqa: BLE001 - the search itself goes on with that store and may be closing it
                _log.warning("late_search_failed", agent=self._on.agent.id, exc_info=True)
            else:
                late = (Condition(ConditionCode.SEARCH_LATE_KEYWORDS, params=params),)
                return self._answer(asked, found, "keyword", late, look=False)
        return self._answer(asked, (), "none", (Condition(ConditionCode.SEARCH_LATE, params=params),), look=False)

    def _prepare(self) -> _Asked:
        """Mask the query's secrets, choose the provider, begin to embed, and look for changes that wait."""
        agent, request = self._on.agent, self._request
        # The index holds masks where secrets were, and a provider gets to see none.
        searched = searched_query(request.query, redactor_for(agent, "memory", "sessions", budget=ASKING))
        wanted = Wanted(
            query=searched.text,
            max_results=request.max_results or agent.query.max_results,
            min_score=request.min_score if request.min_score is not None else agent.query.min_score,
            sources=request.searched(agent.sources),
            hybrid=agent.query.hybrid,
            withheld=withheld_from(session_of(request.session_key), self._on.files),
        )
        embedder = self._on.embedder
        asked = _Asked(wanted, embedder, searched.cut, None)
        if asked.without_provider() is None:
            provider = embedder.choice.provider
            asked.question = question_of(
                agent.id,
                wanted,
                max_snippet_chars=agent.limits.max_snippet_chars,
                embedding=(provider.identity, provider.model) if provider is not None else None,
            )
        if wanted.query and not (asked.question is not None and self._on.resources.answers.knows(asked.question)):
            self._begin(asked)
        self._asked = asked
        if wanted.query:
            self._moment = self._on.freshness.look(request.wait_ms, self._until)
        return asked

    def _begin(self, asked: _Asked) -> None:
        if (vectors := asked.embedder.vectors) is not None and asked.begun is None:
            seconds = self._deadline.left(keeping=_STORE_SHARE)
            asked.begun = vectors.begin(asked.wanted.query, seconds=seconds, agent=self._on.agent.id)

    def _kept(self, asked: _Asked) -> SearchAnswer | None:
        """Return the kept answer, if the index has not changed since; otherwise begin to embed."""
        if asked.question is None:
            return None
        with self._on.reader.lease() as reader:
            kept = self._on.resources.answers.get(asked.question, reader.change_token()) if reader is not None else None
        if kept is None:
            self._begin(asked)
            return None
        return self._answer(asked, kept.passages, kept.mode, (), vectors=kept.vectors_pending)

    def _search_words(self, asked: _Asked) -> Candidates | None:
        with self._on.reader.lease() as reader:
            if reader is None:
                return None
            return by_keywords(reader, asked.wanted, needed=asked.embedder.vectors is None)

    async def _side(self, asked: _Asked) -> QuerySide | None:
        """Wait for the query's vector; None with keywords only."""
        vectors, begun = asked.embedder.vectors, asked.begun
        if vectors is None or begun is None:
            return None
        identity, model = vectors.provider.identity, vectors.provider.model
        try:
            return QuerySide(identity, model, await vectors.result(begun, self._deadline.left(keeping=_STORE_SHARE)))
        except Unavailable as error:
            lack = Condition(ConditionCode.QUERY_NOT_EMBEDDED, params={"reason": str(error)})
            return QuerySide(identity, model, None, lack)

    def _retrieved(self, asked: _Asked, side: QuerySide | None, words: Future[Candidates | None]) -> SearchAnswer:
        with self._on.reader.lease() as reader:
            if reader is None:
                return self._answer(asked, (), "none", (Condition(ConditionCode.INDEX_MISSING),))
            token = reader.change_token()
            pending = self._on.freshness.vectors_pending(reader, token)
            # At the deadline this thread stops waiting for a hanging read of keywords.
            found = retrieve(reader, asked.wanted, side, lambda: words.result(self._deadline.left()))
            passed = self._shown(reader, found)
            complete = not found.lacks and self._deadline.left() > 0
            if asked.question is not None and complete and reader.change_token() == token:
                self._on.resources.answers.put(asked.question, token, KeptAnswer(passed, found.mode, pending))
        return self._answer(asked, passed, found.mode, found.lacks, vectors=pending)

    def _by_words(self, asked: _Asked, words: Future[Candidates | None]) -> tuple[Passage, ...]:
        """Return the passages by keywords of a search that is late."""
        with self._on.reader.lease() as reader:
            if reader is None:
                return ()
            return self._shown(reader, retrieve(reader, asked.wanted, None, words.result))

    def _shown(self, reader: StoreReader, found: Found) -> tuple[Passage, ...]:
        if (redact := late_redactor(reader, self._on.agent)) is not None:
            hits = [(fused, replace(row, text=redact(row.key.source, row.text))) for fused, row in found.hits]
            found = replace(found, hits=tuple(hits))
        return tuple(passages(found, max_snippet_chars=self._on.agent.limits.max_snippet_chars))

    def _answer(
        self,
        asked: _Asked | None,
        found: tuple[Passage, ...],
        mode: Mode,
        lacks: tuple[Condition, ...],
        *,
        vectors: int = 0,
        look: bool = True,
    ) -> SearchAnswer:
        """Return the answer with the conditions of this moment; `look` at the disk for the best copy of a passage."""
        missing = asked.without_provider() if asked is not None else None
        lacking = [*lacks, *([missing] if missing is not None else [])]
        fallback = text_of(lacking[0]) if lacking and mode != "none" else None
        pending, unwatched = self._moment.pending, self._moment.unwatched
        if pending is None:
            lacking.append(Condition(ConditionCode.QUEUE_UNREACHABLE))
        elif unwatched is not None:
            lacking.append(unwatched)
        if asked is not None and asked.cut is not None:
            lacking.append(asked.cut)
        cited = self._cites()
        choice = asked.embedder.choice if asked is not None else None
        return SearchAnswer(
            results=tuple(shown(passage, self._is_there if look else None, cited=cited) for passage in found),
            provider=choice.name if choice is not None else None,
            model=choice.provider.model if choice is not None and choice.provider is not None else None,
            mode=mode,
            fallback=fallback is not None,
            fallback_reason=fallback,
            citations=cited,
            degraded=tuple(map(text_of, lacking)),
            conditions=tuple(ConditionState(**one.body()) for one in lacking),
            pending=(pending or PendingState()).model_copy(update={"vectors": vectors}),
            stale=True if pending is not None and pending.documents else None,
            took_ms=round((time.monotonic() - self._deadline.started) * 1000, 2),
        )

    def _is_there(self, key: DocumentKey) -> bool:
        try:
            return self._on.files.stat(key) is not None
        except RecalldError:
            return True  # the disk does not say

    def _cites(self) -> bool:
        setting = self._on.agent.citations
        if setting != "auto":
            return setting == "on"
        return not session_of(self._request.session_key).is_shared
