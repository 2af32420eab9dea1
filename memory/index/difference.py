"""Difference between the stored and the new chunks of a document; a chunk is identified by its text."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from memory.chunking.chunker import chunk_text, text_hash
from memory.embedding.providers.provider import EmbeddingProvider
from memory.store.reader import StoredChunk
from memory.store.writer import KeptChunk
from schemas.settings_sections import Chunking


@dataclass(frozen=True, slots=True)
class CutChunk:
    """Chunk cut from the new version of a document.

    `said_at` is the Unix time of its messages, None in a note.
    """

    ordinal: int
    start_line: int
    end_line: int
    text: str
    text_hash: str
    said_at: float | None = None


@dataclass(frozen=True, slots=True)
class ChunkDifference:
    """Changes to the stored chunks: `added` ones to insert, kept ones that `moved`, and `removed` ids to delete."""

    added: tuple[CutChunk, ...]
    moved: tuple[KeptChunk, ...]
    removed: tuple[int, ...]


def difference(stored: Sequence[StoredChunk], cut: Sequence[CutChunk]) -> ChunkDifference:
    """Compare the stored chunks of a document with those of its new version.

    Equal texts are matched in order, so that repeated passages keep as many rows as there are repeats.
    """
    rows: defaultdict[str, deque[StoredChunk]] = defaultdict(deque)
    for chunk in stored:
        rows[chunk.text_hash].append(chunk)
    added: list[CutChunk] = []
    moved: list[KeptChunk] = []
    for new in cut:
        same = rows[new.text_hash]
        if not same:
            added.append(new)
            continue
        old = same.popleft()
        if (old.ordinal, old.start_line, old.end_line) != (new.ordinal, new.start_line, new.end_line):
            moved.append(KeptChunk(old.id, new.ordinal, new.start_line, new.end_line))
    removed = tuple(chunk.id for left in rows.values() for chunk in left)
    return ChunkDifference(tuple(added), tuple(moved), removed)


#: Largest number of UTF-8 bytes in a chunk without a provider.
_MAX_BYTES = 8191


def byte_limit(provider: EmbeddingProvider | None) -> int:
    """Return the largest number of UTF-8 bytes in a chunk."""
    return provider.limits.input_bytes if provider is not None else _MAX_BYTES


def cut_document(text: str, chunking: Chunking, provider: EmbeddingProvider | None) -> list[CutChunk]:
    """Return the chunks that hold more than white space, each short enough for the provider."""
    chunks = chunk_text(text, tokens=chunking.tokens, overlap=chunking.overlap, max_bytes=byte_limit(provider))
    kept = (chunk for chunk in chunks if chunk.text.strip())
    return [
        CutChunk(ordinal, chunk.start_line, chunk.end_line, chunk.text, text_hash(chunk.text))
        for ordinal, chunk in enumerate(kept)
    ]
