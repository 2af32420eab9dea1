"""Passages of an answer, and the cache of answers.

The cache holds each answer for exactly the revision of the index that the search read.

The key is everything that decides a search's results, except the index itself: the agent, the redacted query, number
and sources of results, the documents withheld from the session, the settings of ranking, and the embedding provider.
An answer holds for one revision (`StoreReader.change_token`: generation and number of the last commit), so a commit or
a new generation outdates it at once.

Facts of a moment are not kept: pending documents, citations and scope of a session, the time that a search took.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TypeAlias

from memory.search.ranking.overlap import shared
from memory.search.ranking.snippets import Snippet, make_snippet
from memory.search.retrieval import Found, Wanted
from memory.store.reader import ChunkRow
from schemas.documents import DocumentKey
from schemas.search import Mode


@dataclass(frozen=True, slots=True)
class Copy:
    """Another document with the text of a passage."""

    path: str
    source: str
    start_line: int
    end_line: int
    snippet_start_line: int
    snippet_end_line: int


@dataclass(frozen=True, slots=True)
class Passage:
    """One result. All lines are 1-based and inclusive.

    `start_line` to `end_line` hold the whole passage (a chunk), for a client that reads on with `get`. `snippet` is its
    matching part, and `snippet_start_line` to `snippet_end_line` hold exactly that. A transcript's lines are messages,
    whose ends a chunk does not mark: there the snippet has the lines of the passage. `copies` are in other documents,
    one in each, the best first.
    """

    path: str
    source: str
    start_line: int
    end_line: int
    score: float
    vector_score: float | None
    text_score: float | None
    snippet: str
    snippet_start_line: int
    snippet_end_line: int
    copies: tuple[Copy, ...] = ()

    def seen_in(self, is_there: Callable[[DocumentKey], bool]) -> Passage:
        """Return the passage as it stands in the best document that still exists; unchanged if none does."""
        if not self.copies:
            return self
        lines = (self.start_line, self.end_line, self.snippet_start_line, self.snippet_end_line)
        places = [Copy(self.path, self.source, *lines), *self.copies]
        there = (place for place in places if is_there(DocumentKey(place.source, place.path)))
        shown = next(there, places[0])
        return replace(self, **asdict(shown), copies=tuple(place for place in places if place is not shown))

    @property
    def citation(self) -> str:
        """Return `path#L5-L9`, or `path#L5` for a single line: the lines of the passage.

        It can be opened as it stands, and is the same for every snippet of the passage.
        """
        last = "" if self.start_line == self.end_line else f"-L{self.end_line}"
        return f"{self.path}#L{self.start_line}{last}"


def passages(found: Found, *, max_snippet_chars: int) -> Iterator[Passage]:
    """Yield the passages of a search, best first.

    Neighbouring chunks repeat some text, and no text is shown twice: a snippet avoids the snippets of better hits, and
    a hit without a word of its own is left out.
    """
    shown: dict[DocumentKey, list[tuple[ChunkRow, Snippet]]] = {}
    for fused, row in found.hits:
        better = shown.setdefault(row.key, [])
        snippet = make_snippet(
            row.text,
            start_line=row.start_line,
            terms=found.terms,
            max_chars=max_snippet_chars,
            shown=list(_shown_of(row, better)),
        )
        if snippet is None:
            continue
        better.append((row, snippet))
        is_note = not row.key.is_transcript
        yield Passage(
            path=row.key.path,
            source=row.key.source,
            start_line=row.start_line,
            end_line=row.end_line,
            score=round(fused.score, 4),
            vector_score=round(fused.vector, 4) if fused.vector is not None else None,
            text_score=round(fused.text, 4) if fused.text is not None else None,
            snippet=snippet.text,
            snippet_start_line=snippet.start_line if is_note else row.start_line,
            snippet_end_line=snippet.end_line if is_note else row.end_line,
            copies=tuple(_copies(row, snippet, found.copies.get(row.id, ()))),
        )


def _copies(row: ChunkRow, snippet: Snippet, others: Iterable[ChunkRow]) -> Iterator[Copy]:
    """Yield the places of a passage in other documents, one for each."""
    keys = {row.key}
    for other in others:
        if other.key in keys:
            continue
        keys.add(other.key)
        first, last = other.start_line, other.end_line
        if not other.key.is_transcript and (start := other.text.find(snippet.text)) >= 0:
            first += other.text.count("\n", 0, start)
            last = first + snippet.text.count("\n")
        yield Copy(other.key.path, other.key.source, other.start_line, other.end_line, first, last)


def _shown_of(row: ChunkRow, better: Iterable[tuple[ChunkRow, Snippet]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a chunk that snippets of others show: first character, and the one after the last."""
    for other, snippet in better:
        common = shared(row, other)
        if common is None:
            continue
        start = max(snippet.start, common.two)
        end = min(snippet.end, common.two + common.length)
        if start < end:
            yield start - common.two + common.one, end - common.two + common.one


#: Answers of a process: about 3 MB with six passages of 700 characters.
MOST_KEPT = 512

#: Memory of an answer and of a passage beside its text, in bytes, measured and rounded up.
_ANSWER_BYTES, _PASSAGE_BYTES = 1_200, 450

#: Everything that decides the results of a search, except the index.
Question: TypeAlias = tuple[str, Wanted, int, tuple[str, str] | None]


def question_of(
    agent: str, wanted: Wanted, *, max_snippet_chars: int, embedding: tuple[str, str] | None
) -> Question | None:
    """Return the key of a search's answer; None if the answer depends on the time, too.

    `embedding` is identity and model of the provider, None with keywords only.
    """
    if wanted.hybrid.temporal_decay.enabled:
        return None
    return agent, replace(wanted, now=0.0), max_snippet_chars, embedding


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """Passages, best first, the mode of the search that found them, and the chunks without a vector then."""

    passages: tuple[Passage, ...]
    mode: Mode
    vectors_pending: int = 0


class AnswerCache:
    """Least recently used cache of the answers of all agents of a process. Thread-safe."""

    def __init__(self, *, most: int = MOST_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Question, tuple[object, KeptAnswer]] = OrderedDict()
        #: Searches with and without a cached answer.
        self.hits = 0
        self.misses = 0

    @property
    def kept_bytes(self) -> int:
        """Return the estimated size of all answers."""
        with self._lock:
            shown = [passage for _, kept in self._kept.values() for passage in kept.passages]
            texts = sum(sys.getsizeof(passage.snippet) for passage in shown)
            return _ANSWER_BYTES * len(self._kept) + _PASSAGE_BYTES * len(shown) + texts

    def knows(self, question: Question) -> bool:
        """Return True if there is an answer, perhaps an outdated one. It counts as neither hit nor miss."""
        return question in self._kept

    def get(self, question: Question, revision: object) -> KeptAnswer | None:
        """Return the answer for this revision of the index, and forget an answer for another one."""
        with self._lock:
            known = self._kept.get(question)
            if known is not None and known[0] == revision:
                self.hits += 1
                self._kept.move_to_end(question)
                return known[1]
            self.misses += 1
            self._kept.pop(question, None)
            return None

    def put(self, question: Question, revision: object, answer: KeptAnswer) -> None:
        """Keep a complete answer of a search during which the index stayed at this revision."""
        with self._lock:
            self._kept[question] = revision, answer
            self._kept.move_to_end(question)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
