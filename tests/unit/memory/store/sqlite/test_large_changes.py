"""Large changes of a document that conflict, and small changes of a large document.

`tests/unit/memory/test_bounded_transactions.py` has the sizes and the crashes of large changes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memory.store.sqlite import transaction as sqlite_transaction
from memory.store.sqlite.transaction import WriteTransaction
from memory.store.sqlite.writer import SqliteStore
from memory.store.writer import DocumentChange, DocumentDelete, KeptChunk, Store, WriteOutcome
from tests.storing import TALK, document, key, mark, piece, said

MOST = 10
OLD = [f"old {'x' * number}" for number in range(60)]

Ending = Callable[[SqliteStore], list[DocumentChange]]


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[WriteTransaction]:
    """The transactions so far; ten chunks are many."""
    monkeypatch.setattr(sqlite_transaction, "MOST_CHANGED", MOST)
    ended: list[WriteTransaction] = []
    finish = WriteTransaction.finish

    def counting(transaction: WriteTransaction) -> None:
        finish(transaction)
        ended.append(transaction)

    monkeypatch.setattr(WriteTransaction, "finish", counting)
    return ended


@pytest.fixture
def long(sqlite_store: SqliteStore, transactions: list[WriteTransaction]) -> SqliteStore:
    """A transcript of 60 chunks."""
    sqlite_store.write([piece(*said(*OLD), continues=None, to=mark(60))])
    transactions.clear()
    return sqlite_store


def last_part(store: SqliteStore) -> list[DocumentChange]:
    old = ids_of(store)
    store.write([piece(*said("new"), continues=mark(60), to=mark(1, "n"), stale_from=0, final=False)])
    moved = (KeptChunk(old[50], 1, 1, 1),)
    gone = tuple(id_ for id_ in old if id_ != old[50])
    return [piece(*said("end", first=2), continues=mark(1, "n"), to=mark(4, "n"), moved=moved, removed=gone)]


def whole_in_one(store: SqliteStore) -> list[DocumentChange]:
    return [piece(*said("new"), continues=mark(60), to=mark(3, "n"), stale_from=0, removed=ids_of(store))]


def two_parts_at_once(store: SqliteStore) -> list[DocumentChange]:
    first = piece(*said("new"), continues=mark(60), to=mark(1, "n"), stale_from=0, final=False)
    end = piece(*said("end", first=1), continues=mark(1, "n"), to=mark(2, "n"), removed=ids_of(store))
    return [document(key("memory/a.md"), "a note"), first, end]


def deletion(store: SqliteStore) -> list[DocumentChange]:
    return [DocumentDelete(TALK, store.revision(TALK))]


ENDINGS = [last_part, whole_in_one, two_parts_at_once, deletion]


def ids_of(store: Store) -> tuple[int, ...]:
    return tuple(one.id for one in store.chunks_of(TALK))


def texts_of(store: Store) -> list[str]:
    chunks = store.chunks_of(TALK)
    rows = store.chunk_rows([chunk.id for chunk in chunks])
    return [rows[chunk.id].text for chunk in chunks]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_change_that_conflicts_deletes_nothing(long: SqliteStore, ending: Ending) -> None:
    changes = ending(long)
    long.write([piece(*said("more", first=60), continues=long.transcript(TALK), to=mark(99, "o"), final=False)])
    before, token = texts_of(long), long.change_token()
    outcomes = long.write([change for change in changes if change.key == TALK])
    assert set(outcomes) == {WriteOutcome.CONFLICT}
    assert texts_of(long) == before
    assert long.change_token() == token


def test_an_append_to_a_long_transcript_and_small_changes_take_one_transaction(
    long: SqliteStore, transactions: list[WriteTransaction]
) -> None:
    grown = piece(*said("more", first=60), continues=mark(60), to=mark(61), stale_from=60)
    small = document(key("memory/a.md"), "a note")
    long.write([small, grown])
    long.write([DocumentDelete(small.key, long.revision(small.key))])
    assert len(transactions) == 2
