"""What an answer shows of the passages that a search found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memory.search.retrieval import Found
from memory.search.snippets import make_snippet


@dataclass(frozen=True, slots=True)
class Passage:
    """One result. Lines are those of the whole passage (a chunk), 1-based and inclusive: whoever reads on with
    `get` wants all of it. `snippet` is the part of it that matched."""

    path: str
    source: str
    start_line: int
    end_line: int
    score: float
    vector_score: float | None
    text_score: float | None
    snippet: str

    @property
    def citation(self) -> str:
        """`path#L5-L9`, or `path#L5` for a single line."""
        last = "" if self.start_line == self.end_line else f"-L{self.end_line}"
        return f"{self.path}#L{self.start_line}{last}"


def passages(found: Found, *, max_snippet_chars: int) -> Iterator[Passage]:
    """The hits of a search, best first."""
    for fused, row in found.hits:
        snippet = make_snippet(row.text, start_line=row.start_line, terms=found.terms, max_chars=max_snippet_chars)
        yield Passage(
            path=row.key.path,
            source=row.key.source,
            start_line=row.start_line,
            end_line=row.end_line,
            score=round(fused.score, 4),
            vector_score=round(fused.vector, 4) if fused.vector is not None else None,
            text_score=round(fused.text, 4) if fused.text is not None else None,
            snippet=snippet.text,
        )
