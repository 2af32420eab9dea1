"""One search from its arrival to its answer: wait for changes, look into the cache, embed, retrieve, answer.

The search is a coroutine. Whatever blocks runs on the threads of `SearchResources`, and at the deadline there is an
answer in any case: a thread that still hangs is abandoned. While a slow provider embeds the query, the search holds no
thread, and its keywords are searched already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache

import structlog

from memory.documents.agent_files import AgentFiles
from memory.index.fingerprint import redaction_of
from memory.index.readers import SharedReader
from memory.redaction import ASKING, query_redactor, redaction_facts, redactor_for
from memory.search.answers import KeptAnswer, Passage, Question, passages, question_of
from memory.search.freshness import Freshness, Moment, on_thread, wait_seconds
from memory.search.query_vectors import Unavailable
from memory.search.ranking.terms import searched_query
from memory.search.resources import QueryEmbedder, SearchResources
from memory.search.retrieval import Candidates, Found, QuerySide, Wanted, by_keywords, retrieve
from memory.search.scope import session_of, withheld_from
from memory.status.condition_texts import text_of
from memory.store.reader import StoreReader, Vector
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.search import ConditionState, Mode, PendingState, SearchAnswer, SearchRequest
from schemas.settings import AgentSettings, MemorySettings

_log = structlog.get_logger(__name__)

#: Share of the deadline that is kept for the store while a search waits for a vector.
_STORE_SHARE = 0.1

#: Share of the deadline that is kept for the partial answer of a late search.
_LATE_SHARE = 0.05

#: Share of the deadline that waiting for pending documents may take; the rest is for the search.
_WAIT_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time limit of a search: `seconds` after its arrival, at `started` on the monotonic clock."""

    started: float
    seconds: float

    def left(self, *, keeping: float = 0.0) -> float:
        """Return the seconds until the deadline, less the share `keeping` of the whole time; at least 0."""
        return max(0.0, self.started + (1 - keeping) * self.seconds - time.monotonic())


@dataclass(frozen=True, slots=True)
class AgentSearch:
    """Parts that all searches of one agent share."""

    agent: AgentSettings
    files: AgentFiles
    resources: SearchResources
    reader: SharedReader
    freshness: Freshness
    embedder: Callable[[], QueryEmbedder]


async def search(on: AgentSearch, request: SearchRequest, deadline: Deadline) -> SearchAnswer:
    """Return the answer within the deadline, with the results found by then.

    Raises what the store raises, and RuntimeError while the resources are being closed.
    """
    one = _Search(on, request, deadline)
    limit = asyncio.timeout(deadline.left(keeping=_LATE_SHARE))
    try:
        async with limit:
            return await one.run()
    except TimeoutError:
        if not limit.expired():
            raise
        return await one.late()


@dataclass(slots=True)
class _Asked:
    """Searched part of a request, without its secrets, and the embedding of it that has begun.

    `question` is the key of the answer's cache, None for an answer that is not kept.
    """

    wanted: Wanted
    embedder: QueryEmbedder
    cut: Condition | None
    question: Question | None
    begun: Future[Vector] | Unavailable | None = None

    def without_provider(self) -> Condition | None:
        """Return the reason for keywords only; None with a provider, or if the settings ask for keywords only."""
        choice = self.embedder.choice
        if choice.provider is not None or choice.requested == "none":
            return None
        reason = choice.error or choice.reason or "no embedding provider"
        return Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": reason})


class _Search:
    """One search."""

    def __init__(self, on: AgentSearch, request: SearchRequest, deadline: Deadline) -> None:
        self._on = on
        self._request = request
        self._deadline = deadline
        self._asked: _Asked | None = None
        self._words: Future[Candidates | None] | None = None
        self._moment = Moment()
        # Until then the search waits for changes.
        self._until = deadline.started + min(wait_seconds(request.wait_ms), _WAIT_SHARE * deadline.seconds)

    async def run(self) -> SearchAnswer:
        """Run every step."""
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

    async def late(self) -> SearchAnswer:
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
        searched = searched_query(request.query, query_redactor(agent))
        wanted = Wanted(
            query=searched.text,
            max_results=request.max_results or agent.query.max_results,
            min_score=request.min_score if request.min_score is not None else agent.query.min_score,
            sources=request.searched(agent.sources),
            hybrid=agent.query.hybrid,
            withheld=withheld_from(session_of(request.session_key), self._on.files),
        )
        embedder = self._on.embedder()
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
        vector = await vectors.result(begun, self._deadline.left(keeping=_STORE_SHARE))
        if isinstance(vector, Unavailable):
            lack = Condition(ConditionCode.QUERY_NOT_EMBEDDED, params={"reason": vector.reason})
            return QuerySide(identity, model, None, lack)
        return QuerySide(identity, model, vector)

    def _retrieved(self, asked: _Asked, side: QuerySide | None, words: Future[Candidates | None]) -> SearchAnswer:
        with self._on.reader.lease() as reader:
            if reader is None:
                return self._answer(asked, (), "none", (Condition(ConditionCode.INDEX_MISSING),))
            token = reader.change_token()
            pending = self._on.freshness.vectors_pending(reader, token)
            # At the deadline this thread stops waiting for a hanging read of keywords.
            found = retrieve(reader, asked.wanted, side, lambda: words.result(self._deadline.left()))
            shown = self._shown(reader, found)
            complete = not found.lacks and self._deadline.left() > 0
            if asked.question is not None and complete and reader.change_token() == token:
                self._on.resources.answers.put(asked.question, token, KeptAnswer(shown, found.mode, pending))
        return self._answer(asked, shown, found.mode, found.lacks, vectors=pending)

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
        shown: tuple[Passage, ...],
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
            results=tuple(passage.shown(self._is_there if look else None, cited=cited) for passage in shown),
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


def late_redactor(reader: StoreReader, memory: MemorySettings) -> Callable[[str, str], str] | None:
    """Return the redactor (source, text) of texts from an index that was made with other rules of redaction.

    None if the index was made with the rules of the settings. One redactor shares its time limit among all texts (see
    `redactor_for`), and raises like that one: nothing may be shown then.
    """
    description = reader.meta("identity")
    if description is not None and redaction_of(description) == redaction_facts(memory):
        return None
    redactor = cache(lambda source: redactor_for(memory, source, budget=ASKING))
    return lambda source, text: redactor(source)(text)
