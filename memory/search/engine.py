"""One search from its arrival to its answer: wait for changes, look into the cache, embed, retrieve, answer.

The steps are a generator. It yields the vector that a slow provider is still making, and the search holds no thread
until that future is done. So any number of searches can wait for a slow provider without delaying the others. The
caller, a thread or an event loop, keeps the time: when only the store's share of the deadline is left, the search goes
on without the vector, and at the deadline there is an answer in any case.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import structlog

from memory.documents.agent_files import AgentFiles
from memory.index.fingerprint import redaction_of
from memory.index.readers import SharedReader
from memory.redaction import ASKING, query_redactor, redaction_facts, redactor_for
from memory.search.answer_cache import KeptAnswer, Question, question_of
from memory.search.freshness import Freshness
from memory.search.index_probe import IndexSizeCache
from memory.search.long_term import withheld_from
from memory.search.passages import Passage, passages
from memory.search.ranking.terms import SearchedQuery, searched_query
from memory.search.resources import QueryEmbedder, SearchResources
from memory.search.retrieval import STORE_SHARE, Found, Progress, QuerySide, Wanted, retrieve
from memory.search.scope import session_of
from memory.status.condition_texts import text_of
from memory.store.reader import StoreReader
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.search import AlsoIn, ConditionState, Mode, PendingState, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, MemorySettings

_log = structlog.get_logger(__name__)

Steps = Generator["Future[Any]", None, SearchAnswer]

#: Share of the deadline that is kept for the partial answer of a late search.
LATE_SHARE = 0.05

#: Documents with the text of a result that are named in it; others are only counted.
MOST_NAMED = 10

#: Share of the deadline that waiting for pending documents may take; the rest is for the search.
_WAIT_SHARE = 0.75

#: Seconds for which a search keeps its thread while its vector is being made: a model on this machine is quicker.
_PATIENCE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time limit of a search: `seconds` after its arrival, at `started` on the monotonic clock."""

    started: float
    seconds: float

    @property
    def end(self) -> float:
        """Return the deadline on the monotonic clock."""
        return self.started + self.seconds

    def left(self, *, keeping: float = 0.0) -> float:
        """Return the seconds until the deadline, less the share `keeping` of the whole time; at least 0."""
        return max(0.0, self.end - keeping * self.seconds - time.monotonic())


