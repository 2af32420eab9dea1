"""What every store promises of transcripts, which are written slice after slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN
from memory.store.reader import TranscriptMark, VectorState
from memory.store.writer import DocumentDelete, DocumentWrite, NewChunk, Refusal, Store, WriteOutcome
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


def test_what_is_no_transcript_has_no_mark(store: Store) -> None:
    store.write([document(NOTE, "note")])
    assert store.transcript(NOTE) is None
    assert store.transcript(TALK) is None


def test_an_append_goes_on_from_the_mark_and_keeps_what_it_does_not_name(store: Store) -> None:
    first = written(store, "one", "two", "open")
    append = piece(*said("open, and more", "new", first=2), continues=mark(3), to=mark(5), keep=2)
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
    late = piece(*said("late"), continues=continues, to=mark(9), keep=0)
    assert store.write([late, document(NOTE, "fine")]) == [CONFLICT, COMMITTED]
    assert (ids_of(store), ordinals_of(store)) == (ids, [0, 1, 2])
    assert store.transcript(TALK) == mark(3)
    assert store.revision(TALK) == revision
    assert found(store, "late") == set()


def test_the_state_in_a_mark_is_not_compared(store: Store) -> None:
    written(store, "one")
    assert store.write([piece(continues=replace(mark(1), state=""), to=mark(2))]) == [COMMITTED]


def test_a_slice_cannot_continue_what_the_index_does_not_know(store: Store) -> None:
    assert store.write([piece(*said("one"), continues=mark(1), to=mark(2))]) == [CONFLICT]
    assert store.file(TALK) is None
    assert store.transcript(TALK) is None


def test_two_slices_of_one_transcript_go_into_one_call(store: Store) -> None:
    first = piece(*said("one", "two", "open"), continues=None, to=mark(3), final=False)
    second = piece(*said("two, after all", "three", first=1), continues=mark(3), to=mark(5), keep=1)
    assert store.write([first, second]) == [COMMITTED, COMMITTED]
    assert texts_of(store) == ["one", "two, after all", "three"]
    assert store.counts().chunks == 3
    assert store.transcript(TALK) == mark(5)


def test_a_slice_takes_over_what_the_one_before_it_in_the_same_call_brought(store: Store) -> None:
    first = piece(*said("one", "two", vectors=False), continues=None, to=mark(2), final=False)
    second = piece(*said("one", "two"), continues=mark(2), to=mark(3), keep=0, final=False)
    third = piece(*said("two", first=5), continues=mark(3), to=mark(4), keep=0)
    assert store.write([first, second, third]) == [COMMITTED] * 3
    assert (texts_of(store), ordinals_of(store)) == (["two"], [5])
    assert states_of(store) == [VectorState.READY]
    assert [hit.id for hit in store.search_vectors(vector(3), 9)] == ids_of(store)


def test_of_two_writers_of_the_same_lines_the_first_wins(store: Store) -> None:
    written(store, "one")
    mine = piece(*said("two", first=1), continues=mark(1), to=mark(2))
    assert store.write([mine, mine]) == [COMMITTED, CONFLICT]
    assert texts_of(store) == ["one", "two"]


def test_an_empty_transcript_is_a_file_with_a_mark(store: Store) -> None:
    assert store.write([piece(continues=None, to=mark(0))]) == [COMMITTED]
    assert store.transcript(TALK) == mark(0)
    assert store.counts().chunks == 0


def test_touching_asks_for_the_digest_of_the_mark(store: Store) -> None:
    written(store, "one")
    store.touch({TALK: FileStat(1, 2, 3)}, content_hashes={TALK: mark(2).digest})
    assert [file.stat for file in store.files()] == [STAT]
    store.touch({TALK: FileStat(1, 2, 3)}, content_hashes={TALK: mark(1).digest})
    assert [file.stat for file in store.files()] == [FileStat(1, 2, 3)]
    assert store.transcript(TALK) == mark(1)


# Notes and transcripts -------------------------------------------------------------------------------


@pytest.mark.parametrize("continues", [None, mark(1)])
def test_a_note_does_not_become_a_transcript_by_accident(store: Store, continues: TranscriptMark | None) -> None:
    store.write([document(TALK, "written as a note")])
    assert store.write([piece(*said("one"), continues=continues, to=mark(2), keep=0)]) == [CONFLICT]
    assert store.transcript(TALK) is None
    assert texts_of(store) == ["written as a note"]


def test_a_transcript_does_not_become_a_note_unless_it_is_deleted_first(store: Store) -> None:
    written(store, "one")
    assert store.write([document(TALK, "a note", revision=store.revision(TALK))]) == [CONFLICT]
    assert texts_of(store) == ["one"]
    assert store.write([DocumentDelete(TALK, store.revision(TALK))]) == [COMMITTED]
    assert store.write([document(TALK, "a note", revision=store.revision(TALK))]) == [COMMITTED]
    assert texts_of(store) == ["a note"]
    assert store.transcript(TALK) is None


# Stale chunks ----------------------------------------------------------------------------------------


def test_text_that_comes_again_keeps_its_id_and_its_vector(store: Store) -> None:
    first = written(store, "one", "two", "three", "four")
    again = piece(*said("new", "three", "one", vectors=False), continues=mark(4), to=mark(3, "other"), keep=0)
    assert store.write([again]) == [COMMITTED]
    assert texts_of(store) == ["new", "three", "one"]
    assert ids_of(store)[1:] == [first[2], first[0]]
    assert states_of(store) == [VectorState.PENDING, VectorState.READY, VectorState.READY]
    lines = [(one.start_line, one.end_line) for one in store.chunks_of(TALK)]
    assert lines == [(1, 1), (2, 2), (3, 3)]
    assert set(store.vector_scores(vector(3), first)) == {first[0], first[2]}


def test_a_text_that_was_said_often_is_taken_over_once_for_each_time(store: Store) -> None:
    first = written(store, "again", "between", "again", "again", "last")
    again = piece(*said("again", "again", "new"), continues=mark(5), to=mark(3, "other"), keep=0)
    assert store.write([again]) == [COMMITTED]
    assert ids_of(store)[:2] == [first[0], first[2]], "the earliest first"
    assert texts_of(store) == ["again", "again", "new"]

    more = piece(*said("again", "again", "again", "again"), continues=mark(3, "other"), to=mark(4), keep=0)
    assert store.write([more]) == [COMMITTED]
    assert ids_of(store)[:2] == [first[0], first[2]]
    assert len(set(ids_of(store))) == 4
    assert texts_of(store) == ["again"] * 4


def test_only_stale_chunks_of_the_same_transcript_are_taken_over(store: Store) -> None:
    other = piece(*said("same", "other"), continues=None, to=mark(2), of=ARCHIVED)
    unfinished = piece(*said("more", first=2), continues=mark(2), to=mark(3), keep=0, final=False, of=ARCHIVED)
    store.write([other, unfinished])
    theirs = ids_of(store, ARCHIVED)
    mine = written(store, "same", "kept")
    append = piece(*said("other", "kept", first=1), continues=mark(2), to=mark(4), keep=1)
    assert store.write([append]) == [COMMITTED]
    assert texts_of(store) == ["same", "other", "kept"]
    assert [ids_of(store)[0], ids_of(store)[2]] == mine
    assert not set(ids_of(store)) & set(theirs)
    assert ids_of(store, ARCHIVED) == theirs


def test_the_final_slice_deletes_what_is_still_stale_everywhere(store: Store) -> None:
    first = written(store, "gateway one", "gateway two!", "gateway three?")
    again = piece(*said("gateway two!"), continues=mark(3), to=mark(1, "other"), keep=0)
    assert store.write([again]) == [COMMITTED]
    assert ids_of(store) == [first[1]]
    assert set(store.chunk_rows(first)) == {first[1]}
    assert found(store, "gateway") == {first[1]}
    assert [hit.id for hit in store.search_vectors(vector(1), 9)] == [first[1]]
    assert store.counts().chunks == store.counts().vectors_ready == 1


def test_without_keep_nothing_becomes_stale(store: Store) -> None:
    first = written(store, "one", "two")
    assert store.write([piece(*said("three", first=2), continues=mark(2), to=mark(3))]) == [COMMITTED]
    assert ids_of(store)[:2] == first
    assert ordinals_of(store) == [0, 1, 2]


def test_keep_may_lie_beyond_the_end(store: Store) -> None:
    first = written(store, "one", "two")
    assert store.write([piece(*said("three", first=2), continues=mark(2), to=mark(3), keep=7)]) == [COMMITTED]
    assert ids_of(store)[:2] == first
    assert ordinals_of(store) == [0, 1, 2]


def half_read_anew(store: Store) -> list[int]:
    """Two of five chunks are of the new version, the other three are stale; returns the first ids."""
    first = written(store, "gateway one", "gateway two", "gateway three", "gateway four", "gateway five")
    half = piece(*said("gateway four", "new start"), continues=mark(5), to=mark(2, "other"), keep=0, final=False)
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


def test_later_slices_finish_what_was_left_half_done(store: Store) -> None:
    first = half_read_anew(store)
    assert [file.stat for file in store.files()] == [FORGOTTEN], "somebody has to come back"
    going_on = piece(
        *said("gateway two", "the end", first=2), continues=mark(2, "other"), to=mark(4, "other"), final=True
    )
    assert store.write([going_on]) == [COMMITTED]
    assert texts_of(store) == ["gateway four", "new start", "gateway two", "the end"]
    assert ids_of(store)[0] == first[3]
    assert ids_of(store)[2] == first[1]
    assert found(store, "gateway") == {first[3], first[1]}


def test_what_is_left_half_done_may_be_read_anew_once_more(store: Store) -> None:
    first = half_read_anew(store)
    once_more = piece(
        *said("gateway one", "gateway two", "gateway three", "gateway four", "gateway five"),
        continues=mark(2, "other"),
        to=mark(5),
        keep=0,
    )
    assert store.write([once_more]) == [COMMITTED]
    assert ids_of(store) == first
    assert ordinals_of(store) == [0, 1, 2, 3, 4]
    assert found(store, "start") == set()


def test_what_became_stale_stays_so_whatever_is_kept_later(store: Store) -> None:
    half_read_anew(store)
    less = piece(*said("another", first=1), continues=mark(2, "other"), to=mark(2), keep=1, final=False)
    assert store.write([less]) == [COMMITTED]
    assert ordinals_of(store)[:2] == [0, 1]
    assert ordinals_of(store)[2:] == [-1, -2, -2, -3, -5]
    assert ids_of(store)[3] < ids_of(store)[4], "of two that were in one place the older one comes first"
    assert texts_of(store)[:2] == ["gateway four", "another"]


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


def test_a_transcript_that_is_deleted_and_comes_back_in_one_call_begins_anew(store: Store) -> None:
    first = written(store, "one", "two")
    outcomes = store.write(
        [DocumentDelete(TALK, store.revision(TALK)), piece(*said("two"), continues=None, to=mark(1), keep=0)]
    )
    assert outcomes == [COMMITTED, COMMITTED]
    assert texts_of(store) == ["two"]
    assert not set(ids_of(store)) & set(first)


# Vectors of stale chunks -----------------------------------------------------------------------------


def test_a_pending_chunk_takes_the_vector_that_its_text_comes_back_with(store: Store) -> None:
    first = written(store, "one", "two", vectors=False)
    store.write([piece(*said("one"), *said("two", first=1, vectors=False), continues=mark(2), to=mark(3), keep=0)])
    assert ids_of(store) == first
    assert states_of(store) == [VectorState.READY, VectorState.PENDING]
    assert store.search_vectors(vector(3), 9)[0].score == pytest.approx(1, abs=1e-5)
    assert [pending.id for pending in store.pending_chunks(9)] == [first[1]]


def test_a_refused_chunk_takes_the_vector_that_its_text_comes_back_with(store: Store) -> None:
    refused = [chunk(text, place, refused="too long") for place, text in enumerate(["one", "other"])]
    store.write([piece(*refused, continues=None, to=mark(2))])
    first = ids_of(store)
    store.write([piece(*said("one"), *said("other", first=1, vectors=False), continues=mark(2), to=mark(3), keep=0)])
    assert ids_of(store) == first
    assert states_of(store) == [VectorState.READY, VectorState.REFUSED]
    assert [one.id for one in store.refused_chunks(TALK)] == [first[1]]
    assert [letter.reason for letter in store.dead_letters()] == ["line 2: too long"]


def test_a_ready_chunk_keeps_the_vector_that_it_has(store: Store) -> None:
    written(store, "one", "two")
    again = [chunk("one", 0, vector=vector(77)), chunk("two", 1, refused="too long")]
    store.write([piece(*again, continues=mark(2), to=mark(3), keep=0)])
    assert states_of(store) == [VectorState.READY, VectorState.READY]
    assert store.vectors_by_hash([text_hash("one")])[text_hash("one")] == pytest.approx(vector(3))
    assert store.dead_letters() == []


def test_a_stale_chunk_gets_its_vector_like_every_other_one(store: Store) -> None:
    first = written(store, "one", "two", vectors=False)
    store.write([piece(continues=mark(2), to=mark(0, "other"), keep=0, final=False)])
    assert [pending.id for pending in store.pending_chunks(9)] == first
    assert store.write_vectors({first[0]: (text_hash("one"), vector(1)), first[1]: (text_hash("two"), Refusal("no"))})
    store.write([piece(*said("two", "one", vectors=False), continues=mark(0, "other"), to=mark(2))])
    assert ids_of(store) == [first[1], first[0]]
    assert states_of(store) == [VectorState.REFUSED, VectorState.READY]


def test_a_vector_of_other_dimensions_is_refused_with_the_whole_call(store: Store) -> None:
    written(store, "one", "two", vectors=False)
    store.write([document(NOTE, "fine", vectors=[vector(1)])])
    for broken in ("one", "three"):
        slices = piece(chunk(broken, 0, vector=vector(1, 3)), continues=mark(2), to=mark(3), keep=0)
        with pytest.raises(ValueError, match="dimensions"):
            store.write([slices])
    assert store.transcript(TALK) == mark(2)
    assert ordinals_of(store) == [0, 1]
    assert states_of(store) == [VectorState.PENDING, VectorState.PENDING]


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


def test_a_slice_changes_the_token(store: Store) -> None:
    token = store.change_token()
    written(store, "one")
    assert store.change_token() != token
    token = store.change_token()
    store.write([piece(continues=mark(9), to=mark(10))])
    assert store.change_token() == token


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


def test_a_refused_chunk_that_does_not_outlive_its_call_leaves_no_letter(store: Store) -> None:
    first = piece(*refused("one"), continues=None, to=mark(1), final=False)
    second = piece(continues=mark(1), to=mark(2), keep=0)
    assert store.write([first, second]) == [COMMITTED, COMMITTED]
    assert store.dead_letters() == []


def test_an_append_keeps_the_letter_of_what_was_refused_before_as_it_is(store: Store) -> None:
    store.write([piece(*refused("one"), continues=None, to=mark(1))])
    [before] = store.dead_letters()
    store.write([piece(*said("two", first=1), continues=mark(1), to=mark(2))])
    assert store.dead_letters() == [before]


def test_a_refused_text_that_comes_again_is_no_second_refusal(store: Store) -> None:
    store.write([piece(*refused("one"), continues=None, to=mark(1))])
    store.write([piece(*said("new"), *refused("one", reason="no", first=1), continues=mark(1), to=mark(2), keep=0)])
    assert letters(store) == [(TALK, "line 2: too long", 1)]


def test_a_pending_text_that_comes_again_refused_is_refused(store: Store) -> None:
    first = written(store, "one", vectors=False)
    store.write([piece(*refused("one"), continues=mark(1), to=mark(2), keep=0)])
    assert ids_of(store) == first
    assert states_of(store) == [VectorState.REFUSED]
    assert letters(store) == [(TALK, "line 1: too long", 1)]


def test_the_letter_goes_with_the_last_refused_chunk_when_that_is_deleted(store: Store) -> None:
    store.write([piece(*refused("one"), continues=None, to=mark(1))])
    store.write([piece(*said("two"), continues=mark(1), to=mark(1, "other"), keep=0, final=False)])
    assert letters(store) == [(TALK, "line 1: too long", 1)], "it is stale, and still there"
    store.write([piece(continues=mark(1, "other"), to=mark(1, "other"))])
    assert store.dead_letters() == []


def test_the_reason_names_the_first_refused_chunk_and_stale_ones_last(store: Store) -> None:
    store.write([piece(*refused("one", "two", "three"), continues=None, to=mark(3))])
    store.write([piece(*refused("new", reason="no words"), continues=mark(3), to=mark(1, "o"), keep=1, final=False)])
    reasons = [(one.start_line, one.reason) for one in store.refused_chunks(TALK)]
    assert reasons[2:] == [(2, "too long"), (3, "too long")]
    assert {reason for line, reason in reasons[:2]} == {"too long", "no words"}


def test_a_retried_transcript_that_could_not_be_read_forgets_its_stat_and_not_its_mark(store: Store) -> None:
    written(store, "one")
    store.add_dead_letter(TALK, reason="damaged", error_class="TranscriptDamaged")
    assert store.retry_dead_letter(TALK) == 0
    assert [file.stat for file in store.files()] == [FORGOTTEN]
    assert store.transcript(TALK) == mark(1)
    assert store.write([piece(*said("two", first=1), continues=mark(1), to=mark(2))]) == [COMMITTED]


def test_a_retried_transcript_asks_for_its_refused_vectors_again(store: Store) -> None:
    store.write([piece(*refused("one"), *said("two", first=1), continues=None, to=mark(2))])
    assert store.retry_dead_letter(TALK) == 1
    assert store.dead_letters() == []
    assert [file.stat for file in store.files()] == [STAT]
    assert states_of(store) == [VectorState.PENDING, VectorState.READY]


def test_transcripts_that_begin_alike_are_known_by_their_first_text(store: Store) -> None:
    written(store, "one", "two")
    store.write([piece(*said("one", "three"), continues=None, to=mark(2), of=ARCHIVED), document(NOTE, "one")])
    assert store.begun_by(text_hash("one")) == [TALK, ARCHIVED]
    assert store.begun_by(text_hash("two")) == []
    store.write([piece(*said("four"), continues=mark(2), to=mark(3), keep=0)])
    assert store.begun_by(text_hash("one")) == [ARCHIVED]
    assert store.begun_by(text_hash("four")) == [TALK]


# Another name ----------------------------------------------------------------------------------------


def test_a_renamed_transcript_keeps_everything(store: Store) -> None:
    first = half_read_anew(store)
    assert store.rename_document(TALK, ARCHIVED)
    assert store.file(TALK) is None
    assert store.transcript(TALK) is None
    assert store.chunks_of(TALK) == []
    assert store.transcript(ARCHIVED) == mark(2, "other")
    file = store.file(ARCHIVED)
    assert file is not None
    assert (file.stat, file.content_hash) == (FORGOTTEN, mark(2, "other").digest)
    assert found(store, "gateway") == set(first)
    assert {row.key for row in store.chunk_rows(first).values()} == {ARCHIVED}
    going_on = piece(*said("the end", first=2), continues=mark(2, "other"), to=mark(3), of=ARCHIVED)
    assert store.write([going_on]) == [COMMITTED]
    assert ids_of(store, ARCHIVED)[0] == first[3]
    assert len(ids_of(store, ARCHIVED)) == 3


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


def test_a_letter_of_the_new_name_stays_when_the_document_brings_none(store: Store) -> None:
    written(store, "one")
    store.add_dead_letter(ARCHIVED, reason="permission denied", error_class="DocumentUnreadable")
    assert store.rename_document(TALK, ARCHIVED)
    assert letters(store) == [(ARCHIVED, "permission denied", 1)]


def test_what_is_unknown_cannot_be_renamed(store: Store) -> None:
    store.add_dead_letter(TALK, reason="never read", error_class="DocumentUnreadable")
    token = store.change_token()
    assert not store.rename_document(TALK, ARCHIVED)
    assert store.change_token() == token
    assert letters(store) == [(TALK, "never read", 1)]


def test_nothing_is_renamed_over_what_is_known(store: Store) -> None:
    first = written(store, "one")
    store.write([piece(*said("theirs"), continues=None, to=mark(1), of=ARCHIVED)])
    token = store.change_token()
    assert not store.rename_document(TALK, ARCHIVED)
    assert not store.rename_document(TALK, TALK)
    assert store.change_token() == token
    assert ids_of(store) == first
    assert texts_of(store) == ["one"]


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


def test_as_many_slices_as_one_likes_make_the_same_transcript(store: Store) -> None:
    texts: Sequence[str] = [f"message {number}" for number in range(40)]
    before: TranscriptMark | None = None
    for start in range(0, 40, 7):
        to = mark(min(40, start + 7))
        part = piece(*said(*texts[start : start + 7], first=start), continues=before, to=to, final=start + 7 >= 40)
        assert store.write([part]) == [COMMITTED]
        before = to
    assert texts_of(store) == texts
    assert ordinals_of(store) == list(range(40))
