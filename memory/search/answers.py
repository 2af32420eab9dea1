"""Passages of an answer, and the cache of answers.

The cache holds each answer for exactly the revision of the index that the search read.

The key is everything that decides a search's results, except the index itself: the agent, the redacted query, number
and sources of results, the documents withheld from the session, the settings of ranking, and the embedding provider.
An answer holds for one revision (`StoreReader.change_token`: generation and number of the last commit), so a commit or
a new generation outdates it at once.

Facts of a moment are not cached: pending documents, citations and scope of a session, the time that a search took.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from memory.search.ranking.fusion import Fused
from memory.search.ranking.overlap import overlap_of
from memory.search.ranking.ranker import SearchParameters
from memory.search.ranking.snippets import Snippet, make_snippet
from memory.search.retrieval import Retrieval
from memory.store.reader import ChunkRow
from schemas.documents import DocumentKey
from schemas.search import AlsoIn, Mode, SearchResult

#: Documents with the text of a result that are named in it; others are only counted.
MOST_NAMED = 10


#: Result as it was found: one place in each document with its text, the best first.
Passage: TypeAlias = tuple[SearchResult, ...]


def result_of(passage: Passage, is_there: Callable[[DocumentKey], bool] | None, *, cited: bool) -> SearchResult:
    """Return the result as it stands in the best document that still exists; in the best one if none does."""
    best: SearchResult = passage[0]
    update: dict[str, object] = {} if cited else {"citation": None}
    if len(passage) > 1:
        existing = (place for place in passage if is_there is None or is_there(DocumentKey(place.source, place.path)))
        best = next(existing, best)
        other_paths = [place.path for place in passage if place is not best]
        update["also_in"] = AlsoIn(count=len(other_paths), paths=tuple(other_paths[:MOST_NAMED]))
    return best.model_copy(update=update) if update else best


def passages_of(
    retrieval: Retrieval, *, max_snippet_chars: int, is_of_rows: Callable[[DocumentKey], bool] = lambda _: False
) -> Iterator[Passage]:
    """Yield the passages of a search, best first. `is_of_rows`: True for a session in a database.

    Neighbouring chunks repeat some text, and no text is shown twice: a snippet avoids the snippets of better hits, and
    a hit without a word of its own is left out.
    """
    snippets_by_document: dict[DocumentKey, list[tuple[ChunkRow, Snippet]]] = {}
    for fused, row in retrieval.hits:
        better = snippets_by_document.setdefault(row.key, [])
        snippet = make_snippet(
            row.text,
            terms=retrieval.terms,
            max_chars=max_snippet_chars,
            overlaps=list(_overlapping_spans(row, better)),
        )
        if snippet is None:
            continue
        better.append((row, snippet))
        documents: dict[DocumentKey, ChunkRow] = {}
        for chunk in (row, *retrieval.copies.get(row.id, ())):
            documents.setdefault(chunk.key, chunk)
        yield tuple(_places(fused, row, snippet, documents.values(), is_of_rows))


def _places(
    fused: Fused,
    row: ChunkRow,
    snippet: Snippet,
    copies: Iterable[ChunkRow],
    is_of_rows: Callable[[DocumentKey], bool],
) -> Iterator[SearchResult]:
    """Yield the places of a passage.

    Lines are 1-based and inclusive: those of the whole chunk, for a client that reads on with `get`, and those of the
    snippet. A transcript's lines are messages, whose ends a chunk does not mark: there both are the same.
    """
    for chunk in copies:
        first, last = chunk.start_line, chunk.end_line
        start = snippet.start if chunk is row else chunk.text.find(snippet.text)
        if not chunk.key.is_transcript and start >= 0:
            first += chunk.text.count("\n", 0, start)
            last = first + snippet.text.count("\n")
        cited = session_citation_of if chunk.key.is_transcript and is_of_rows(chunk.key) else citation_of
        yield SearchResult(
            path=chunk.key.path,
            source=chunk.key.source,
            start_line=chunk.start_line,
            end_line=chunk.end_line,
            score=round(fused.score, 4),
            vector_score=round(fused.vector, 4) if fused.vector is not None else None,
            text_score=round(fused.text, 4) if fused.text is not None else None,
            rerank_score=fused.rerank,
            snippet=snippet.text,
            snippet_start_line=first,
            snippet_end_line=last,
            # The lines of the passage: the same for every snippet of it.
            citation=cited(chunk.key.path, chunk.start_line, chunk.end_line),
        )


def citation_of(path: str, start_line: int, end_line: int) -> str:
    """Return the name of lines of a document, as in `path#L5-L9`."""
    return f"{path}#L{start_line}" + (f"-L{end_line}" if end_line > start_line else "")


def session_citation_of(path: str, start_line: int, end_line: int) -> str:
    """Return the name of events of a session in a database, as in `session:<id>#5-9`, by the path of its document."""
    events = f"{start_line}" + (f"-{end_line}" if end_line > start_line else "")
    return f"session:{path.rpartition('/')[2].removesuffix('.jsonl')}#{events}"


def _overlapping_spans(row: ChunkRow, better: Iterable[tuple[ChunkRow, Snippet]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a chunk that better chunks' snippets show: first character, and the one after the last."""
    for chunk, snippet in better:
        common = overlap_of(row, chunk)
        if common is None:
            continue
        start = max(snippet.start, common.second_start)
        end = min(snippet.end, common.second_start + common.length)
        if start < end:
            yield start - common.second_start + common.first_start, end - common.second_start + common.first_start


