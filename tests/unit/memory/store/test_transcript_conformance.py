"""Promises of every store about transcripts, which are written part after part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.reader import TranscriptMark, VectorState
from memory.store.writer import DocumentDelete, DocumentTouch, DocumentWrite, KeptChunk, NewChunk, Store, WriteOutcome
from schemas.documents import DocumentKey, FileStat
from tests.storing import STAT, TALK, chunk, document, key, mark, piece, said, text_hash, vector

ARCHIVED = key("sessions/a.jsonl.reset.2026-11-20", source="sessions")
NOTE = key("MEMORY.md")

COMMITTED, CONFLICT = WriteOutcome.COMMITTED, WriteOutcome.CONFLICT


@pytest.fixture(autouse=True)
def always_sound(store: Store) -> object:
    """Whatever a test did, the store holds together afterwards."""
    yield
    assert store.check() == []


def written(store: Store, *texts: str, vectors: bool = True) -> list[int]:
    """Write TALK as a whole, up to the mark of as many lines; returns the ids of its chunks."""
    write = piece(*said(*texts, vectors=vectors), continues=None, to=mark(len(texts)))
    assert store.write([write]) == [COMMITTED]
    return ids_of(store)


def ids_of(store: Store, document_key: DocumentKey = TALK) -> list[int]:
    return [one.id for one in store.chunks_of(document_key)]


def ordinals_of(store: Store) -> list[int]:
    return [one.ordinal for one in store.chunks_of(TALK)]


def states_of(store: Store) -> list[VectorState]:
    return [one.vector_state for one in store.chunks_of(TALK)]


def texts_of(store: Store) -> list[str]:
    ids = ids_of(store)
    rows = store.chunk_rows(ids)
    return [rows[chunk_id].text for chunk_id in ids]


def found(store: Store, query: str) -> set[int]:
    return {hit.id for hit in store.search_text(query, 50)}


# Marks -----------------------------------------------------------------------------------------------


def test_a_transcript_comes_back_with_its_mark_and_the_digest_as_its_content(store: Store) -> None:
    write = replace(piece(*said("hello", "world"), continues=None, to=mark(2)), notes=("1 line is not JSON",))
    assert store.write([write]) == [COMMITTED]
    assert store.transcript(TALK) == mark(2)
    file = store.file(TALK)
    assert file is not None
    assert (file.stat, file.content_hash, file.notes) == (STAT, mark(2).digest, ("1 line is not JSON",))
    assert texts_of(store) == ["hello", "world"]
    assert states_of(store) == [VectorState.READY, VectorState.READY]


def test_chunks_know_when_they_were_said(store: Store) -> None:
    early, late = replace(chunk("one", 0), said_at=100.5), replace(chunk("two", 1), said_at=200.0)
    store.write([piece(early, late, chunk("three", 2), continues=None, to=mark(3))])
    ids = ids_of(store)
    assert store.times_of([*ids, 999]) == {ids[0]: 100.5, ids[1]: 200.0}


def test_an_append_goes_on_from_the_mark_and_keeps_what_it_does_not_name(store: Store) -> None:
    first = written(store, "one", "two", "open")
    assert [one.id for one in store.chunks_of(TALK, first=2)] == first[2:]
    said_now = said("open, and more", "new", first=2)
    append = piece(*said_now, continues=mark(3), to=mark(5), stale_from=2, removed=(first[2],))
    assert store.write([append]) == [COMMITTED]
    assert store.transcript(TALK) == mark(5)
    assert texts_of(store) == ["one", "two", "open, and more", "new"]
    assert ids_of(store)[:2] == first[:2]
    assert first[2] not in store.chunk_rows(first)


@pytest.mark.parametrize(
    "continues",
    [
        None,
        mark(2),
        replace(mark(3), offset=1),
        replace(mark(3), lines=2),
        replace(mark(3), digest="of other lines"),
    ],
)
def test_a_slice_that_continues_another_mark_conflicts_and_changes_nothing(
    store: Store, continues: TranscriptMark | None
) -> None:
    ids = written(store, "one", "two", "three")
    revision = store.revision(TALK)
    late = piece(*said("late"), continues=continues, to=mark(9), stale_from=0)
    assert store.write([late, document(NOTE, "fine")]) == [CONFLICT, COMMITTED]
    assert (ids_of(store), ordinals_of(store)) == (ids, [0, 1, 2])
    assert store.transcript(TALK) == mark(3)
    assert store.revision(TALK) == revision
    assert found(store, "late") == set()


def test_the_state_in_a_mark_is_not_compared(store: Store) -> None:
    written(store, "one")
    assert store.write([piece(continues=replace(mark(1), state=""), to=mark(2))]) == [COMMITTED]


def test_touching_asks_for_the_digest_of_the_mark(store: Store) -> None:
    written(store, "one")
    store.write([DocumentTouch(TALK, FileStat(1, 2, 3), mark(2).digest)])
    assert [file.stat for file in store.files()] == [STAT]
    store.write([DocumentTouch(TALK, FileStat(1, 2, 3), mark(1).digest)])
    assert [file.stat for file in store.files()] == [FileStat(1, 2, 3)]
    assert store.transcript(TALK) == mark(1)


# Stale chunks ----------------------------------------------------------------------------------------


def half_read_anew(store: Store) -> list[int]:
    """Two of five chunks are of the new version, the other three are stale; returns the first ids."""
    first = written(store, "gateway one", "gateway two", "gateway three", "gateway four", "gateway five")
    moved = (KeptChunk(first[3], 0, 1, 1),)
    to = mark(2, "other")
    half = piece(*said("new start", first=1), continues=mark(5), to=to, stale_from=0, moved=moved, final=False)
    assert store.write([half]) == [COMMITTED]
    return first


def test_what_is_stale_is_found_until_the_last_slice(store: Store) -> None:
    first = half_read_anew(store)
    assert found(store, "gateway") == set(first)
    assert {hit.id for hit in store.search_vectors(vector(1), 9)} >= set(first)
    assert store.counts().chunks == 6
    assert store.check() == []


def test_stale_chunks_come_last_and_in_their_order(store: Store) -> None:
    first = half_read_anew(store)
    assert ordinals_of(store) == [0, 1, -1, -2, -3, -5]
    assert [one.id for one in store.chunks_of(TALK)][2:] == [first[0], first[1], first[2], first[4]]


def test_an_answer_never_shows_a_negative_ordinal(store: Store) -> None:
    first = half_read_anew(store)
    assert [store.chunk_rows(first)[chunk_id].ordinal for chunk_id in first] == [0, 1, 2, 0, 4]


def test_a_deleted_transcript_leaves_nothing_behind(store: Store) -> None:
    first = half_read_anew(store)
    assert store.write([DocumentDelete(TALK, store.revision(TALK))]) == [COMMITTED]
    assert store.transcript(TALK) is None
    assert store.file(TALK) is None
    assert store.chunk_rows(first) == {}
    assert found(store, "gateway") == set()
    assert store.search_vectors(vector(1), 9) == []
    store.write([piece(*said("gateway two"), continues=None, to=mark(1))])
    assert not set(ids_of(store)) & set(first)


# Revisions -------------------------------------------------------------------------------------------


def test_each_slice_changes_the_revision_so_that_an_older_delete_conflicts(store: Store) -> None:
    before = store.revision(TALK)
    assert store.write([piece(*said("one"), continues=None, to=mark(1))]) == [COMMITTED]
    assert store.write([DocumentDelete(TALK, before)]) == [CONFLICT]
    read = store.revision(TALK)
    assert store.write([piece(*said("two", first=1), continues=mark(1), to=mark(2))]) == [COMMITTED]
    assert store.revision(TALK) > read
    assert store.write([DocumentDelete(TALK, read)]) == [CONFLICT]
    assert store.write([DocumentDelete(TALK, store.revision(TALK))]) == [COMMITTED]


# Dead letters ----------------------------------------------------------------------------------------


def refused(*texts: str, reason: str = "too long", first: int = 0) -> list[NewChunk]:
    return [chunk(text, first + place, refused=reason) for place, text in enumerate(texts)]


def letters(store: Store) -> list[tuple[DocumentKey, str, int]]:
    return [(letter.key, letter.reason, letter.attempts) for letter in store.dead_letters()]


def test_a_transcript_that_could_be_read_has_no_letter_any_more(store: Store) -> None:
    store.add_dead_letter(TALK, reason="permission denied", error_class="DocumentUnreadable")
    store.write([piece(continues=mark(7), to=mark(8))])
    assert len(store.dead_letters()) == 1
    written(store, "one")
    assert store.dead_letters() == []


def test_a_transcript_of_which_only_the_beginning_could_be_read_keeps_its_letter(store: Store) -> None:
    store.add_dead_letter(TALK, reason="damaged", error_class="TranscriptDamaged")
    assert store.write([piece(*said("alpha"), continues=None, to=mark(1), final=False)]) == [COMMITTED]
    assert [letter.reason for letter in store.dead_letters()] == ["damaged"]


def test_a_refused_chunk_of_any_slice_of_a_call_is_a_letter(store: Store) -> None:
    first = piece(*refused("one"), *said("two", first=1), continues=None, to=mark(2), final=False)
    second = piece(*said("three", first=2), continues=mark(2), to=mark(3))
    assert store.write([first, second]) == [COMMITTED, COMMITTED]
    assert letters(store) == [(TALK, "line 1: too long", 1)]
    third = piece(*refused("four", first=3), continues=mark(3), to=mark(4), final=False)
    fourth = piece(*refused("five", first=4), continues=mark(4), to=mark(5))
    assert store.write([third, fourth]) == [COMMITTED, COMMITTED]
    assert letters(store) == [(TALK, "line 1: too long; and 2 more chunks", 2)]


def test_an_append_keeps_the_letter_of_what_was_refused_before_as_it_is(store: Store) -> None:
    store.write([piece(*refused("one"), continues=None, to=mark(1))])
    [before] = store.dead_letters()
    store.write([piece(*said("two", first=1), continues=mark(1), to=mark(2))])
    assert store.dead_letters() == [before]


def test_transcripts_that_begin_alike_are_known_by_their_first_text(store: Store) -> None:
    written(store, "one", "two")
    store.write([piece(*said("one", "three"), continues=None, to=mark(2), of=ARCHIVED), document(NOTE, "one")])
    assert store.begun_by(text_hash("one")) == [TALK, ARCHIVED]
    assert store.begun_by(text_hash("two")) == []
    old = tuple(ids_of(store))
    store.write([piece(*said("four"), continues=mark(2), to=mark(3), stale_from=0, removed=old)])
    assert store.begun_by(text_hash("one")) == [ARCHIVED]
    assert store.begun_by(text_hash("four")) == [TALK]


# Another name ----------------------------------------------------------------------------------------


def test_a_note_can_be_renamed_as_well(store: Store) -> None:
    store.write([document(NOTE, "gateway", vectors=[vector(1)])])
    other = key("memory/other.md")
    ids = ids_of(store, NOTE)
    assert store.rename_document(NOTE, other)
    assert ids_of(store, other) == ids
    assert [hit.id for hit in store.search_vectors(vector(1), 5)] == ids


def test_a_renamed_document_brings_its_letter_along(store: Store) -> None:
    store.write([piece(*refused("one"), continues=None, to=mark(1))])
    store.add_dead_letter(ARCHIVED, reason="permission denied", error_class="DocumentUnreadable")
    [before] = [letter for letter in store.dead_letters() if letter.key == TALK]
    assert store.rename_document(TALK, ARCHIVED)
    [after] = store.dead_letters()
    assert after == replace(before, key=ARCHIVED)
    assert after.error_class == EMBEDDING_REFUSED
    assert store.retry_dead_letter(ARCHIVED) == 1


def test_who_read_a_document_before_it_was_renamed_conflicts(store: Store) -> None:
    written(store, "one")
    old, new = store.revision(TALK), store.revision(ARCHIVED)
    store.rename_document(TALK, ARCHIVED)
    assert store.revision(TALK) <= 0 < store.revision(ARCHIVED)
    assert store.revision(ARCHIVED) != old
    late = [
        DocumentDelete(TALK, old),
        DocumentDelete(ARCHIVED, new),
        piece(continues=mark(1), to=mark(2)),
        DocumentWrite(ARCHIVED, new, STAT, "h"),
    ]
    assert store.write(late) == [CONFLICT] * 4
    store.rename_document(ARCHIVED, TALK)
    assert store.write([DocumentDelete(TALK, old), DocumentDelete(ARCHIVED, new)]) == [CONFLICT] * 2
    assert texts_of(store) == ["one"]
