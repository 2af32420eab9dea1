"""Passages of an answer: snippet, lines, citation and copies of each hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace

from memory.search.ranking.overlap import shared
from memory.search.ranking.snippets import Snippet, make_snippet
from memory.search.retrieval import Found
from memory.store.reader import ChunkRow
from schemas.documents import DocumentKey


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
