"""One slice of a transcript, for the store in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter

from memory.store.reader import VectorState
from memory.store.stub_chunks import MemoryChunk, new_chunk
from memory.store.writer import NewChunk, TranscriptWrite


def write_chunks(chunks: dict[int, MemoryChunk], change: TranscriptWrite, next_id: Callable[[], int]) -> bool:
    """Do to the chunks what the slice says; returns whether it brought a refusal."""
    refusal = False
    if change.keep is not None:
        for chunk in _chunks_of(chunks, change):
            chunk.stale = chunk.stale or chunk.row.ordinal >= change.keep
    stale = sorted((chunk for chunk in _chunks_of(chunks, change) if chunk.stale), key=attrgetter("place"))
    for added in change.added:
        taken = next((one for one in stale if one.stale and one.text_hash == added.text_hash), None)
        if taken is None:
            chunk_id = next_id()
            chunks[chunk_id] = new_chunk(chunk_id, change.key, added)
            refusal = refusal or added.refused is not None
        else:
            refusal = _take_over(taken, added) or refusal
    if change.final:
        for chunk in stale:
            if chunk.stale:
                del chunks[chunk.row.id]
    return refusal


def _chunks_of(chunks: dict[int, MemoryChunk], change: TranscriptWrite) -> list[MemoryChunk]:
    return [chunk for chunk in chunks.values() if chunk.row.key == change.key]


def _take_over(chunk: MemoryChunk, added: NewChunk) -> bool:
    chunk.stale = False
    chunk.row = replace(chunk.row, ordinal=added.ordinal, start_line=added.start_line, end_line=added.end_line)
    chunk.said_at = added.said_at
    if added.vector is not None and chunk.state is not VectorState.READY:
        chunk.vector, chunk.refusal = added.vector, None
    elif added.refused is not None and chunk.state is VectorState.PENDING:
        chunk.refusal = added.refused
        return True
    return False
