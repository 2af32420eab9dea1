"""Maintenance of one generation: what replaced texts left behind goes, and nothing that is found changes."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

from memory.store.options import StoreOptions
from memory.store.reader import Hit
from memory.store.sqlite.maintenance import ERASE_AFTER_SECONDS
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.vectors import VectorShelf
from memory.store.sqlite.writer import SqliteStore
from memory.store.writer import DocumentDelete, DocumentWrite
from tests.storing import STAT, TALK, by_sqlite_vec, chunk, document, key, vector, vectors_of

#: Wide vectors: a block has few places, so that a test needs few of them.
DIMENSIONS = 4096
PLACES = 64


def always() -> bool:
    return True


def note(store: SqliteStore, number: int, *, count: int, seed: int, keep: int = 0) -> None:
    """Write a note of `count` chunks; of those that it had, the first `keep` stay."""
    name = key(f"memory/{number}.md")
    old = store.chunks_of(name)
    texts = [f"word{seed}x{place} heron {'reed ' * 30}" for place in range(keep, count)]
    added = [
        chunk(text, place, vector=vector(seed * 1000 + place, DIMENSIONS))
        for place, text in enumerate(texts, start=keep)
    ]
    store.write(
        [
            DocumentWrite(
                key=name,
                expected=store.revision(name),
                stat=STAT,
                content_hash=str(seed),
                added=tuple(added),
                vectors=vectors_of(added),
                removed=tuple(stored.id for stored in old[keep:]),
            )
        ]
    )


@pytest.fixture
def holey(sqlite_store: SqliteStore) -> SqliteStore:
    """Six blocks of vectors, the first four of which lost most of theirs."""
    for number in range(4):
        note(sqlite_store, number, count=PLACES, seed=number)
    for number in range(4):
        note(sqlite_store, number, count=40, seed=10 + number, keep=10)
    return sqlite_store


def blocks(path: Path) -> tuple[int, int]:
    """Return the number of blocks by both of sqlite-vec's tables."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    tables = ("chunks_vec_chunks", "chunks_vec_vector_chunks00")
    [numbers, vectors] = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    connection.close()
    return int(numbers), int(vectors)


def test_vectors_move_together_and_every_search_finds_what_it_found(holey: SqliteStore, index_path: Path) -> None:
    shelf = VectorShelf()
    reader = SqliteReader(index_path, StoreOptions(), shelf=shelf)
    queries = [vector(seed, DIMENSIONS) for seed in range(3)]

    def found() -> list[list[Hit]]:
        for _ in range(20):  # often enough to be held in memory
            answers = [reader.search_vectors(query, 20) for query in queries]
        return answers

    before, token, count = found(), holey.change_token(), blocks(index_path)
    assert count == (6, 6)
    done = holey.maintain(go_on=always, now=0.0)
    assert done.vector_steps > 0
    assert blocks(index_path) == (3, 3)
    assert holey.check() == []
    assert holey.change_token() == token, "answers that were kept stay true"
    assert found() == before
    assert [hit.id for hit in by_sqlite_vec(index_path, queries[0], 20)] == [hit.id for hit in before[0]]
    note(holey, 9, count=PLACES, seed=99)
    assert holey.check() == []
    mine = vector(99_000, DIMENSIONS)
    assert reader.search_vectors(mine, 1)[0].score == pytest.approx(1.0, abs=1e-4)
    assert len(by_sqlite_vec(index_path, mine, 500)) == holey.counts().vectors_ready
    reader.close()


def test_users_words_of_deleted_chunks_leave_the_file(sqlite_store: SqliteStore, index_path: Path) -> None:
    sqlite_store.write([document(TALK, "User: Jqulation"), document(key("b.jsonl", "sessions"), *["User: heron"] * 50)])
    sqlite_store.write([DocumentDelete(TALK, sqlite_store.revision(TALK))])
    log = index_path.with_name(f"{index_path.name}-wal")
    assert any(b"qul" in file.read_bytes() for file in (index_path, log))
    sqlite_store.maintain(go_on=always, now=time.time() + ERASE_AFTER_SECONDS + 1)
    assert not any(b"qul" in file.read_bytes().lower() for file in (index_path, log))
