"""The end of a long transcript's old version, in transactions that delete a bounded number of chunks each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory.store.dead_letters import FORGOTTEN
from memory.store.options import StoreOptions
from memory.store.sqlite import large_changes as sqlite_thinning
from memory.store.sqlite.transaction import WriteTransaction
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import DocumentChange, DocumentDelete, Store, TranscriptWrite, WriteOutcome
from tests.storing import STAT, TALK, document, key, mark, piece, said

MOST = 10
OLD = [f"old {'x' * number}" for number in range(60)]
COMMITTED, CONFLICT = WriteOutcome.COMMITTED, WriteOutcome.CONFLICT

#: What a change leaves of the old version: the texts, in their order.
Ending = Callable[[SqliteStore], tuple[list[DocumentChange], list[str]]]


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many chunks each transaction deleted; ten are many."""
    monkeypatch.setattr(sqlite_thinning, "MOST_CHANGED", MOST)
    numbers: list[int] = []
    count = "SELECT count(*) FROM chunks"
    finish = WriteTransaction.finish
    known: dict[int, int] = {}

    def counting(transaction: WriteTransaction) -> None:
        finish(transaction)
        [(now,)] = transaction.connection.execute(count).fetchall()
        numbers.append(known.get(0, now) - now)
        known[0] = now

    monkeypatch.setattr(WriteTransaction, "finish", counting)
    return numbers


@pytest.fixture
def long(sqlite_store: SqliteStore, deleted: list[int]) -> SqliteStore:
    """A transcript of 60 chunks."""
    sqlite_store.write([piece(*said(*OLD), continues=None, to=mark(60))])
    deleted.clear()
    return sqlite_store


def last_slice(store: SqliteStore) -> tuple[list[DocumentChange], list[str]]:
    store.write([piece(*said("new"), continues=mark(60), to=mark(1, "n"), keep=0, final=False)])
    end = piece(*said(OLD[50], OLD[7], "end", first=1), continues=mark(1, "n"), to=mark(4, "n"))
    return [end], ["new", OLD[50], OLD[7], "end"]


def whole_in_one(store: SqliteStore) -> tuple[list[DocumentChange], list[str]]:
    end = piece(*said("new", OLD[50], OLD[7]), continues=mark(60), to=mark(3, "n"), keep=0)
    return [end], ["new", OLD[50], OLD[7]]


def both_slices_at_once(store: SqliteStore) -> tuple[list[DocumentChange], list[str]]:
    first = piece(*said("new", OLD[3]), continues=mark(60), to=mark(2, "n"), keep=0, final=False)
    end = piece(*said(OLD[50], "end", first=2), continues=mark(2, "n"), to=mark(4, "n"))
    return [document(key("memory/a.md"), "a note"), first, end], ["new", OLD[3], OLD[50], "end"]


def deletion(store: SqliteStore) -> tuple[list[DocumentChange], list[str]]:
    return [DocumentDelete(TALK, store.revision(TALK))], []


ENDINGS = [last_slice, whole_in_one, both_slices_at_once, deletion]


def texts_of(store: Store) -> list[str]:
    chunks = store.chunks_of(TALK)
    rows = store.chunk_rows([chunk.id for chunk in chunks])
    return [rows[chunk.id].text for chunk in chunks]


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_transaction_deletes_more_than_a_bounded_number_and_the_outcome_is_the_same(
    long: SqliteStore, deleted: list[int], ending: Ending
) -> None:
    kept = {text: chunk.id for text, chunk in zip(OLD, long.chunks_of(TALK), strict=True)}
    changes, left = ending(long)
    assert long.write(changes) == [COMMITTED] * len(changes)
    assert texts_of(long) == left
    assert sum(number for number in deleted if number > 0) >= len(OLD) - len(left)
    assert max(deleted) <= MOST
    assert long.check() == []
    for chunk, text in zip(long.chunks_of(TALK), left, strict=True):
        assert text not in kept or chunk.id == kept[text], "a text that comes again keeps its id and its vector"
    if left:
        assert [file.stat for file in long.files() if file.key == TALK] == [STAT]
    else:
        assert long.transcript(TALK) is None


class Killed(Exception):
    """The process died here."""


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_crash_after_any_of_the_transactions_leaves_a_sound_index_that_somebody_comes_back_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    monkeypatch.setattr(sqlite_thinning, "MOST_CHANGED", MOST)
    finish = WriteTransaction.finish
    for survived in range(1, 20):
        path = tmp_path / f"{survived}.sqlite"
        create_generation(path, StoreOptions(), fingerprint="f", description="{}")
        store = SqliteStore(path, StoreOptions())
        store.write([piece(*said(*OLD), continues=None, to=mark(60))])
        changes, left = ending(store)
        before = store.file(TALK)
        left_to_live = iter(range(survived))

        def dying(transaction: WriteTransaction, lives: Iterator[int] = left_to_live) -> None:
            if next(lives, None) is None:
                raise Killed
            finish(transaction)

        with monkeypatch.context() as patched:
            patched.setattr(WriteTransaction, "finish", dying)
            try:
                store.write(changes)
            except Killed:
                died = True
            else:
                died = False
        assert store.check() == []
        known = store.file(TALK)
        if died:
            assert known is not None
            assert known.stat == FORGOTTEN or known == before, "nothing happened, or it will be looked at again"
            # What is read anew then begins where the index says, or at the start.
            reached = store.transcript(TALK)
            anew = piece(*said(*left), continues=reached, to=mark(9, "again"), keep=0)
            assert store.write([anew]) == [COMMITTED]
            assert texts_of(store) == left
            assert store.check() == []
        store.close()
        if not died:
            return
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_change_that_conflicts_deletes_nothing(long: SqliteStore, ending: Ending) -> None:
    changes, _ = ending(long)
    long.write([piece(*said("more", first=60), continues=long.transcript(TALK), to=mark(99, "o"), final=False)])
    before, token = texts_of(long), long.change_token()
    outcomes = long.write([change for change in changes if change.key == TALK])
    assert set(outcomes) == {CONFLICT}
    assert texts_of(long) == before
    assert long.change_token() == token


def test_an_append_to_a_long_transcript_and_small_changes_take_one_transaction(
    long: SqliteStore, deleted: list[int]
) -> None:
    grown: TranscriptWrite = piece(*said("more", first=60), continues=mark(60), to=mark(61), keep=60)
    small = document(key("memory/a.md"), "a note")
    long.write([small, grown])
    long.write([DocumentDelete(small.key, long.revision(small.key))])
    assert len(deleted) == 2
