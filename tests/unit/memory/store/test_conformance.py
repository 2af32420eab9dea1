"""Promises of every store. A new implementation joins by the `store` fixture; `test_laws` has what holds always."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.reader import MOST_NAMED, ChunkFilter, SentenceSigns, Span, VectorState
from memory.store.writer import DocumentDelete, DocumentWrite, MovedChunk, Refusal, Store, WriteOutcome
from schemas.documents import DocumentKey, FileStat
from tests.storing import (
    STAT,
    TALK,
    VectorChunk,
    chunk,
    document,
    key,
    piece,
    position,
    said,
    text_hash,
    touch,
    vector,
    vectors_of,
)

NOTE = key("memory/2026-11-20.md")
OTHER = key("MEMORY.md")
ARCHIVED = key("sessions/a.jsonl.reset.2026-11-20", source="sessions")
COMMITTED, CONFLICT = WriteOutcome.COMMITTED, WriteOutcome.CONFLICT


@pytest.fixture(autouse=True)
def always_sound(store: Store) -> object:
    """Check after each test that the store holds together."""
    yield
    assert store.check() == []


def ids_of(store: Store, document_key: DocumentKey = NOTE) -> list[int]:
    return [stored.id for stored in store.chunks_of(document_key)]


def found(store: Store, query: str) -> set[int]:
    return {hit.id for hit in store.search_text(query, 50)}


# Documents -------------------------------------------------------------------------------------------


def test_a_document_comes_back_as_it_was_written(store: Store) -> None:
    added = (chunk("first 一\n", 0, vector=vector(1)), chunk("second", 1), chunk("third", 2, refused="too long"))
    write = DocumentWrite(
        key=NOTE,
        expected=0,
        stat=FileStat(size=3, mtime_ns=-5, inode=2**64 - 1, ctime_ns=1_800_000_000_123_456_789),
        content_hash="abc",
        added=added,
        vectors=vectors_of(added),
        notes=("invalid UTF-8 was replaced", "注意"),
    )
    assert store.write([write]) == [COMMITTED]

    file = store.file(NOTE)
    assert file is not None
    assert (file.key, file.stat, file.content_hash, file.notes) == (NOTE, write.stat, "abc", write.notes)
    assert list(store.files()) == [file]

    stored = store.chunks_of(NOTE)
    assert [one.ordinal for one in stored] == [0, 1, 2]
    assert [one.vector_state for one in stored] == [VectorState.READY, VectorState.PENDING, VectorState.REFUSED]
    assert [one.text_hash for one in stored] == [one.text_hash for one in write.added]

    row = store.chunk_rows([stored[0].id])[stored[0].id]
    assert (row.key, row.ordinal, row.start_line, row.end_line, row.text) == (NOTE, 0, 1, 1, "first 一\n")
    counts = store.counts()
    assert (counts.files, counts.chunks, counts.last_commit_at is not None) == (1, 3, True)
    assert (counts.vectors_ready, counts.vectors_pending, counts.vectors_refused) == (1, 1, 1)
    assert (store.chunks_by_path("memory"), store.chunks_by_path("sessions")) == ({NOTE.path: 3}, {})


def test_what_is_unknown_is_absent_and_not_an_error(store: Store) -> None:
    assert store.file(NOTE) is None
    assert store.chunks_of(NOTE) == []
    assert store.chunk_rows([1, 2]) == {}
    assert store.vectors_by_hash(["x"]) == store.vectors_of([1]) == {}
    assert store.search_vectors(vector(1), 5) == []
    assert store.vector_scores(vector(1), [1]) == {}
    assert store.search_text("gateway", 5) == []
    assert store.text_scores("gateway", [1]) == {}
    assert store.pending_hashes(5) == {}
    assert store.dead_letters() == []
    assert store.counts().last_commit_at is None
    assert (store.meta("dimensions"), store.meta("fingerprint")) == (None, "f")


def test_an_edit_keeps_the_ids_of_the_chunks_that_it_does_not_name(store: Store) -> None:
    store.write([document(NOTE, "one", "two", "three", vectors=[vector(1), vector(2), vector(3)])])
    one, two, three = ids_of(store)
    new, moved = chunk("two, edited", 1, vector=vector(4)), MovedChunk(id=three, ordinal=2, start_line=30, end_line=31)
    vectors = vectors_of([new])
    edit = DocumentWrite(NOTE, store.revision(NOTE), STAT, "new", (new,), vectors, moved=(moved,), removed=(two,))
    assert store.write([edit]) == [COMMITTED]

    after = store.chunks_of(NOTE)
    assert [after[0].id, after[2].id] == [one, three]
    assert after[1].id > three, "an id is never given twice"
    assert (after[2].start_line, after[2].end_line) == (30, 31)
    assert set(store.vector_scores(vector(2), [one, two, three])) == {one, three}


def test_a_write_cannot_touch_the_chunks_of_another_document(store: Store) -> None:
    store.write([document(NOTE, "mine"), document(OTHER, "theirs")])
    [theirs] = ids_of(store, OTHER)
    taken = MovedChunk(theirs, 9, 9, 9)
    store.write([DocumentWrite(NOTE, store.revision(NOTE), STAT, "x", moved=(taken,), removed=(theirs,))])
    assert [(one.id, one.ordinal) for one in store.chunks_of(OTHER)] == [(theirs, 0)]


# Revisions -------------------------------------------------------------------------------------------


def _write(store: Store) -> None:
    store.write([document(NOTE, "another life", revision=store.revision(NOTE))])


def _delete(store: Store) -> None:
    store.write([DocumentDelete(NOTE, store.revision(NOTE))])


@pytest.mark.parametrize(
    ("before", "between"),
    [
        ([_write], [_write]),
        ([_write], [_delete]),
        ([], [_write, _delete]),
        # So many commits that a counter of the document would have come round.
        ([_write], [_delete, *[_write] * 5]),
    ],
    ids=["it was written", "it went", "it came and went", "it went and came back"],
)
def test_a_stale_writer_conflicts_and_the_others_are_committed(
    store: Store, before: list[Callable[[Store], None]], between: list[Callable[[Store], None]]
) -> None:
    for step in before:
        step(store)
    stale = store.revision(NOTE)
    assert (stale > 0) == bool(before)
    for step in between:
        step(store)
        assert store.revision(NOTE) != stale
    fine = document(OTHER, "fine", revision=store.revision(OTHER))
    late = [document(NOTE, "stale", revision=stale), fine, DocumentDelete(NOTE, stale)]
    assert store.write(late) == [CONFLICT, COMMITTED, CONFLICT]
    assert (found(store, "stale"), len(found(store, "fine"))) == (set(), 1)


# Vectors ---------------------------------------------------------------------------------------------


def test_vectors_join_later_and_only_once(store: Store) -> None:
    store.write([document(NOTE, "one", "two", "three", "four")])
    one, two, three, four = store.chunks_of(NOTE)
    changed = store.write_vectors(
        {
            one.id: (one.text_hash, vector(1)),
            two.id: (two.text_hash, Refusal("too long")),
            three.id: ("another text by now", Refusal("passed over")),
            999: (four.text_hash, vector(4)),
        }
    )
    assert changed == 2
    states = [stored.vector_state for stored in store.chunks_of(NOTE)]
    assert states == [VectorState.READY, VectorState.REFUSED, VectorState.PENDING, VectorState.PENDING]
    assert store.write_vectors({one.id: (one.text_hash, vector(9))}) == 0
    assert store.search_vectors(vector(1), 1)[0].score == pytest.approx(1, abs=1e-5)
    assert store.pending_hashes(1) == {three.id: three.text_hash}
    assert letters(store) == [(NOTE, "line 2: too long", 1)]
    store.write_vectors({three.id: (three.text_hash, Refusal("no words"))})
    [(path, reason, count)] = letters(store)
    assert (path, reason.startswith("line 2: too long; and 1 "), count) == (NOTE, True, 2)


def test_pending_chunks_can_be_had_of_some_texts_only(store: Store) -> None:
    store.write([document(NOTE, "one", "two", "three", vectors=[vector(1)]), document(OTHER, "two", "four")])
    (two, three), (again, four) = store.chunks_of(NOTE)[1:], store.chunks_of(OTHER)
    waiting = [(one.id, one.text_hash) for one in (two, three, again, four)]
    assert list(store.pending_hashes().items()) == waiting
    some = {two.text_hash, four.text_hash}
    assert list(store.pending_hashes(10, among=some)) == [two.id, again.id, four.id]
    assert list(store.pending_hashes(2, among=some)) == [two.id, again.id]
    assert store.pending_hashes(10, among={"the hash of no chunk", text_hash("one")}) == {}
    assert store.pending_hashes(10, among=set()) == {}


def test_the_nearest_come_first_and_with_their_cosines(store: Store) -> None:
    vectors = [vector(seed) for seed in range(40)]
    store.write([document(NOTE, *[f"text {number}" for number in range(40)], "pending", vectors=vectors)])
    *ids, pending = ids_of(store)
    cosines = np.stack(vectors) @ vector(100)
    expected = [ids[index] for index in np.argsort(-cosines)]
    hits = store.search_vectors(vector(100), 7)
    assert [hit.id for hit in hits] == expected[:7]
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines, reverse=True)[:7], abs=1e-5)
    assert [hit.id for hit in store.search_vectors(vector(100), 200)] == expected
    assert store.vector_scores(vector(100), [ids[3], ids[5], pending, 999]) == pytest.approx(
        {ids[3]: cosines[3], ids[5]: cosines[5]}, abs=1e-5
    )
    read = store.vectors_of([ids[5], pending, ids[3], 999])
    assert {number: one.tolist() for number, one in read.items()} == {
        ids[number]: pytest.approx(vectors[number].tolist()) for number in (3, 5)
    }


def test_vectors_are_found_by_the_text_that_they_belong_to(store: Store) -> None:
    store.write([document(NOTE, "same", "other", vectors=[vector(1), vector(2)])])
    store.write([document(OTHER, "same", "pending", vectors=[vector(1)])])
    by_hash = store.vectors_by_hash([text_hash("same"), text_hash("pending"), text_hash("nowhere")])
    assert list(by_hash) == [text_hash("same")]
    assert by_hash[text_hash("same")].dtype == np.float32
    assert by_hash[text_hash("same")] == pytest.approx(vector(1))


# Keywords --------------------------------------------------------------------------------------------


def test_keywords_find_english_and_chinese_best_first(store: Store) -> None:
    store.write(
        [
            document(NOTE, "the gateway was restarted", "网关重启之后恢复正常", "nothing here"),
            document(OTHER, "gateway gateway gateway", *[f"filler {number}" for number in range(8)]),
        ]
    )
    english, chinese, *_ = ids_of(store)
    hits = store.search_text("what about the gateway?", 5)
    assert [hit.id for hit in hits] == [ids_of(store, OTHER)[0], english]
    assert hits[0].score > hits[1].score > 0
    assert found(store, "重启") == {chinese}
    assert len(store.search_text("gateway", 1)) == 1
    scores = {hit.id: hit.score for hit in store.search_text("gateway nothing", 10)}
    assert store.text_scores("gateway nothing", [*ids_of(store), *ids_of(store, OTHER)]) == pytest.approx(scores)
    assert set(store.text_scores("gateway", [english, chinese])) == {english}


def test_a_note_is_found_by_its_name_and_a_transcript_is_not(store: Store) -> None:
    named, talk = key("memory/projects/gateway-plan_2.md"), key("sessions/gateway-plan.jsonl", "sessions")
    store.write([document(named, "one", "two"), document(talk, "three")])
    assert found(store, "gateway plan") == found(store, "projects") == set(ids_of(store, named))
    assert found(store, "memory") == found(store, "md") == set()


def test_how_common_the_terms_of_a_query_are_is_known_as_of_the_last_commit(store: Store) -> None:
    assert store.term_counts("gateway").chunks == 0
    store.write([document(key("memory/a.md"), "the gateway is down", "gateways 网关重启", "nothing")])
    counts = store.term_counts("what about the gateway, 网关 and Vault?")
    assert counts.chunks == 3
    assert dict(counts.holding)["网关"] == 1
    assert dict(counts.holding)["Vault"] == 0

    store.write([document(key("memory/b.md"), "the gateway again")])
    assert store.term_counts("gateway").chunks == 4
    assert store.term_counts("gateway").holding["gateway"] - counts.holding["gateway"] == 1
    assert store.term_counts("?!").holding == {}


def test_sources_restrict_both_kinds_of_search(store: Store) -> None:
    store.write([document(NOTE, *[f"gateway note {n}" for n in range(30)], vectors=[vector(n) for n in range(30)])])
    store.write([document(TALK, "gateway talk", "gateway talks", vectors=[vector(100), vector(101)])])
    talk = set(ids_of(store, TALK))
    query = vector(5)
    # The talk is far from the query: far more than k notes are nearer.
    assert {hit.id for hit in store.search_vectors(query, 2, ChunkFilter(("sessions",)))} == talk
    assert {hit.id for hit in store.search_text("gateway note 5 talk", 2, ChunkFilter(("sessions",)))} == talk
    assert {hit.id for hit in store.search_text("note", 2, ChunkFilter(("sessions",)))} == set()
    assert not {hit.id for hit in store.search_vectors(query, 50, ChunkFilter(("memory",)))} & talk
    assert len(store.search_vectors(query, 50, ChunkFilter(("memory", "sessions")))) == 32
    assert store.search_vectors(query, 5, ChunkFilter(())) == []
    assert store.search_text("gateway", 5, ChunkFilter(())) == []


# Users' words and sentences --------------------------------------------------------------------------


def test_users_words_of_transcripts_are_scored_and_go_with_their_chunks(store: Store) -> None:
    spoken = "[2026-02-03 09:00] User: restart the gateway, 网关\n[2026-02-03 09:01] Assistant: the proxy runs"
    store.write([document(NOTE, "User: gateway"), document(TALK, spoken, "Assistant: the gateway is up")])
    both = [*ids_of(store), *ids_of(store, TALK)]
    first = ids_of(store, TALK)[0]
    assert set(store.user_scores("gateway", both)) == set(store.user_scores("网关", both)) == {first}
    assert store.user_scores("proxy user", both) == store.user_scores("?", both) == store.user_scores("x", []) == {}
    store.rename_document(TALK, ARCHIVED)
    assert set(store.user_scores("gateway", both)) == {first}
    store.write([document(TALK, "User: gateway"), DocumentDelete(ARCHIVED, store.revision(ARCHIVED))])
    assert set(store.user_scores("gateway", [*both, *ids_of(store, TALK)])) == set(ids_of(store, TALK))


def test_sentences_of_equal_texts_are_one_and_go_with_the_last_of_them(store: Store) -> None:
    signs, users = np.array([[1, 2], [3, 4]], dtype=np.uint8), np.array([True, False])
    none = SentenceSigns(np.zeros((0, 2), dtype=np.uint8), np.zeros(0, dtype=np.bool_))
    store.write([document(NOTE, "one", "two"), document(OTHER, "one")])
    sentences = {text_hash("one"): SentenceSigns(signs, users), text_hash("two"): none, text_hash("?"): none}
    token = store.change_token()
    store.add_sentences(sentences)
    assert store.change_token() != token
    one, two, copy = *ids_of(store), *ids_of(store, OTHER)
    stored = store.sentence_signs([one, two, copy])
    assert list(stored) == [one, copy], "a text without sentences has nothing to compare"
    assert all(np.array_equal(of.signs, signs) and np.array_equal(of.is_users, users) for of in stored.values())
    store.write([DocumentWrite(NOTE, store.revision(NOTE), STAT, "x", removed=(one,))])
    assert list(store.sentence_signs([one, copy])) == [copy]
    again = replace(document(NOTE, "one", revision=store.revision(NOTE)), removed=(two,))
    store.write([DocumentDelete(OTHER, store.revision(OTHER)), again])
    assert list(store.sentence_signs(ids_of(store))) == ids_of(store)
    store.write([DocumentDelete(NOTE, store.revision(NOTE))])
    store.write([document(NOTE, "one", revision=store.revision(NOTE))])
    assert store.sentence_signs(ids_of(store)) == {}


# Names -----------------------------------------------------------------------------------------------


def test_documents_are_found_by_the_names_of_their_files(store: Store) -> None:
    paths = ["memory/people/Team.md", "memory/old/team.md", "memory/team", "memory/team-b.md", "memory/teams.md"]
    rollout = "sessions/x/rollout-2026-03-01T10-20-30-0199.jsonl"
    store.write([document(key(path)) for path in paths])
    store.write([document(key(rollout, source="sessions")), document(key("memory/größe.md"))])

    def named(folder: str, name: str) -> list[str]:
        return [one.path for one in store.named(folder, name)]

    assert named("/", "team.md") == ["memory/old/team.md", "memory/people/Team.md"]
    assert named("/", "team") == ["memory/team", "memory/old/team.md", "memory/people/Team.md"]
    assert named("/people/", "team.md") == named("/Memory/people/", "TEAM") == ["memory/people/Team.md"]
    assert named("/ople/", "team.md") == named("/memory/people/a/", "team") == named("/", "eam.md") == []
    assert named("/", "0199") == named("/", "0199.jsonl") == [rollout]
    assert named("/", "größe") == ["memory/größe.md"]
    store.write([document(key(f"memory/{number}/README.md")) for number in range(MOST_NAMED + 5)])
    newest = [f"memory/{number}/README.md" for number in range(MOST_NAMED + 4, 4, -1)]
    assert named("/", "readme.md") == newest


def test_who_read_a_document_before_it_was_renamed_conflicts(store: Store) -> None:
    store.write([piece(*said("one"), continues=None, to=position(1))])
    old, new = store.revision(TALK), store.revision(ARCHIVED)
    store.rename_document(TALK, ARCHIVED)
    assert store.revision(TALK) <= 0 < store.revision(ARCHIVED) != old
    late = [
        DocumentDelete(TALK, old),
        DocumentDelete(ARCHIVED, new),
        piece(continues=position(1), to=position(2)),
        DocumentWrite(ARCHIVED, new, STAT, "h"),
    ]
    assert store.write(late) == [CONFLICT] * 4
    store.rename_document(ARCHIVED, TALK)
    assert store.write(late[:2]) == [CONFLICT] * 2
    assert len(ids_of(store, TALK)) == 1


# Transcripts, which are written part after part -------------------------------------------------------


def test_an_append_goes_on_from_the_mark_and_keeps_what_it_does_not_name(store: Store) -> None:
    early, late = replace(chunk("one", 0), said_at=100.5), replace(chunk("two", 1), said_at=200.0)
    first = piece(early, late, chunk("open", 2), continues=None, to=position(3))
    assert store.write([replace(first, notes=("1 line is not JSON",))]) == [COMMITTED]
    file = store.file(TALK)
    assert file is not None
    assert (file.stat, file.content_hash, file.notes) == (STAT, position(3).digest, ("1 line is not JSON",))
    one, two, was_open = ids_of(store, TALK)
    assert store.times_of([one, two, was_open, 999]) == {one: 100.5, two: 200.0}
    assert [stored.id for stored in store.chunks_of(TALK, first=2)] == [was_open]

    said_now = said("open, and more", "new", first=2)
    append = piece(
        *said_now,
        continues=replace(position(3), state="not compared"),
        to=position(5),
        stale_from=2,
        removed=(was_open,),
    )
    assert store.write([append]) == [COMMITTED]
    assert store.transcript(TALK) == position(5)
    rows = store.chunk_rows(ids_of(store, TALK))
    assert [row.text for row in rows.values()] == ["one", "two", "open, and more", "new"]
    assert ids_of(store, TALK)[:2] == [one, two]


def test_what_is_stale_is_found_until_the_last_slice_and_comes_last(store: Store) -> None:
    store.write([piece(*said(*(f"gateway {number}" for number in range(5))), continues=None, to=position(5))])
    first = ids_of(store, TALK)
    read = store.revision(TALK)
    new, moved = said("new start", first=1), (MovedChunk(first[3], 0, 1, 1),)
    half = piece(*new, continues=position(5), to=position(2, "other"), stale_from=0, moved=moved, final=False)
    assert store.write([half, DocumentDelete(TALK, read)]) == [COMMITTED, CONFLICT]
    assert found(store, "gateway") == set(first)
    assert {hit.id for hit in store.search_vectors(vector(1), 9)} >= set(first)
    assert [one.ordinal for one in store.chunks_of(TALK)] == [0, 1, -1, -2, -3, -5]
    assert ids_of(store, TALK)[2:] == [first[0], first[1], first[2], first[4]]
    shown = [store.chunk_rows(first)[chunk_id].ordinal for chunk_id in first]
    assert shown == [0, 1, 2, 0, 4], "an answer never shows a negative ordinal"


def test_transcripts_that_begin_alike_are_known_by_their_first_text(store: Store) -> None:
    store.write([piece(*said("one", "two"), continues=None, to=position(2)), document(NOTE, "one")])
    store.write([piece(*said("one", "three"), continues=None, to=position(2), of=ARCHIVED)])
    assert store.begun_by(text_hash("one")) == [TALK, ARCHIVED]
    assert store.begun_by(text_hash("two")) == []
    old = tuple(ids_of(store, TALK))
    store.write([piece(*said("four"), continues=position(2), to=position(3), stale_from=0, removed=old)])
    assert store.begun_by(text_hash("one")) == [ARCHIVED]
    assert store.begun_by(text_hash("four")) == [TALK]


# Dead letters ----------------------------------------------------------------------------------------


def letters(store: Store) -> list[tuple[DocumentKey, str, int]]:
    return [(letter.key, letter.reason, letter.attempts) for letter in store.dead_letters()]


def refused(*texts: str, reason: str = "too long", first: int = 0) -> list[VectorChunk]:
    return [chunk(text, first + place, refused=reason) for place, text in enumerate(texts)]


def with_refusals(store: Store, *texts: str, refused: dict[int, str]) -> None:
    """Write NOTE anew: one chunk a text, those at the given places refused."""
    added = tuple(chunk(text, place, refused=refused.get(place)) for place, text in enumerate(texts))
    content, before = text_hash("".join(texts)), tuple(ids_of(store))
    write = DocumentWrite(NOTE, store.revision(NOTE), STAT, content, added, vectors_of(added), removed=before)
    assert store.write([write]) == [COMMITTED]


def unreadable(store: Store, document_key: DocumentKey, reason: str = "permission denied", attempts: int = 1) -> None:
    store.add_dead_letter(document_key, reason=reason, error_class="DocumentUnreadable", attempts=attempts)


def test_dead_letters_count_attempts_and_go_with_the_next_commit(store: Store) -> None:
    unreadable(store, NOTE)
    unreadable(store, NOTE, "still denied")
    unreadable(store, OTHER, "too large")
    assert letters(store) == [(OTHER, "too large", 1), (NOTE, "still denied", 2)]
    assert all(letter.first_at <= letter.last_at for letter in store.dead_letters())
    store.write([document(NOTE, "readable again"), document(OTHER, "conflict", revision=99)])
    assert letters(store) == [(OTHER, "too large", 1)]
    store.write([DocumentDelete(OTHER, 0)])
    assert store.dead_letters() == []


def test_a_retried_document_that_could_not_be_read_is_read_even_if_it_did_not_change(store: Store) -> None:
    store.write([document(NOTE, "one", vectors=[vector(1)])])
    unreadable(store, NOTE)
    unreadable(store, OTHER)
    revision = store.revision(NOTE)
    assert (store.retry_dead_letter(NOTE), store.retry_dead_letter(OTHER)) == (0, 0)
    assert store.dead_letters() == []
    [file] = store.files()
    assert (file.key, file.stat.size < 0) == (NOTE, True), "no file has such a stat"
    assert (store.revision(NOTE), store.counts().vectors_ready) == (revision, 1)


def test_a_refused_chunk_is_a_dead_letter_of_its_document_which_is_indexed(store: Store) -> None:
    with_refusals(store, "fine", "gateway", "as well", refused={1: "not welcome"})
    [letter] = store.dead_letters()
    assert (letter.error_class, letter.attempts) == (EMBEDDING_REFUSED, 1)
    assert letter.reason == "line 2: not welcome"
    assert found(store, "gateway") == {ids_of(store)[1]}
    assert len(store.pending_hashes(9)) == 2
    assert [(one.start_line, one.refusal) for one in store.refused_chunks(NOTE)] == [(2, "not welcome")]
    assert store.refused_chunks(OTHER) == []


def test_a_dropped_letter_leaves_the_chunks_refused_and_stays_away(store: Store) -> None:
    with_refusals(store, "one", "two", refused={0: "too long"})
    assert [store.drop_dead_letter(name) for name in (NOTE, NOTE, OTHER)] == [True, False, False]
    assert (store.dead_letters(), len(store.refused_chunks(NOTE))) == ([], 1)
    store.write([DocumentWrite(NOTE, store.revision(NOTE), STAT, "edited", (chunk("new", 2),))])
    touch(store, NOTE, FileStat(1, 2, 3))
    assert store.dead_letters() == [], "an edit elsewhere is no news of it"
    bad = chunk("bad", 3, refused="no words")
    store.write([DocumentWrite(NOTE, store.revision(NOTE), STAT, "again", (bad,), vectors_of([bad]))])
    assert len(store.dead_letters()) == 1
    assert store.drop_dead_letter(NOTE)
    assert store.retry_dead_letter(NOTE) == 2


# Everything else -------------------------------------------------------------------------------------


def test_every_commit_changes_the_token_and_nothing_else_does(store: Store) -> None:
    def join() -> None:
        [(pending, digest)] = store.pending_hashes(1).items()
        store.write_vectors({pending: (digest, vector(1))})

    tokens = [store.change_token()]
    for commit in (
        lambda: store.write([document(NOTE, "one")]),
        join,
        lambda: touch(store, NOTE, FileStat(1, 2, 3)),
        lambda: unreadable(store, OTHER),
        lambda: store.set_meta({"a": "b", "c": "d"}),
        lambda: store.set_meta({"a": "e"}),
        lambda: store.drop_dead_letter(OTHER),
        lambda: store.write([DocumentDelete(NOTE, store.revision(NOTE))]),
    ):
        commit()
        tokens.append(store.change_token())
    assert len(set(tokens)) == len(tokens)
    assert (store.meta("a"), store.meta("c"), store.meta("x")) == ("e", "d", None)

    list(store.files())
    store.search_text("one", 1)
    store.write([document(OTHER, "conflict", revision=12345)])
    store.write_vectors({})
    assert (store.retry_dead_letter(OTHER), store.drop_dead_letter(OTHER)) == (0, False)
    assert store.change_token() == tokens[-1]


# Texts of documents ----------------------------------------------------------------------------------


def test_documents_come_with_their_inode_and_the_texts_that_hold_some_words(store: Store) -> None:
    several, none, others = key("memory/a.md"), key('memory/"b".md'), key("memory/c.md")
    large = replace(STAT, inode=2**64 - 1)
    store.write(
        [
            document(several, "- Transcript: one", "transcript: two", "the Transcript: three"),
            replace(document(none, "nothing", "- Transcript"), stat=large),
            document(others, "- Transcript: four"),
            document(TALK, "a Transcript: five"),
        ]
    )
    rows = store.texts_holding(["Transcript:", "unknown"], [several, none, key("memory/unknown.md")])
    assert sorted(rows, key=str) == [
        (none, 2**64 - 1, None),
        (several, STAT.inode, "- Transcript: one"),
        (several, STAT.inode, "the Transcript: three"),
    ]
    assert store.texts_holding(["Transcript:", "unknown"], []) == []


def test_a_search_may_be_in_single_transcripts_and_their_archives(store: Store) -> None:
    note = key("memory/sessions/a.jsonl.md")
    archive, longer, other = (
        key(path, source="sessions")
        for path in ("sessions/a.jsonl.reset.2026-11-20", "sessions/aa.jsonl", "sessions/b/a.jsonl")
    )
    keys = [note, TALK, archive, longer, other]
    store.write([document(one, "vault", vectors=[vector(1)]) for one in keys])
    texts = [f"vault {number}" for number in range(400)]
    store.write([document(key("sessions/c.jsonl", source="sessions"), *texts, vectors=[vector(1)] * len(texts))])

    def documents(*sources: str) -> list[set[DocumentKey]]:
        searches = (
            store.search_text("vault", 9, ChunkFilter(sources)),
            store.search_vectors(vector(1), 9, ChunkFilter(sources)),
        )
        return [{store.chunk_rows([hit.id])[hit.id].key for hit in hits} for hits in searches]

    assert documents("sessions/a.jsonl") == [{TALK, archive}] * 2
    assert documents("memory", "sessions/a.jsonl", "sessions/b/a.jsonl") == [{note, TALK, archive, other}] * 2
    assert documents("memory") == [{note}] * 2
    assert documents() == [set()] * 2


def test_a_span_restricts_both_kinds_of_search_before_the_best_are_taken(store: Store) -> None:
    day, span = 86_400.0, Span(1e9, 1e9 + 86_400, "2001-09-09", "2001-09-09")
    near = vector(1)
    chunks = [
        replace(chunk(f"vault {number}", number, vector=near), said_at=1e9 + day * (number + 1))
        for number in range(400)
    ]
    chunks.append(replace(chunk("a long word about some vault", 400, vector=vector(2)), said_at=1e9 + 5))
    store.write([piece(*chunks, continues=None, to=position(1))])
    dated, other, undated = key("memory/2001-09-09-x.md"), key("memory/2001-09-10.md"), key("MEMORY.md")
    store.write([document(note, "vault", vectors=[near]) for note in (dated, other)])
    changed = replace(document(undated, "vault", vectors=[near]), stat=FileStat(1, int((1e9 + 43_200) * 1e9), 1))
    store.write([changed, replace(document(key("memory/new.md"), "vault", vectors=[near]), stat=STAT)])

    for search in (partial(store.search_text, "vault"), partial(store.search_vectors, near)):
        rows = store.chunk_rows([hit.id for hit in search(3, ChunkFilter(span=span))])
        assert {row.key for row in rows.values()} == {dated, undated, TALK}
        hits = search(3, ChunkFilter(("sessions",), span))
        assert [row.text for row in store.chunk_rows([hit.id for hit in hits]).values()] == [chunks[-1].text]
