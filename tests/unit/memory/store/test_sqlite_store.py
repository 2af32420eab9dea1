"""Properties of SQLite alone: files, permissions, damage, full disks, and one table of vectors with sqlite-vec."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import apsw
import pytest

from memory.store.errors import OtherFormat, StoreCorrupt
from memory.store.options import StoreOptions
from memory.store.reader import VectorState
from memory.store.sqlite import vectors as sqlite_vectors
from memory.store.sqlite.connection import ReadConnections
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.schema import APPLICATION_ID, FIRST_SCHEMA_NUMBER, MIGRATIONS, SCHEMA_NUMBER
from memory.store.sqlite.writer import SqliteStore, create_generation, migrate
from memory.store.writer import DocumentDelete
from tests.storing import TALK, by_sqlite_vec, document, filled, key, vector, with_sqlite_vec

CHECKOUT = Path(__file__).parents[4]


# Vectors ---------------------------------------------------------------------------------------------


def test_the_nearest_are_those_that_sqlite_vec_finds(sqlite_store: SqliteStore, index_path: Path) -> None:
    filled(sqlite_store)
    for number in range(0, 30, 3):  # holes in the blocks
        gone = key(f"memory/{number}.md")
        sqlite_store.write([DocumentDelete(gone, sqlite_store.revision(gone))])
    filled_again = key("memory/again.md")
    sqlite_store.write(
        [document(filled_again, "a", "b", revision=sqlite_store.revision(filled_again), vectors=[vector(1), vector(2)])]
    )
    reader = SqliteReader(index_path, StoreOptions())
    for seed in range(5):
        query = vector(1000 + seed)
        expected = by_sqlite_vec(index_path, query, 50)
        found = reader.search_vectors(query, 50)
        assert [hit.id for hit in found] == [hit.id for hit in expected]
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=1e-5)
        assert reader.vector_scores(query, [hit.id for hit in found]) == pytest.approx(
            {hit.id: hit.score for hit in found}, abs=1e-5
        )
    reader.close()


WRITE_WITHOUT_SQLITE_VEC = """
import sys
sys.modules["sqlite_vec"] = None  # as where there is no wheel
from importlib.metadata import version
from pathlib import Path
from memory.store.options import StoreOptions
from memory.store.sqlite.writer import SqliteStore, create_generation
from tests.storing import filled, vector
path = Path(sys.argv[1])
create_generation(path, StoreOptions(), fingerprint="f", description="{}")
store = SqliteStore(path, StoreOptions())
filled(store, documents=4, chunks=20)
print(store.vector_reason, store.counts().vectors_ready, len(store.search_vectors(vector(25), 100)), store.check())
"""


def test_an_index_made_without_sqlite_vec_has_its_vectors_and_sqlite_vec_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "made.sqlite"
    command = [sys.executable, "-c", WRITE_WITHOUT_SQLITE_VEC, str(path)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout == "None 80 80 []\n"
    query = vector(25)
    reader = SqliteReader(path, StoreOptions())
    assert [hit.id for hit in by_sqlite_vec(path, query, 100)] == [hit.id for hit in reader.search_vectors(query, 100)]
    reader.close()
    connection = with_sqlite_vec(path)
    assert connection.pragma("integrity_check") == "ok"
    assert connection.execute("SELECT count(*), min(vec_length(embedding)) FROM chunks_vec").fetchall() == [(80, 16)]
    connection.close()


def test_the_layout_of_vectors_is_that_of_the_installed_sqlite_vec() -> None:
    assert version("sqlite-vec") == sqlite_vectors.SQLITE_VEC_VERSION


def test_the_tables_of_vectors_are_those_that_sqlite_vec_makes(sqlite_store: SqliteStore, index_path: Path) -> None:
    filled(sqlite_store, documents=1)
    ours = with_sqlite_vec(index_path)
    theirs = with_sqlite_vec(Path(":memory:"))
    [(declared,)] = ours.execute("SELECT sql FROM sqlite_schema WHERE name = 'chunks_vec'").fetchall()
    theirs.execute(declared)

    def columns(connection: apsw.Connection) -> list[tuple[object, ...]]:
        return connection.execute(
            "SELECT s.name, c.* FROM sqlite_schema AS s, pragma_table_info(s.name) AS c "
            "WHERE s.name GLOB 'chunks_vec*' AND s.type = 'table' ORDER BY 1, 2"
        ).fetchall()

    assert [tuple(map(str.lower, map(str, row))) for row in columns(ours)] == [
        tuple(map(str.lower, map(str, row))) for row in columns(theirs)
    ]
    for table in ("chunks_vec_info", "chunks_vec_chunks WHERE size <> length(validity) * 8"):
        assert ours.execute(f"SELECT * FROM {table}").fetchall() == theirs.execute(f"SELECT * FROM {table}").fetchall()
    ours.close()


def test_of_a_deleted_vector_nothing_stays_in_the_tables(sqlite_store: SqliteStore, index_path: Path) -> None:
    filled(sqlite_store, documents=2, chunks=3)
    lost = sqlite_store.vectors_of([2])[2].tobytes()
    gone = key("memory/0.md")
    sqlite_store.write([DocumentDelete(gone, sqlite_store.revision(gone))])
    connection = with_sqlite_vec(index_path)
    [(vectors,)] = connection.execute("SELECT vectors FROM chunks_vec_vector_chunks00").fetchall()
    assert lost not in vectors
    assert sqlite_store.vectors_of([5])[5].tobytes() in vectors
    left = key("memory/1.md")
    sqlite_store.write([DocumentDelete(left, sqlite_store.revision(left))])
    assert sqlite_vectors.fillings(connection) == []
    assert connection.execute("SELECT count(*) FROM chunks_vec_vector_chunks00").fetchall() == [(0,)]
    connection.close()


# Damage, and a full disk -----------------------------------------------------------------------------

OURS = f"PRAGMA application_id = {APPLICATION_ID};"


def execute(path: Path, statements: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statements)
    connection.close()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda path: path.write_bytes(b"not a database " * 5000), StoreCorrupt, "is damaged"),
        (lambda path: path.write_bytes(b""), StoreCorrupt, "holds no index"),
        (lambda path: execute(path, "CREATE TABLE t(x); PRAGMA user_version = 1"), StoreCorrupt, "holds no index"),
        (lambda path: execute(path, f"{OURS} PRAGMA user_version = 99"), OtherFormat, "another version"),
        (lambda path: execute(path, f"{OURS} PRAGMA user_version = 0"), StoreCorrupt, "holds no index"),
    ],
    ids=["no database", "an empty file", "a stranger's database", "a newer program's", "half a generation"],
)
def test_what_is_no_index_is_refused_and_named(
    tmp_path: Path, make: Callable[[Path], object], error: type[Exception], said: str
) -> None:
    path = tmp_path / "bad.sqlite"
    make(path)
    for opening in (SqliteReader, SqliteStore):
        with pytest.raises(error, match=said) as caught:
            opening(path, StoreOptions())
        assert getattr(caught.value, "generation", path.name) == path.name
    with pytest.raises(FileExistsError):
        create_generation(path, StoreOptions(), fingerprint="g", description="")


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("DELETE FROM chunks_fts WHERE rowid = 3", "chunks without a row in chunks_fts (ids 3)"),
        ("DELETE FROM chunks WHERE id = 3", "rows of chunks_vec without a ready chunk (ids 3)"),
        ("DELETE FROM chunks_vec WHERE rowid = 3", "ready chunks without a row in chunks_vec (ids 3)"),
        ("UPDATE chunks SET vector_state = 'pending' WHERE id = 3", "rows of chunks_vec without a ready chunk"),
        ("DELETE FROM chunks_vec_rowids WHERE rowid = 3", "does not agree on itself"),
        ("DELETE FROM files", "chunks without a file"),
        ("INSERT INTO chunks_fts(rowid, text) VALUES (99, 'x')", "rows of chunks_fts without a chunk (ids 99)"),
        ("DELETE FROM chunks_said WHERE rowid = 6", "users' words and without a row in chunks_said (ids 6)"),
        (
            "INSERT INTO chunks_said(rowid, text) VALUES (1, 'x')",
            "chunks_said without a chunk with users' words",
        ),
        ("INSERT INTO sentences VALUES ('x', x'', x'')", "rows of sentences without a chunk (ids 1)"),
    ],
)
def test_the_check_finds_every_disagreement(
    sqlite_store: SqliteStore, index_path: Path, damage: str, finding: str
) -> None:
    filled(sqlite_store, documents=1, chunks=5)
    sqlite_store.write([document(TALK, "User: heron")])
    assert sqlite_store.check() == []
    connection = with_sqlite_vec(index_path)
    connection.execute(damage)
    connection.close()
    assert any(finding in found for found in sqlite_store.check())


# The schema ------------------------------------------------------------------------------------------


def test_migrations_are_recorded_and_applied_once_and_one_that_fails_leaves_no_trace(index_path: Path) -> None:
    connection = apsw.Connection(str(index_path))
    broken = (*MIGRATIONS, ("broken", "CREATE TABLE colours (name TEXT); CREATE nonsense"))
    with pytest.raises(apsw.SQLError):
        migrate(connection, broken)
    assert connection.pragma("user_version") == SCHEMA_NUMBER
    more = (*MIGRATIONS, ("colours", "CREATE TABLE colours (name TEXT)"))
    assert [migrate(connection, more), migrate(connection, more)] == [1, 0]
    recorded = dict(connection.execute("SELECT name, value FROM meta WHERE name LIKE 'migration:%'").fetchall())
    assert recorded[f"migration:{FIRST_SCHEMA_NUMBER}"].startswith("first tables, ")
    assert recorded[f"migration:{SCHEMA_NUMBER + 1}"].startswith("colours, ")
    connection.close()


def test_an_index_of_the_first_tables_answers_and_gains_users_words(index_path: Path) -> None:
    store = SqliteStore(index_path, StoreOptions())
    for number in range(3):  # more chunks than one transaction adds
        store.write([document(key(f"s/{number}.jsonl", "sessions"), *["User: heron"] * 400, vectors=[vector(1)] * 400)])
    ids = [hit.id for hit in store.search_text("heron", 2000)]
    assert len(store.user_scores("heron", ids)) == 1200
    store.close()
    execute(index_path, "DROP TABLE chunks_said; DROP TABLE sentences; PRAGMA user_version = 4")
    reader = SqliteReader(index_path, StoreOptions())
    assert (reader.user_scores("heron", ids), reader.sentence_signs(ids), reader.check()) == ({}, {}, [])
    assert [hit.id for hit in reader.search_text("heron", 2000)] == ids
    store, steps = SqliteStore(index_path, StoreOptions()), iter([True])
    store.maintain(go_on=lambda: next(steps, False), now=0.0)
    assert (reader.user_scores("heron", ids), reader.check()) == ({}, []), "only the newest chunks have them by now"
    store.write(
        [document(TALK, "User: heron"), DocumentDelete(old := key("s/1.jsonl", "sessions"), store.revision(old))]
    )
    store.maintain(go_on=lambda: True, now=0.0)
    assert (len(reader.user_scores("heron", [*ids, max(ids) + 1])), reader.check()) == (801, [])
    assert (reader.counts().chunks, reader.counts().vectors_ready) == (801, 800)
    reader.close()
    store.close()


def test_held_chunks_have_words_and_no_turn_sees_them_before_their_release(sqlite_store: SqliteStore) -> None:
    vectors = [VectorState.HELD, vector(2), VectorState.HELD]
    sqlite_store.write([document(key("memory/a.md"), "the one", "two", "the three", vectors=vectors)])
    one, two, three = sqlite_store.chunks_of(key("memory/a.md"))
    assert [row.vector_state for row in (one, two, three)] == [VectorState.HELD, VectorState.READY, VectorState.HELD]
    assert (sqlite_store.pending_hashes(), len(sqlite_store.search_text("the", 9))) == ({}, 2)
    assert sqlite_store.held_hashes() == {one.id: one.text_hash, three.id: three.text_hash}
    assert (list(sqlite_store.held_hashes(1)), list(sqlite_store.held_hashes(after=one.id))) == ([one.id], [three.id])
    assert sqlite_store.write_vectors({one.id: (one.text_hash, vector(1))}) == 0
    counts = sqlite_store.counts()
    assert (counts.vectors_held, counts.vectors_pending, counts.vectors_ready) == (2, 0, 1)
    assert sqlite_store.release_held([one.id, two.id, 999]) == 1
    assert (sqlite_store.pending_hashes(), list(sqlite_store.held_hashes())) == ({one.id: one.text_hash}, [three.id])
    assert (sqlite_store.counts().vectors_held, sqlite_store.counts().vectors_pending) == (1, 1)
    sqlite_store.write([DocumentDelete(key("memory/a.md"), sqlite_store.revision(key("memory/a.md")))])
    assert (sqlite_store.held_hashes(), sqlite_store.counts().vectors_held) == ({}, 0)


def test_an_index_of_unread_chunks_keeps_its_rows_and_takes_held_ones(index_path: Path) -> None:
    store = SqliteStore(index_path, StoreOptions())
    store.write([document(key("memory/a.md"), "heron", vectors=[vector(1)])])
    store.close()
    execute(
        index_path,
        "DROP INDEX chunks_held; PRAGMA user_version = 6; PRAGMA writable_schema = ON;"
        "UPDATE sqlite_schema SET sql = replace(sql, ', ''held''', '') WHERE name = 'chunks'",
    )
    reader = SqliteReader(index_path, StoreOptions())
    assert (reader.counts().vectors_held, reader.held_hashes()) == (0, {})
    reader.close()
    store = SqliteStore(index_path, StoreOptions())
    store.write([document(key("memory/b.md"), "crane", vectors=[VectorState.HELD])])
    assert (store.counts().vectors_ready, store.counts().vectors_held, store.check()) == (1, 1, [])
    store.close()


def test_a_reader_of_a_file_that_is_gone_shares_its_connections(index_path: Path, sqlite_store: SqliteStore) -> None:
    filled(sqlite_store, documents=1, chunks=1)
    connections = ReadConnections(index_path, StoreOptions())
    counts: list[int] = []

    def count() -> None:
        with connections.borrow() as connection:
            counts.append(len(connection.execute("SELECT id FROM chunks").fetchall()))

    with connections.borrow():
        index_path.unlink()
        waiting = threading.Thread(target=count)
        waiting.start()
    waiting.join()
    connections.close()
    assert counts == [1]
