"""What an edit keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.index.changes import CutChunk, difference
from memory.store.reader import StoredChunk, VectorState

HASHES = st.lists(st.sampled_from("abcdef"), max_size=12)


def stored(hashes: list[str]) -> list[StoredChunk]:
    return [
        StoredChunk(100 + place, text, place, place * 10 + 1, place * 10 + 10, VectorState.READY)
        for place, text in enumerate(hashes)
    ]


def cut(hashes: list[str]) -> list[CutChunk]:
    return [CutChunk(place, place * 10 + 1, place * 10 + 10, text, text) for place, text in enumerate(hashes)]


@given(before=HASHES, after=HASHES)
def test_the_difference_leads_from_the_old_version_to_the_new_one(before: list[str], after: list[str]) -> None:
    delta = difference(stored(before), cut(after))
    rows = {chunk.id: (chunk.text_hash, chunk.ordinal, chunk.start_line) for chunk in stored(before)}
    for chunk_id in delta.removed:
        del rows[chunk_id]
    for kept in delta.moved:
        rows[kept.id] = (rows[kept.id][0], kept.ordinal, kept.start_line)
    now = sorted([*rows.values(), *((new.text_hash, new.ordinal, new.start_line) for new in delta.added)])
    assert now == sorted((new.text_hash, new.ordinal, new.start_line) for new in cut(after))


@given(before=HASHES, after=HASHES)
def test_nothing_is_embedded_again_that_is_there_as_often(before: list[str], after: list[str]) -> None:
    delta = difference(stored(before), cut(after))
    for text in set(before) | set(after):
        added = sum(new.text_hash == text for new in delta.added)
        assert added == max(0, after.count(text) - before.count(text))


def test_unchanged_chunks_that_did_not_move_are_not_even_named() -> None:
    delta = difference(stored(["a", "b", "c"]), cut(["a", "x", "c"]))
    assert [new.text_hash for new in delta.added] == ["x"]
    assert delta.moved == ()
    assert delta.removed == (101,)
