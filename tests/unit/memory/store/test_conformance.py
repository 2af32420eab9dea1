"""What every store promises. A new implementation joins by the `store` fixture."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from memory.store.dead_letters import EMBEDDING_REFUSED
from memory.store.reader import MOST_NAMED, DeadLetterRow, VectorState
from memory.store.writer import (
    DocumentDelete,
    DocumentTouch,
    DocumentWrite,
    KeptChunk,
    Refusal,
    Store,
    WriteOutcome,
)
from schemas.documents import DocumentKey, FileStat
from tests.storing import DIMENSIONS, STAT, chunk, document, key, text_hash, touch, vector

NOTE = key("memory/2026-11-20.md")
OTHER = key("MEMORY.md")
TALK = key("/sessions/a.jsonl", source="sessions")


@pytest.fixture(autouse=True)
def always_sound(store: Store) -> object:
    """Whatever a test did, the store holds together afterwards."""
    yield
    assert store.check() == []


def ids_of(store: Store, document_key: DocumentKey) -> list[int]:
    return [stored.id for stored in store.chunks_of(document_key)]


def test_chunks_are_counted_by_path_for_one_source(store: Store) -> None:
    store.write([document(NOTE, "one", "two"), document(OTHER), document(TALK, "said")])

    assert store.chunks_by_path("memory") == {NOTE.path: 2, OTHER.path: 0}
    assert store.chunks_by_path("sessions") == {TALK.path: 1}
    assert store.chunks_by_path("nothing") == {}


def test_a_document_comes_back_as_it_was_written(store: Store) -> None:
    write = DocumentWrite(
        key=NOTE,
        expected=0,
        stat=FileStat(size=3, mtime_ns=-5, inode=2**64 - 1, ctime_ns=1_800_000_000_123_456_789),
        content_hash="abc",
        added=(chunk("first 一\n", 0, vector=vector(1)), chunk("second", 1), chunk("third", 2, refused="too long")),
        notes=("invalid UTF-8 was replaced", "注意"),
    )
    assert store.write([write]) == [WriteOutcome.COMMITTED]

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


def test_what_is_unknown_is_absent_and_not_an_error(store: Store) -> None:
    assert store.file(NOTE) is None
    assert store.chunks_of(NOTE) == []
    assert store.chunk_rows([1, 2]) == {}
    assert store.vectors_by_hash(["x"]) == {}
    assert store.search_vectors(vector(1), 5) == []
    assert store.vector_scores(vector(1), [1]) == {}
    assert store.search_text("gateway", 5) == []
    assert store.text_scores("gateway", [1]) == {}
    assert store.pending_chunks(5) == []
    assert store.dead_letters() == []
    assert store.meta("dimensions") is None
    assert store.meta("fingerprint") == "f"


def test_an_edit_keeps_the_chunks_that_it_does_not_name(store: Store) -> None:
    store.write([document(NOTE, "one", "two", "three", vectors=[vector(1), vector(2), vector(3)])])
    one, two, three = ids_of(store, NOTE)
    edit = DocumentWrite(
        key=NOTE,
        expected=store.revision(NOTE),
        stat=STAT,
        content_hash="new",
        added=(chunk("two, edited", 1, vector=vector(4)),),
        moved=(KeptChunk(id=three, ordinal=2, start_line=30, end_line=31),),
        removed=(two,),
    )
    assert store.write([edit]) == [WriteOutcome.COMMITTED]

    after = store.chunks_of(NOTE)
    assert [after[0].id, after[2].id] == [one, three]
    assert after[1].id not in {one, two, three}
    assert (after[2].start_line, after[2].end_line) == (30, 31)
    assert two not in store.chunk_rows([one, two, three])
    assert [hit.id for hit in store.search_text("two", 5)] == [after[1].id]
    assert set(store.vector_scores(vector(2), [one, two, three])) == {one, three}


def test_vectors_are_read_by_the_chunks_that_have_one(store: Store) -> None:
    assert store.vectors_of([1]) == {}
    store.write([document(NOTE, "one", "two", "three", vectors=[vector(1), None, vector(3)])])
    one, two, three = ids_of(store, NOTE)

    found = store.vectors_of([three, one, two, 999])

    assert found.keys() == {one, three}
    assert found[one].tolist() == pytest.approx(vector(1).tolist())
    assert found[three].tolist() == pytest.approx(vector(3).tolist())


def test_a_write_cannot_touch_the_chunks_of_another_document(store: Store) -> None:
    store.write([document(NOTE, "mine"), document(OTHER, "theirs")])
    [theirs] = ids_of(store, OTHER)
    store.write(
        [
            DocumentWrite(
                key=NOTE,
                expected=store.revision(NOTE),
                stat=STAT,
                content_hash="x",
                moved=(KeptChunk(theirs, 9, 9, 9),),
                removed=(theirs,),
            )
        ]
    )
    assert [(one.id, one.ordinal) for one in store.chunks_of(OTHER)] == [(theirs, 0)]


def test_a_deleted_document_leaves_nothing_behind(store: Store) -> None:
    store.write([document(NOTE, "gateway", vectors=[vector(1)]), document(OTHER, "gateway", vectors=[vector(2)])])
    [gone] = ids_of(store, NOTE)
    [kept] = ids_of(store, OTHER)
    assert store.write([DocumentDelete(NOTE, store.revision(NOTE))]) == [WriteOutcome.COMMITTED]
    assert store.file(NOTE) is None
    assert store.chunk_rows([gone]) == {}
    assert [hit.id for hit in store.search_text("gateway", 5)] == [kept]
    assert [hit.id for hit in store.search_vectors(vector(1), 5)] == [kept]
    assert store.vectors_by_hash([text_hash("gateway")])[text_hash("gateway")] == pytest.approx(vector(2))


def test_ids_are_never_given_twice(store: Store) -> None:
    store.write([document(NOTE, "one", "two")])
    before = ids_of(store, NOTE)
    store.write([DocumentDelete(NOTE, store.revision(NOTE))])
    store.write([document(NOTE, "three", revision=store.revision(NOTE))])
    assert min(ids_of(store, NOTE)) > max(before)


# Revisions -------------------------------------------------------------------------------------------


def test_a_revision_is_positive_and_grows_while_the_document_is_known(store: Store) -> None:
    assert store.revision(NOTE) == 0
    seen = []
    for number in range(3):
        store.write([document(NOTE, f"version {number}", revision=store.revision(NOTE))])
        seen.append(store.revision(NOTE))
    assert 0 < seen[0] < seen[1] < seen[2]


def test_a_stale_writer_conflicts_and_the_others_are_committed(store: Store) -> None:
    store.write([document(NOTE, "old")])
    stale = store.revision(NOTE)
    store.write([document(NOTE, "newer", revision=stale)])
    outcomes = store.write([document(NOTE, "stale", revision=stale), document(OTHER, "fine"), DocumentDelete(NOTE, 0)])
    assert outcomes == [WriteOutcome.CONFLICT, WriteOutcome.COMMITTED, WriteOutcome.CONFLICT]
    assert store.search_text("stale", 5) == []
    assert len(store.search_text("fine", 5)) == 1


def test_a_document_that_came_and_went_in_between_is_noticed(store: Store) -> None:
    before = store.revision(NOTE)
    store.write([document(NOTE, "short life", revision=before)])
    store.write([DocumentDelete(NOTE, store.revision(NOTE))])
    assert store.revision(NOTE) < 0
    assert store.write([document(NOTE, "from before", revision=before)]) == [WriteOutcome.CONFLICT]


def test_a_document_that_went_and_came_back_in_between_is_noticed(store: Store) -> None:
    store.write([document(NOTE, "first life")])
    before = store.revision(NOTE)
    store.write([DocumentDelete(NOTE, before)])
    for _ in range(before + 1):  # so many commits that a counter per document would have come round
        store.write([document(NOTE, "second life", revision=store.revision(NOTE))])
        assert store.revision(NOTE) != before
    assert store.write([document(NOTE, "late", revision=before)]) == [WriteOutcome.CONFLICT]


# Vectors ---------------------------------------------------------------------------------------------


def test_vectors_join_later_and_only_once(store: Store) -> None:
    store.write([document(NOTE, "one", "two", "three", "four")])
    one, two, three, four = store.pending_chunks(10)
    changed = store.write_vectors(
        {
            one.id: (one.text_hash, vector(1)),
            two.id: (two.text_hash, Refusal("refused by the provider")),
            three.id: ("another text by now", vector(3)),
            999: (four.text_hash, vector(4)),
        }
    )
    assert changed == 2
    states = [stored.vector_state for stored in store.chunks_of(NOTE)]
    assert states == [VectorState.READY, VectorState.REFUSED, VectorState.PENDING, VectorState.PENDING]
    assert store.write_vectors({one.id: (one.text_hash, vector(9))}) == 0
    assert store.search_vectors(vector(1), 1)[0].score == pytest.approx(1, abs=1e-5)
    assert [pending.id for pending in store.pending_chunks(1)] == [three.id]


def test_pending_chunks_can_be_had_of_some_texts_only(store: Store) -> None:
    store.write([document(NOTE, "one", "two", "three", vectors=[vector(1)]), document(OTHER, "two", "four")])
    two, three, again, four = store.pending_chunks(10)
    assert store.pending_hashes() == {
        two.id: two.text_hash,
        three.id: three.text_hash,
        again.id: two.text_hash,
        four.id: four.text_hash,
    }
    assert list(store.pending_hashes()) == sorted(store.pending_hashes())
    assert store.pending_chunks(10, among={two.text_hash, four.text_hash}) == [two, again, four]
    assert store.pending_chunks(2, among={two.text_hash, four.text_hash}) == [two, again]
    assert store.pending_chunks(10, among={"the hash of no chunk", text_hash("one")}) == []
    assert store.pending_chunks(10, among=set()) == []


def test_the_nearest_come_first_and_with_their_cosines(store: Store) -> None:
    vectors = [vector(seed) for seed in range(40)]
    store.write([document(NOTE, *[f"text {number}" for number in range(40)], vectors=vectors)])
    ids = ids_of(store, NOTE)
    cosines = np.stack(vectors) @ vector(100)
    expected = [ids[index] for index in np.argsort(-cosines)]
    hits = store.search_vectors(vector(100), 7)
    assert [hit.id for hit in hits] == expected[:7]
    assert [hit.score for hit in hits] == pytest.approx(sorted(cosines, reverse=True)[:7], abs=1e-5)
    assert [hit.id for hit in store.search_vectors(vector(100), 200)] == expected
    assert store.vector_scores(vector(100), [ids[3], ids[5], 999]) == pytest.approx(
        {ids[3]: cosines[3], ids[5]: cosines[5]}, abs=1e-5
    )


def test_vectors_are_found_by_the_text_that_they_belong_to(store: Store) -> None:
    store.write([document(NOTE, "same", "other", vectors=[vector(1), vector(2)])])
    store.write([document(OTHER, "same", "pending", vectors=[vector(1)])])
    found = store.vectors_by_hash([text_hash("same"), text_hash("pending"), text_hash("nowhere")])
    assert list(found) == [text_hash("same")]
    assert found[text_hash("same")].dtype == np.float32
    assert found[text_hash("same")] == pytest.approx(vector(1))


def test_a_vector_of_other_dimensions_is_refused_and_nothing_is_written(store: Store) -> None:
    store.write([document(NOTE, "fine", vectors=[vector(1)])])
    assert store.meta("dimensions") == str(DIMENSIONS)
    with pytest.raises(ValueError, match="dimensions"):
        store.write([document(OTHER, "other", vectors=[vector(1, DIMENSIONS * 2)])])
    assert store.file(OTHER) is None


# Keywords --------------------------------------------------------------------------------------------


def test_keywords_find_english_and_chinese_best_first(store: Store) -> None:
    store.write(
        [
            document(NOTE, "the gateway was restarted", "网关重启之后恢复正常", "nothing here"),
            document(OTHER, "gateway gateway gateway", *[f"filler {number}" for number in range(8)]),
        ]
    )
    english, chinese, *_ = ids_of(store, NOTE)
    hits = store.search_text("what about the gateway?", 5)
    assert [hit.id for hit in hits] == [ids_of(store, OTHER)[0], english]
    assert hits[0].score > hits[1].score > 0
    assert [hit.id for hit in store.search_text("重启", 5)] == [chinese]
    assert len(store.search_text("gateway", 1)) == 1


def test_text_scores_are_those_of_the_search(store: Store) -> None:
    store.write([document(NOTE, "gateway down", "gateway up up", "deploy", *[f"filler {n}" for n in range(8)])])
    hits = store.search_text("gateway deploy", 10)
    ids = ids_of(store, NOTE)
    assert store.text_scores("gateway deploy", ids) == pytest.approx({hit.id: hit.score for hit in hits})
    assert set(store.text_scores("gateway", ids[:1])) == {ids[0]}


@pytest.mark.parametrize("query", ["", "?", '"', "AND OR NOT", "a* (b", "col:umn", "\0", "NEAR(", "的"])
def test_whatever_is_typed_is_a_query(store: Store, query: str) -> None:
    store.write([document(NOTE, "gateway")])
    store.search_text(query, 5)
    store.text_scores(query, ids_of(store, NOTE))


def test_a_note_is_found_by_its_name_and_a_transcript_is_not(store: Store) -> None:
    named, talk = key("memory/projects/gateway-plan_2.md"), key("sessions/gateway-plan.jsonl", "sessions")
    store.write([document(named, "one", "two"), document(talk, "three")])

    assert {hit.id for hit in store.search_text("gateway plan", 5)} == {one.id for one in store.chunks_of(named)}
    assert {hit.id for hit in store.search_text("projects", 5)} == {one.id for one in store.chunks_of(named)}
    assert store.search_text("memory", 5) == store.search_text("md", 5) == []


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
    assert {hit.id for hit in store.search_vectors(query, 2, ["sessions"])} == talk
    assert {hit.id for hit in store.search_text("gateway note 5 talk", 2, ["sessions"])} == talk
    assert {hit.id for hit in store.search_text("note", 2, ["sessions"])} == set()
    assert not {hit.id for hit in store.search_vectors(query, 50, ["memory"])} & talk
    assert len(store.search_vectors(query, 50, ["memory", "sessions"])) == 32
    assert store.search_vectors(query, 5, []) == []
    assert store.search_text("gateway", 5, []) == []


# Everything else -------------------------------------------------------------------------------------


def test_counts_add_up(store: Store) -> None:
    assert store.counts().last_commit_at is None
    store.write([document(NOTE, "one", "two", "three", vectors=[vector(1)]), document(OTHER, "four")])
    pending = store.pending_chunks(1)[0]
    store.write_vectors({pending.id: (pending.text_hash, Refusal("no"))})
    counts = store.counts()
    assert (counts.files, counts.chunks) == (2, 4)
    assert (counts.vectors_ready, counts.vectors_pending, counts.vectors_refused) == (1, 2, 1)
    assert counts.last_commit_at is not None


def test_every_commit_changes_the_token_and_nothing_else_does(store: Store) -> None:
    tokens = [store.change_token()]

    def note_change() -> None:
        tokens.append(store.change_token())

    store.write([document(NOTE, "one")])
    note_change()
    pending = store.pending_chunks(1)[0]
    store.write_vectors({pending.id: (pending.text_hash, vector(1))})
    note_change()
    touch(store, NOTE, FileStat(1, 2, 3))
    note_change()
    store.add_dead_letter(OTHER, reason="r", error_class="E")
    note_change()
    store.set_meta({"a": "b"})
    note_change()
    store.write([DocumentDelete(NOTE, store.revision(NOTE))])
    note_change()
    assert len(set(tokens)) == len(tokens)

    list(store.files())
    store.search_text("one", 1)
    store.write([document(OTHER, "conflict", revision=12345)])
    store.write_vectors({})
    assert store.change_token() == tokens[-1]


def test_touch_changes_the_stat_and_not_the_revision(store: Store) -> None:
    store.write([document(NOTE, "one")])
    revision = store.revision(NOTE)
    store.write([DocumentTouch(OTHER, FileStat(4, 5, 6), "")])
    touch(store, NOTE, FileStat(1, 2, 3))
    file = store.file(NOTE)
    assert file is not None
    assert file.stat == FileStat(1, 2, 3)
    assert store.revision(NOTE) == revision
    assert store.file(OTHER) is None


def test_touches_count_how_often_the_same_content_was_found_again(store: Store) -> None:
    def touches() -> int:
        file = store.file(NOTE)
        assert file is not None
        return file.touches

    write = document(NOTE, "one")
    store.write([write])
    assert touches() == 0
    touch(store, NOTE, FileStat(1, 2, 3, 4))
    store.write([DocumentTouch(NOTE, FileStat(1, 2, 3, 5), write.content_hash)])
    assert touches() == 2
    store.write([DocumentTouch(NOTE, FileStat(1, 2, 3, 6), "of another reading")])
    assert touches() == 2
    store.write([replace(write, expected=store.revision(NOTE), added=())])
    assert touches() == 3
    store.write([replace(write, expected=store.revision(NOTE), added=(), content_hash="another")])
    assert touches() == 0


def test_dead_letters_count_attempts_and_go_with_the_next_commit(store: Store) -> None:
    store.add_dead_letter(NOTE, reason="permission denied", error_class="DocumentUnreadable")
    store.add_dead_letter(NOTE, reason="still denied", error_class="DocumentUnreadable")
    store.add_dead_letter(OTHER, reason="too large", error_class="DocumentRefused")
    letters = {letter.key: letter for letter in store.dead_letters()}
    assert (letters[NOTE].attempts, letters[NOTE].reason) == (2, "still denied")
    assert letters[NOTE].first_at <= letters[NOTE].last_at
    assert store.dead_letters()[0].key == OTHER

    store.write([document(NOTE, "readable again"), document(OTHER, "conflict", revision=99)])
    assert [letter.key for letter in store.dead_letters()] == [OTHER]
    store.write([DocumentDelete(OTHER, 0)])
    assert store.dead_letters() == []


# Refused chunks and their dead letters ----------------------------------------------------------------


def letter_of(store: Store, document_key: DocumentKey) -> DeadLetterRow | None:
    return next((letter for letter in store.dead_letters() if letter.key == document_key), None)


def with_refusals(store: Store, *texts: str, refused: dict[int, str]) -> None:
    """Write NOTE anew: one chunk a text, those at the given places refused."""
    added = tuple(chunk(text, place, refused=refused.get(place)) for place, text in enumerate(texts))
    write = DocumentWrite(
        NOTE, store.revision(NOTE), STAT, text_hash("".join(texts)), added, (), tuple(ids_of(store, NOTE))
    )
    assert store.write([write]) == [WriteOutcome.COMMITTED]


def test_a_refused_chunk_is_the_dead_letter_of_its_document_which_is_indexed_all_the_same(store: Store) -> None:
    with_refusals(store, "fine", "gateway", "as well", refused={1: "openai refused the text (HTTP 400: too long)"})
    letter = letter_of(store, NOTE)
    assert letter is not None
    assert (letter.error_class, letter.attempts) == (EMBEDDING_REFUSED, 1)
    assert letter.reason == "line 2: openai refused the text (HTTP 400: too long)"
    assert [hit.id for hit in store.search_text("gateway", 5)] == [ids_of(store, NOTE)[1]]
    assert len(store.pending_chunks(9)) == 2
    assert [(one.start_line, one.reason) for one in store.refused_chunks(NOTE)] == [
        (2, "openai refused the text (HTTP 400: too long)")
    ]
    assert store.refused_chunks(OTHER) == []


def test_a_refusal_that_joins_later_is_a_dead_letter_too(store: Store) -> None:
    store.write([document(NOTE, "one", "two", "three"), document(OTHER, "four")])
    one, two, three, four = store.pending_chunks(4)
    store.write_vectors(
        {
            one.id: (one.text_hash, vector(1)),
            two.id: (two.text_hash, Refusal("too long")),
            three.id: ("another text by now", Refusal("passed over")),
            four.id: (four.text_hash, vector(4)),
        }
    )
    assert [(letter.key, letter.reason, letter.attempts) for letter in store.dead_letters()] == [
        (NOTE, "line 2: too long", 1)
    ]
    store.write_vectors({three.id: (three.text_hash, Refusal("no words"))})
    letter = letter_of(store, NOTE)
    assert letter is not None
    assert (letter.reason, letter.attempts) == ("line 2: too long; and 1 more chunk", 2)


def test_the_letter_stays_while_a_refused_chunk_is_kept_and_goes_with_the_last_one(store: Store) -> None:
    with_refusals(store, "one", "two", refused={1: "too long"})
    before = letter_of(store, NOTE)
    assert before is not None
    first, second = ids_of(store, NOTE)
    moved = DocumentWrite(
        NOTE, store.revision(NOTE), STAT, "edited", (chunk("new", 0),), (KeptChunk(second, 5, 60, 70),), (first,)
    )
    assert store.write([moved]) == [WriteOutcome.COMMITTED]
    after = letter_of(store, NOTE)
    assert after is not None
    assert after.reason == "lines 60-70: too long"
    assert (after.attempts, after.first_at, after.last_at) == (before.attempts, before.first_at, before.last_at)

    store.write([DocumentWrite(NOTE, store.revision(NOTE), STAT, "without", removed=(second,))])
    assert store.dead_letters() == []


def test_that_a_document_cannot_be_read_any_more_says_more_than_that_parts_were_refused(store: Store) -> None:
    with_refusals(store, "one", "two", refused={0: "too long"})
    store.add_dead_letter(NOTE, reason="permission denied", error_class="DocumentUnreadable")
    [pending] = store.pending_chunks(5)
    store.write_vectors({pending.id: (pending.text_hash, Refusal("no words"))})
    letter = letter_of(store, NOTE)
    assert letter is not None
    assert letter.error_class == "DocumentUnreadable"

    touch(store, NOTE, FileStat(1, 2, 3))  # it was read, and is what it was
    letter = letter_of(store, NOTE)
    assert letter is not None
    assert (letter.error_class, letter.reason) == (EMBEDDING_REFUSED, "line 1: too long; and 1 more chunk")


def test_a_document_that_was_read_and_is_what_it_was_is_no_failure_any_more(store: Store) -> None:
    write = document(NOTE, "one")
    store.write([write])
    store.add_dead_letter(NOTE, reason="permission denied", error_class="DocumentUnreadable")
    store.write([DocumentTouch(NOTE, FileStat(1, 2, 3), "of another reading")])
    assert letter_of(store, NOTE) is not None
    store.write([DocumentTouch(NOTE, FileStat(1, 2, 3), write.content_hash)])
    assert letter_of(store, NOTE) is None


def test_a_retried_document_asks_for_its_refused_vectors_again(store: Store) -> None:
    with_refusals(store, "one", "two", "three", refused={0: "too long", 2: "no words"})
    token = store.change_token()
    assert store.retry_dead_letter(NOTE) == 2
    assert store.change_token() != token
    assert store.dead_letters() == []
    assert store.refused_chunks(NOTE) == []
    assert len(store.pending_chunks(9)) == 3
    assert [file.stat for file in store.files()] == [STAT], "what it says is known; nothing is to be read"
    assert store.retry_dead_letter(NOTE) == 0


def test_a_retried_document_that_could_not_be_read_is_read_even_if_it_did_not_change(store: Store) -> None:
    store.write([document(NOTE, "one", vectors=[vector(1)])])
    store.add_dead_letter(NOTE, reason="permission denied", error_class="DocumentUnreadable")
    store.add_dead_letter(OTHER, reason="never read", error_class="DocumentUnreadable")
    revision = store.revision(NOTE)
    assert (store.retry_dead_letter(NOTE), store.retry_dead_letter(OTHER)) == (0, 0)
    assert store.dead_letters() == []
    file = store.file(NOTE)
    assert file is not None
    assert file.stat != STAT
    assert file.stat.size < 0, "no file has such a stat"
    assert store.revision(NOTE) == revision
    assert store.counts().vectors_ready == 1
    assert store.file(OTHER) is None


def test_what_is_retried_and_fails_again_failed_since_the_first_time_and_so_often(store: Store) -> None:
    with_refusals(store, "one", refused={0: "too long"})
    store.add_dead_letter(OTHER, reason="never read", error_class="DocumentUnreadable", attempts=2)
    first = {name: letter_of(store, name) for name in (NOTE, OTHER)}
    for again in (1, 2):
        store.retry_dead_letter(NOTE)
        store.retry_dead_letter(OTHER)
        [pending] = store.pending_chunks(9)
        store.write_vectors({pending.id: (pending.text_hash, Refusal("too long"))})
        store.add_dead_letter(OTHER, reason="never read", error_class="DocumentUnreadable")
        for name, attempts in ((NOTE, 1 + again), (OTHER, 2 + again)):
            before, letter = first[name], letter_of(store, name)
            assert before is not None
            assert letter is not None
            assert (letter.attempts, letter.first_at) == (attempts, before.first_at)
            assert letter.last_at > before.first_at


def test_what_was_retried_and_read_failed_for_the_first_time_when_it_fails_later(store: Store) -> None:
    store.add_dead_letter(NOTE, reason="permission denied", error_class="DocumentUnreadable")
    first = letter_of(store, NOTE)
    assert first is not None
    store.retry_dead_letter(NOTE)
    store.write([document(NOTE, "one", vectors=[vector(1)])])
    store.add_dead_letter(NOTE, reason="permission denied", error_class="DocumentUnreadable")
    letter = letter_of(store, NOTE)
    assert letter is not None
    assert letter.attempts == 1
    assert letter.first_at > first.first_at


def test_a_dropped_letter_leaves_the_chunks_refused_and_stays_away(store: Store) -> None:
    with_refusals(store, "one", "two", refused={0: "too long"})
    assert store.drop_dead_letter(NOTE)
    assert not store.drop_dead_letter(NOTE)
    assert store.dead_letters() == []
    assert len(store.refused_chunks(NOTE)) == 1

    store.write([DocumentWrite(NOTE, store.revision(NOTE), STAT, "edited", (chunk("new", 2),))])
    touch(store, NOTE, FileStat(1, 2, 3))
    assert store.dead_letters() == [], "an edit elsewhere is no news of it"
    store.write([DocumentWrite(NOTE, store.revision(NOTE), STAT, "again", (chunk("bad", 3, refused="no words"),))])
    assert letter_of(store, NOTE) is not None
    assert store.drop_dead_letter(NOTE)
    assert store.retry_dead_letter(NOTE) == 2


def test_what_has_no_letter_is_neither_retried_nor_dropped(store: Store) -> None:
    store.write([document(NOTE, "one")])
    token = store.change_token()
    assert store.retry_dead_letter(NOTE) == store.retry_dead_letter(OTHER) == 0
    assert not store.drop_dead_letter(OTHER)
    assert store.change_token() == token
    assert [file.stat for file in store.files()] == [STAT]


def test_meta_is_set_and_replaced(store: Store) -> None:
    store.set_meta({"a": "1", "b": "2"})
    store.set_meta({"a": "3"})
    assert (store.meta("a"), store.meta("b"), store.meta("c")) == ("3", "2", None)


def test_threads_may_read_and_write_at_once(store: Store) -> None:
    def work(number: int) -> None:
        mine = key(f"memory/{number}.md")
        for round_number in range(5):
            text = f"round {round_number} of {number}"
            write = DocumentWrite(
                key=mine,
                expected=store.revision(mine),
                stat=STAT,
                content_hash=text,
                added=(chunk(text, 0, vector=vector(number)),),
                removed=tuple(ids_of(store, mine)),
            )
            assert store.write([write]) == [WriteOutcome.COMMITTED]
            assert len(store.search_text(f"of {number}", 50)) >= 1
            assert len(store.search_vectors(vector(number), 50)) >= 1
            assert len(ids_of(store, mine)) == 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert store.counts().chunks == 6


def test_documents_are_found_by_the_names_of_their_files(store: Store) -> None:
    paths = ["memory/people/Team.md", "memory/old/team.md", "memory/team", "memory/team-b.md", "memory/teams.md"]
    rollout = "sessions/x/rollout-2026-03-01T10-20-30-0199.jsonl"
    store.write([document(key(path)) for path in paths])
    store.write([document(key(rollout, source="sessions")), document(key("memory/größe.md"))])

    def named(folder: str, name: str) -> list[str]:
        return [found.path for found in store.named(folder, name)]

    assert named("/", "team.md") == ["memory/old/team.md", "memory/people/Team.md"]
    assert named("/", "team") == ["memory/team", "memory/old/team.md", "memory/people/Team.md"]
    assert named("/people/", "team.md") == named("/Memory/people/", "TEAM") == ["memory/people/Team.md"]
    assert named("/ople/", "team.md") == named("/memory/people/a/", "team") == named("/", "eam.md") == []
    assert named("/", "0199") == named("/", "0199.jsonl") == [rollout]
    assert named("/", "größe") == ["memory/größe.md"]


def test_of_many_documents_with_one_name_the_newest_are_told(store: Store) -> None:
    store.write([document(key(f"memory/{number}/README.md")) for number in range(MOST_NAMED + 5)])
    found = store.named("/", "readme.md")
    assert len(found) == MOST_NAMED
    assert found[0].path == f"memory/{MOST_NAMED + 4}/README.md"
