"""What one search does, step by step: wait for changes, look among kept answers, embed, retrieve, answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from functools import cached_property

import structlog

from memory.documents.agent_files import AgentFiles
from memory.index.readers import SharedReader
from memory.redaction import query_redactor
from memory.search.answer_cache import KeptAnswer, Question, question_of
from memory.search.freshness import Freshness
from memory.search.index_probe import KnownExtent
from memory.search.late_redaction import Hiding
from memory.search.long_term import withheld_from
from memory.search.passages import Passage, passages
from memory.search.ranking.long_queries import AskedFor, asked_for
from memory.search.resources import Embedder, SearchResources
from memory.search.retrieval import Found, Progress, QuerySide, Wanted, retrieve
from memory.search.run import Deadline, Steps
from memory.search.scope import session_of
from memory.status.condition_texts import text_of
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.search import AlsoIn, ConditionState, Mode, PendingState, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings

_log = structlog.get_logger(__name__)

#: Documents with the text of a result that are named in it; others are only counted.
MOST_NAMED = 10

#: Share of the deadline that waiting for pending documents may take; the rest is for the search.
_WAIT_SHARE = 0.75

#: Seconds for which a search keeps its thread when its vector is not there yet: a model on this machine is quicker.
_PATIENCE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Searched:
    """What the searches of one agent have in common."""

    agent: AgentSettings
    files: AgentFiles
    resources: SearchResources
    reader: SharedReader
    extent: KnownExtent
    freshness: Freshness
    embedder: Callable[[], Embedder]


class SearchSteps:
    """One search. `run` is what a `SearchRun` runs, `late` what it answers when that takes too long."""

    def __init__(self, searched: Searched, request: SearchRequest, deadline: Deadline) -> None:
        self._on = searched
        self._request = request
        self._deadline = deadline
        self._progress = Progress()
        #: What is searched; None until the query has lost its secrets.
        self._asked: AskedFor | None = None
        #: What hides secrets that the index shows; None where it shows none.
        self._hiding: Hiding | None = None

    @cached_property
    def _embedder(self) -> Embedder:
        """The provider for all of this search. Looked up on its first thread: it looks at a file."""
        return self._on.embedder()

    def run(self) -> Steps:
        """Every step; yields the vector that has to be waited for."""
        request = self._request
        # The index holds masks where secrets were, and a provider gets to see none.
        asked = self._asked = asked_for(request.query, query_redactor(self._on.agent))
        if not asked.text:
            return self._answer((), "none", ())
        wanted = self._what_is_wanted(asked.text)
        question = self._question(wanted)
        answers = self._on.resources.answers
        side = None
        if question is None or not answers.knows(question):
            # Embedded while changes are waited for.
            side = self._side(wanted)
        self._on.freshness.wait(request.wait_ms, self._deadline.seconds * _WAIT_SHARE)
        if question is not None:
            kept = self._kept(question)
            if kept is not None:
                return kept
        side = side or self._side(wanted)
        if side is not None and (awaited := side.vector.awaited(_PATIENCE_SECONDS)) is not None:
            yield awaited
        return self._retrieved(wanted, side, question)

    def late(self) -> SearchAnswer:
        """What has been found by the deadline: by keywords, or nothing."""
        found = self._by_words()
        code = ConditionCode.SEARCH_LATE if found is None else ConditionCode.SEARCH_LATE_KEYWORDS
        late = (Condition(code, params={"seconds": self._deadline.seconds}),)
        return self._answer((), "none", late) if found is None else self._answer(self._shown(found), found.mode, late)

    def _what_is_wanted(self, query_text: str) -> Wanted:
        agent, request = self._on.agent, self._request
        query = agent.query
        return Wanted(
            query=query_text,
            max_results=request.max_results or query.max_results,
            min_score=request.min_score if request.min_score is not None else query.min_score,
            sources=request.searched(agent.sources),
            hybrid=query.hybrid,
            deadline=self._deadline.end,
            timeout_seconds=self._deadline.seconds,
            withheld=withheld_from(session_of(request.session_key), self._on.files),
        )

    def _question(self, wanted: Wanted) -> Question | None:
        if self._without_provider() is not None:
            return None  # such an answer is not what it should be
        provider = self._embedder.choice.provider
        return question_of(
            self._on.agent.id,
            wanted,
            max_snippet_chars=self._on.agent.limits.max_snippet_chars,
            embedding=(provider.identity, provider.model) if provider is not None else None,
        )

    def _side(self, wanted: Wanted) -> QuerySide | None:
        """Start embedding the query."""
        vectors = self._embedder.vectors
        if vectors is None:
            return None
        return QuerySide(
            identity=vectors.provider.identity,
            model=vectors.provider.model,
            vector=vectors.get(wanted.query, agent=self._on.agent.id),
            threads=self._on.resources.keyword_threads,
        )

    def _kept(self, question: Question) -> SearchAnswer | None:
        with self._on.resources.store_slots, self._on.reader.lease() as reader:
            if reader is None:
                return None
            token = reader.change_token()
            kept = self._on.resources.answers.get(question, token)
            if kept is None:
                return None
            pending = self._on.extent.of(reader, token).vectors_pending
        return self._answer(kept.passages, kept.mode, (), vectors_pending=pending)

    def _retrieved(self, wanted: Wanted, side: QuerySide | None, question: Question | None) -> SearchAnswer:
        answers = self._on.resources.answers
        with self._on.resources.store_slots, self._on.reader.lease() as reader:
            if reader is None:
                return self._answer((), "none", (Condition(ConditionCode.INDEX_MISSING),))
            token = reader.change_token()
            extent = self._on.extent.of(reader, token)
            if side is not None and not extent.is_large:
                side = replace(side, threads=None)
            self._hiding = Hiding.needed(reader, self._on.agent)
            found = retrieve(reader, wanted, side, self._progress)
            shown = self._shown(found)
            complete = not found.lacks and self._deadline.left() > 0
            if question is not None and complete and reader.change_token() == token:
                answers.put(question, token, KeptAnswer(shown, found.mode))
        return self._answer(shown, found.mode, found.lacks, vectors_pending=extent.vectors_pending)

    def _by_words(self) -> Found | None:
        """What a search that does not end has found by keywords; None when that takes too long, too."""
        by_words = self._progress.by_words
        if by_words is None:
            return None
        try:
            work = self._on.resources.keyword_threads.submit(by_words)
            return work.result(self._deadline.left())
        except FutureTimeout:
            work.cancel()
        except Exception:  # noqa: BLE001 - the search itself goes on with that store and may be closing it
            _log.warning("late_search_failed", agent=self._on.agent.id, exc_info=True)
        return None

    def _shown(self, found: Found) -> tuple[Passage, ...]:
        found = found if self._hiding is None else self._hiding.found(found)
        return tuple(passages(found, max_snippet_chars=self._on.agent.limits.max_snippet_chars))

    def _without_provider(self) -> Condition | None:
        """Return why there are keywords only although vectors were asked for; None when all is as it should be."""
        choice = self._embedder.choice
        if choice.provider is not None or choice.requested == "none":
            return None
        reason = choice.error or choice.reason or "no embedding provider"
        return Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": reason})

    def _answer(
        self,
        shown: tuple[Passage, ...],
        mode: Mode,
        lacks: tuple[Condition, ...],
        *,
        vectors_pending: int = 0,
    ) -> SearchAnswer:
        """The answer as of now. What is true of a moment only is found out here, also for a kept answer."""
        choice = self._embedder.choice
        missing = self._without_provider()
        lacking = [*lacks, *([missing] if missing is not None else [])]
        fallback = text_of(lacking[0]) if lacking and mode != "none" else None
        pending = self._on.freshness.state(vectors=vectors_pending)
        if pending is None:
            lacking.append(Condition(ConditionCode.QUEUE_UNREACHABLE))
        elif (blind := self._on.freshness.blind()) is not None:
            lacking.append(blind)
        if self._asked is not None and self._asked.cut is not None:
            lacking.append(self._asked.cut)
        cited = self._cites()
        return SearchAnswer(
            results=tuple(_result(passage.seen_in(self._is_there), cited=cited) for passage in shown),
            provider=choice.name,
            model=choice.provider.model if choice.provider is not None else None,
            mode=mode,
            fallback=fallback is not None,
            fallback_reason=fallback,
            citations=cited,
            degraded=tuple(map(text_of, lacking)),
            conditions=tuple(ConditionState(**one.body()) for one in lacking),
            pending=pending or PendingState(vectors=vectors_pending),
            stale=True if pending is not None and pending.documents else None,
            took_ms=round((time.monotonic() - self._deadline.started) * 1000, 2),
        )

    def _is_there(self, key: DocumentKey) -> bool:
        try:
            return self._on.files.stat(key) is not None
        except RecalldError:
            return True  # the system does not say

    def _cites(self) -> bool:
        setting = self._on.agent.citations
        if setting != "auto":
            return setting == "on"
        return not session_of(self._request.session_key).is_shared


def _result(passage: Passage, *, cited: bool) -> SearchResult:
    return SearchResult(
        path=passage.path,
        start_line=passage.start_line,
        end_line=passage.end_line,
        score=passage.score,
        vector_score=passage.vector_score,
        text_score=passage.text_score,
        snippet=passage.snippet,
        snippet_start_line=passage.snippet_start_line,
        snippet_end_line=passage.snippet_end_line,
        source=passage.source,
        citation=passage.citation if cited else None,
        also_in=_also_in(passage),
    )


def _also_in(passage: Passage) -> AlsoIn | None:
    if not passage.copies:
        return None
    return AlsoIn(count=len(passage.copies), paths=tuple(copy.path for copy in passage.copies[:MOST_NAMED]))
