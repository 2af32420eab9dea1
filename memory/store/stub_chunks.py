"""The chunks of the store in memory, and their BM25."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memory.chunking.segmenting import QueryTerm, index_text, index_title, query_terms
from memory.store.reader import ChunkRow, Vector, VectorState
from memory.store.writer import NewChunk
from schemas.documents import DocumentKey

# BM25 as FTS5 has it (https://www.sqlite.org/fts5.html#the_bm25_function).
_K1 = 1.2
_B = 0.75
_SMALLEST_IDF = 1e-6

# As in FTS5, private use counts as letters: `memory.chunking.segmenting` writes marks so.
_WORD = re.compile(r"(?:[^\W_]|[\ue000-\uefff])+")


@dataclass(slots=True)
class MemoryChunk:
    """One chunk, its words as they are searched for. A stale one keeps the ordinal that it had."""

    row: ChunkRow
    text_hash: str
    words: list[str]
    vector: Vector | None
    refusal: str | None
    said_at: float | None
    stale: bool = False

    @property
    def place(self) -> tuple[bool, int, int]:
        """What a document's chunks are ordered by."""
        return self.stale, self.row.ordinal, self.row.id

    @property
    def state(self) -> VectorState:
        """Whether it has its vector."""
        if self.refusal is not None:
            return VectorState.REFUSED
        return VectorState.PENDING if self.vector is None else VectorState.READY


def new_chunk(chunk_id: int, key: DocumentKey, added: NewChunk) -> MemoryChunk:
    """A chunk as it is inserted."""
    return MemoryChunk(
        row=ChunkRow(
            id=chunk_id,
            key=key,
            ordinal=added.ordinal,
            start_line=added.start_line,
            end_line=added.end_line,
            text=added.text,
        ),
        text_hash=added.text_hash,
        words=_WORD.findall(index_text(f"{index_title(key.source, key.path)}\n{added.text}").casefold()),
        vector=None if added.refused is not None else added.vector,
        refusal=added.refused,
        said_at=added.said_at,
    )


def bm25(query: str, chunks: Mapping[int, MemoryChunk]) -> dict[int, float]:
    """Scores of the chunks (by id) that hold a term of the query."""
    scores: dict[int, float] = {}
    average = sum(len(chunk.words) for chunk in chunks.values()) / max(1, len(chunks))
    for term in query_terms(query):
        counts = {chunk_id: count for chunk_id, chunk in chunks.items() if (count := _occurrences(term, chunk.words))}
        idf = math.log((len(chunks) - len(counts) + 0.5) / (len(counts) + 0.5))
        for chunk_id, count in counts.items():
            length = len(chunks[chunk_id].words) / average
            weight = count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
            scores[chunk_id] = scores.get(chunk_id, 0.0) + max(idf, _SMALLEST_IDF) * weight
    return scores


def holders(query: str, chunks: Mapping[int, MemoryChunk]) -> dict[str, int]:
    """How many of the chunks hold each of the query's terms."""
    return {
        term.text: sum(_occurrences(term, chunk.words) > 0 for chunk in chunks.values()) for term in query_terms(query)
    }


def _occurrences(term: QueryTerm, words: Sequence[str]) -> int:
    phrase = _WORD.findall(term.text.casefold())
    if not phrase:
        return 0
    if term.prefix and len(phrase) == 1:
        return sum(word.startswith(phrase[0]) for word in words)
    return sum(list(words[start : start + len(phrase)]) == phrase for start in range(len(words) - len(phrase) + 1))