#: Answers of a process: about 8 MB with six passages of 700 characters.
MAX_ANSWERS = 512

#: Memory of an answer and of a passage beside its text, in bytes, measured and rounded up.
_ANSWER_BYTES, _PASSAGE_BYTES = 1_200, 1_800

#: Everything that decides the results of a search, except the index.
Question: TypeAlias = tuple[str, SearchParameters, int, tuple[str, str] | None]


def question_of(
    agent: str, parameters: SearchParameters, *, max_snippet_chars: int, embedding: tuple[str, str] | None
) -> Question | None:
    """Return the key of a search's answer, which holds for a day; None if the answer depends on the time of day, too.

    `embedding` is identity and model of the provider, None with keywords only.
    """
    if parameters.hybrid.temporal_decay.enabled:
        return None
    day = datetime.fromtimestamp(parameters.now, parameters.zone).toordinal()
    return agent, replace(parameters, now=day), max_snippet_chars, embedding


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """Passages, best first, the mode of the search that found them, and the chunks without a vector then."""

    passages: tuple[Passage, ...]
    mode: Mode
    vectors_pending: int = 0


class AnswerCache:
    """Least recently used cache of the answers of all agents of a process. Thread-safe."""

    def __init__(self, *, most: int = MAX_ANSWERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[Question, tuple[object, CachedAnswer]] = OrderedDict()
        #: Searches with and without a cached answer.
        self.hits = 0
        self.misses = 0

    @property
    def kept_bytes(self) -> int:
        """Return the estimated size of all answers."""
        with self._lock:
            passages = [passage for _, answer in self._answers.values() for passage in answer.passages]
            texts = sum(sys.getsizeof(passage[0].snippet) for passage in passages)
            return _ANSWER_BYTES * len(self._answers) + _PASSAGE_BYTES * len(passages) + texts

    def knows(self, question: Question) -> bool:
        """Return True if there is an answer, perhaps an outdated one. It counts as neither hit nor miss."""
        return question in self._answers

    def get(self, question: Question, revision: object) -> CachedAnswer | None:
        """Return the answer for this revision of the index, and forget an answer for another one."""
        with self._lock:
            cached = self._answers.get(question)
            if cached is not None and cached[0] == revision:
                self.hits += 1
                self._answers.move_to_end(question)
                return cached[1]
            self.misses += 1
            self._answers.pop(question, None)
            return None

    def put(self, question: Question, revision: object, answer: CachedAnswer) -> None:
        """Keep a complete answer of a search during which the index stayed at this revision."""
        with self._lock:
            self._answers[question] = revision, answer
            self._answers.move_to_end(question)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
