"""Transcripts in SQLite: the columns, older schemas, crashes, and what an append reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from memory.chunking.segmenting import index_text
from memory.store.options import StoreOptions
from memory.store.reader import RefusedChunk
from memory.store.sqlite import connection as sqlite_connection
from memory.store.sqlite.reader import StoreReader
from memory.store.sqlite.rows import as_blob
from memory.store.sqlite.schema import MIGRATIONS
from memory.store.sqlite.writer import Store, migrate, open_for_writing
from memory.store.writer import WriteOutcome
from schemas.documents import FileStat
from tests.storing import TALK, key, mark, piece, said, text_hash, vector

NOTE = key("memory/note.md")


def rows(path: Path, statement: str, bindings: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(statement, bindings).fetchall()
    finally:
        connection.close()


# Older schemas ---------------------------------------------------------------------------------------


@pytest.fixture
def old_path(tmp_path: Path) -> Path:
    """A generation as the first schema had it: one note, one chunk with a vector, one refused."""
    path = tmp_path / "old.sqlite"
    connection = open_for_writing(path, StoreOptions(), create=True)
    sqlite_connection.load_sqlite_vec(connection, None)
    migrate(connection, MIGRATIONS[:1])
    connection.execute("CREATE VIRTUAL TABLE chunks_vec USING vec0 (embedding float[16], chunk_size = 1024)")
    connection.execute("INSERT INTO meta (name, value) VALUES ('dimensions', '16'), ('fingerprint', 'f')")
    connection.execute("INSERT INTO files VALUES (1, ?, ?, 10, 20, 30, 'hash', 1, 0.5, '[]')", (NOTE.source, NOTE.path))
    for chunk_id, text, state, refusal in ((1, "gateway", "ready", None), (2, "deploy", "refused", "too long")):
        connection.execute(
            "INSERT INTO chunks VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?)",
            (chunk_id, chunk_id - 1, chunk_id, chunk_id, state, text_hash(text), refusal, text),
        )
        connection.execute("INSERT INTO chunks_fts (rowid, text) VALUES (?, ?)", (chunk_id, index_text(text)))
    connection.execute("INSERT INTO chunks_vec (rowid, embedding) VALUES (1, ?)", (as_blob(vector(1)),))
    connection.close()
    return path


def says_what_it_said(reader: StoreReader) -> None:
    assert [hit.id for hit in reader.search_text("gateway", 5)] == [1]
    assert [hit.id for hit in reader.search_vectors(vector(1), 5)] == [1]
    assert [row.text for row in reader.chunk_rows([1, 2]).values()] == ["gateway", "deploy"]
    assert [one.ordinal for one in reader.chunks_of(NOTE)] == [0, 1]
    assert reader.refused_chunks(NOTE) == [RefusedChunk(2, 2, 2, "too long")]
    assert reader.vectors_by_hash([text_hash("gateway")])[text_hash("gateway")] == pytest.approx(vector(1))
    assert (reader.counts().chunks, reader.counts().vectors_refused) == (2, 1)
    assert reader.transcript(TALK) is None
    assert reader.transcript(NOTE) is None
    file = reader.file(NOTE)
    assert file is not None
    assert (file.stat.size, file.stat.mtime_ns, file.stat.inode, file.touches) == (10, 20, 30, 0)
    # It was indexed half a second after the epoch: what changed later is read, and nothing else.
    assert file.stat.agrees_with(FileStat(10, 20, 30, 400_000_000))
    assert not file.stat.agrees_with(FileStat(10, 20, 30, 600_000_000))
    assert list(reader.files()) == [file]
    assert reader.check() == []


@pytest.mark.parametrize(
    ("text", "path", "stays"),
    [
        ("今天 gateway déjà", "memory/日.md", True),
        ("เมื่อวานเราประชุม", "memory/a.md", False),
        ("plain", "memory/ປະຊຸມ.md", False),
    ],
)
def test_only_an_index_with_thai_lao_burmese_or_khmer_is_to_be_built_anew(
    old_path: Path, text: str, path: str, *, stays: bool
) -> None:
    connection = apsw.Connection(str(old_path))
    connection.execute("UPDATE chunks SET text = ? WHERE id = 1", (text,))
    connection.execute("UPDATE files SET path = ?", (path,))
    connection.close()
    Store(old_path, StoreOptions()).close()
    assert (rows(old_path, "SELECT value FROM meta WHERE name = 'fingerprint'") == [("f",)]) == stays


def test_an_index_of_the_first_schema_is_read_as_it_is_and_still_when_a_writer_migrates_it(old_path: Path) -> None:
    reader = StoreReader(old_path, StoreOptions())
    says_what_it_said(reader)
    assert rows(old_path, "PRAGMA user_version") == [(1,)]
    store = Store(old_path, StoreOptions())
    assert rows(old_path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    says_what_it_said(reader)
    says_what_it_said(store)
    assert store.write([piece(*said("hello"), continues=None, to=mark(1))]) == [WriteOutcome.COMMITTED]
    assert reader.transcript(TALK) == mark(1)
    assert reader.check() == []
    store.close()
    reader.close()
