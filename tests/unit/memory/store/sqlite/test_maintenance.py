"""Maintenance of one generation: what replaced texts left behind goes, and nothing that is found changes."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from memory.store.options import StoreOptions
from memory.store.reader import Hit
from memory.store.sqlite import maintenance as sqlite_maintenance
from memory.store.sqlite import writer as sqlite_writer
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.vectors import VectorShelf
from memory.store.sqlite.writer import SqliteStore
from memory.store.writer import DocumentWrite, Maintained, NewChunk
from tests.storing import STAT, by_sqlite_vec, key, text_hash, vector

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
        NewChunk(place, place + 1, place + 1, text, text_hash(text), vector=vector(seed * 1000 + place, DIMENSIONS))
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
                removed=tuple(chunk.id for chunk in old[keep:]),
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
    """How many blocks there are by both of sqlite-vec's tables."""
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
    done = holey.maintain(go_on=always)
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


def test_a_round_that_is_interrupted_leaves_a_sound_index_and_the_next_one_goes_on(
    holey: SqliteStore, index_path: Path
) -> None:
    steps = 0

    def one_more() -> bool:
        nonlocal steps
        steps += 1
        return steps <= 1

    assert holey.maintain(go_on=one_more) == Maintained(vector_steps=1)
    assert holey.check() == []
    assert holey.maintain(go_on=lambda: False) == Maintained()
    holey.maintain(go_on=always)
    assert holey.check() == []
    assert blocks(index_path) == (3, 3)


def test_a_dense_index_is_left_alone(sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "WAL_WORTH_CUTTING_BYTES", 10**12)
    assert not sqlite_store.maintain(go_on=always).anything, "an empty one, too"
    for number in range(3):
        note(sqlite_store, number, count=PLACES, seed=number)
    note(sqlite_store, 0, count=PLACES, seed=5, keep=60)
    assert sqlite_store.maintain(go_on=always).vector_steps == 0


def test_keywords_are_merged_when_many_chunks_came_or_went_and_not_again_before_many_more(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_maintenance, "WORTH_MERGING_CHUNKS", 100)
    for number in range(30):
        note(sqlite_store, number, count=3, seed=number)
    assert sqlite_store.maintain(go_on=always).keyword_steps == 0, "too few"
    for number in range(30, 60):
        note(sqlite_store, number, count=3, seed=number)
    before = {hit.id: hit.score for hit in sqlite_store.search_text("heron word7x1", 50)}
    assert sqlite_store.maintain(go_on=always).keyword_steps > 0
    assert {hit.id: hit.score for hit in sqlite_store.search_text("heron word7x1", 50)} == pytest.approx(before)
    assert sqlite_store.maintain(go_on=always).keyword_steps == 0

    segments = _segments(sqlite_store)
    for number in range(59):
        note(sqlite_store, number, count=1, seed=number, keep=1)
    assert _segments(sqlite_store) == segments, "deleting merged nothing"
    assert sqlite_store.maintain(go_on=always).keyword_steps > 0
    assert _segments(sqlite_store) != segments
    assert len(sqlite_store.search_text("heron", 100)) == 59 + 3
    assert sqlite_store.check() == []


def _segments(store: SqliteStore) -> set[int]:
    """The segments of the keyword index, by their ids."""
    rows = store._writer.execute("SELECT DISTINCT segid FROM chunks_fts_idx").fetchall()
    return {int(row[0]) for row in rows}


def test_a_log_that_grew_is_cut_once_nobody_reads(
    holey: SqliteStore, index_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = index_path.with_name("index.sqlite-wal")
    assert log.stat().st_size > sqlite_writer.WAL_WORTH_CUTTING_BYTES
    reading = apsw.Connection(str(index_path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = reading.execute("SELECT id FROM chunks")
    assert next(rows)
    assert holey.maintain(go_on=always).log_bytes == 0, "it waits for nobody"
    rows.close()
    reading.close()
    assert holey.maintain(go_on=always).log_bytes > 0
    assert log.stat().st_size == 0
    assert holey.check() == []