class SearchRun:
    """Execution of a search's steps. `late` answers at the deadline in place of them, `failed` when they raise.

    Call exactly one of `answer` and `answered`, once.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        threads: Executor,
        deadline: Deadline,
        late: Callable[[], SearchAnswer],
        failed: Callable[[Exception], SearchAnswer],
    ) -> None:
        self._steps = steps
        self._threads = threads
        self._deadline = deadline
        self._late = late
        self._failed = failed
        self._done: Future[SearchAnswer] = Future()
        self._lock = threading.Lock()
        self._parked = False
        self._hurried = False
        self._given_up = False
        self._go_on()

    def answer(self) -> SearchAnswer:
        """Wait for the answer on a thread."""
        try:
            return self._done.result(self._deadline.left(keeping=STORE_SHARE))
        except FutureTimeout:
            self._hurry()
        try:
            return self._done.result(self._deadline.left(keeping=LATE_SHARE))
        except FutureTimeout:
            self._given_up = True
            return self._late()

    async def answered(self) -> SearchAnswer:
        """Wait for the answer on an event loop."""
        done = asyncio.wrap_future(self._done)
        await asyncio.wait((done,), timeout=self._deadline.left(keeping=STORE_SHARE))
        if not done.done():
            self._hurry()
            await asyncio.wait((done,), timeout=self._deadline.left(keeping=LATE_SHARE))
        if done.done():
            return done.result()
        self._given_up = True
        return await asyncio.to_thread(self._late)

    def _go_on(self) -> None:
        try:
            self._threads.submit(self._advance).add_done_callback(self._fail_if_cancelled)
        except RuntimeError as error:
            self._done.set_result(self._failed(error))

    def _fail_if_cancelled(self, call: Future[None]) -> None:
        if call.cancelled():
            self._done.set_result(self._failed(RuntimeError("the service is ending")))

    def _advance(self) -> None:
        """Run the steps until the next future, on one of the threads and never on two at a time."""
        if self._given_up:
            return
        try:
            awaited = next(self._steps)
        except StopIteration as end:
            self._done.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - the client gets an answer; `failed` keeps the reason
            self._done.set_result(self._failed(error))
        else:
            self._park(awaited)

    def _park(self, awaited: Future[Any]) -> None:
        with self._lock:
            self._parked = True
            hurried = self._hurried
        if hurried:
            self._resume()
        else:
            awaited.add_done_callback(lambda _: self._resume())

    def _resume(self) -> None:
        with self._lock:
            parked, self._parked = self._parked, False
        if parked:
            self._go_on()

    def _hurry(self) -> None:
        """Let the search go on without the future that it waits for."""
        with self._lock:
            self._hurried = True
        self._resume()


@dataclass(frozen=True, slots=True)
class AgentSearch:
    """Parts that all searches of one agent share."""

    agent: AgentSettings
    files: AgentFiles
    resources: SearchResources
    reader: SharedReader
    size: IndexSizeCache
    freshness: Freshness
    embedder: Callable[[], QueryEmbedder]


class SearchSteps:
    """One search. A `SearchRun` runs `run`, and answers with `late` when that takes too long."""

    def __init__(self, on: AgentSearch, request: SearchRequest, deadline: Deadline) -> None:
        self._on = on
        self._request = request
        self._deadline = deadline
        self._progress = Progress()
        #: Part of the query that is searched; None until its secrets are masked.
        self._asked: SearchedQuery | None = None
        #: Masks secrets that the index shows; None for an index that shows none.
        self._redact: Callable[[str, str], str] | None = None

    @cached_property
    def _embedder(self) -> QueryEmbedder:
        """Return the provider for all of this search. It is looked up on the first thread, as that reads a file."""
        return self._on.embedder()

    def run(self) -> Steps:
        """Run every step; yield the vector if the search has to wait for it."""
        request = self._request
        # The index holds masks where secrets were, and a provider gets to see none.
        asked = self._asked = searched_query(request.query, query_redactor(self._on.agent))
        if not asked.text:
            return self._answer((), "none", ())
        wanted = self._wanted(asked.text)
        question = self._question(wanted)
        answers = self._on.resources.answers
        side = None
        if question is None or not answers.knows(question):
            # The provider embeds while the search waits for changes.
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
        """Return the answer at the deadline: by keywords, or empty."""
        found = self._by_words()
        code = ConditionCode.SEARCH_LATE if found is None else ConditionCode.SEARCH_LATE_KEYWORDS
        late = (Condition(code, params={"seconds": self._deadline.seconds}),)
        return self._answer((), "none", late) if found is None else self._answer(self._shown(found), found.mode, late)

    def _wanted(self, query_text: str) -> Wanted:
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
            return None  # an answer without its provider is not cached
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
            pending = self._on.size.get(reader, token).vectors_pending
        return self._answer(kept.passages, kept.mode, (), vectors_pending=pending)

    def _retrieved(self, wanted: Wanted, side: QuerySide | None, question: Question | None) -> SearchAnswer:
        answers = self._on.resources.answers
        with self._on.resources.store_slots, self._on.reader.lease() as reader:
            if reader is None:
                return self._answer((), "none", (Condition(ConditionCode.INDEX_MISSING),))
            token = reader.change_token()
            size = self._on.size.get(reader, token)
            if side is not None and not size.is_large:
                side = replace(side, threads=None)
            self._redact = late_redactor(reader, self._on.agent)
            found = retrieve(reader, wanted, side, self._progress)
            shown = self._shown(found)
            complete = not found.lacks and self._deadline.left() > 0
            if question is not None and complete and reader.change_token() == token:
                answers.put(question, token, KeptAnswer(shown, found.mode))
        return self._answer(shown, found.mode, found.lacks, vectors_pending=size.vectors_pending)

    def _by_words(self) -> Found | None:
        """Return the keyword hits of a search that is late; None if they are late, too."""
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
        if (redact := self._redact) is not None:
            hits = [(fused, replace(row, text=redact(row.key.source, row.text))) for fused, row in found.hits]
            found = replace(found, hits=tuple(hits))
        return tuple(passages(found, max_snippet_chars=self._on.agent.limits.max_snippet_chars))

    def _without_provider(self) -> Condition | None:
        """Return the reason for keywords only; None with a provider, or if the settings ask for keywords only."""
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
        """Return the answer with the conditions of this moment, which no cached answer holds."""
        choice = self._embedder.choice
        missing = self._without_provider()
        lacking = [*lacks, *([missing] if missing is not None else [])]
        fallback = text_of(lacking[0]) if lacking and mode != "none" else None
        pending = self._on.freshness.state(vectors=vectors_pending)
        if pending is None:
            lacking.append(Condition(ConditionCode.QUEUE_UNREACHABLE))
        elif (unwatched := self._on.freshness.unwatched()) is not None:
            lacking.append(unwatched)
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
            return True  # the disk does not say

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
