"""Chunks that an edit keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.chunking.chunker import Chunk
from memory.index.changes import UnmatchedChunks
from memory.store.reader import StoredChunk, VectorState
from memory.store.writer import MovedChunk

HASHES = st.lists(st.sampled_from("abcdef"), max_size=12)


def stored(hashes: list[str]) -> list[StoredChunk]:
    return [
        StoredChunk(100 + place, text, place, place * 10 + 1, place * 10 + 10, VectorState.READY)
        for place, text in enumerate(hashes)
    ]


def cut(hashes: list[str]) -> list[Chunk]:
    return [Chunk(place, place * 10 + 1, place * 10 + 10, text, text) for place, text in enumerate(hashes)]


def difference(
    before: list[str], after: list[str]
) -> tuple[tuple[Chunk, ...], tuple[MovedChunk, ...], tuple[int, ...]]:
    chunks = UnmatchedChunks(stored(before))
    return *chunks.take_over(cut(after)), chunks.remaining_ids()


@given(before=HASHES, after=HASHES)
def test_the_difference_leads_from_the_old_version_to_the_new_one(before: list[str], after: list[str]) -> None:
    added, moved, removed = difference(before, after)
    rows = {chunk.id: (chunk.text_hash, chunk.ordinal, chunk.start_line) for chunk in stored(before)}
    for chunk_id in removed:
        del rows[chunk_id]
    for kept in moved:
        rows[kept.id] = (rows[kept.id][0], kept.ordinal, kept.start_line)
    now = sorted([*rows.values(), *((new.text_hash, new.ordinal, new.start_line) for new in added)])
    assert now == sorted((new.text_hash, new.ordinal, new.start_line) for new in cut(after))
    # Nothing is embedded again that is there as often.
    for text in set(before) | set(after):
        assert sum(new.text_hash == text for new in added) == max(0, after.count(text) - before.count(text))
