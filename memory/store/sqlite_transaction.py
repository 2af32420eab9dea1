"""What one transaction does to the tables of a SQLite generation."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import apsw

from memory.segmenting import index_text
from memory.store import sqlite_letters, vec0_tables
from memory.store.reader import Vector, VectorBackend, VectorState
from memory.store.sqlite_rows import (
    SELECT_FILE_ID,
    as_blob,
    as_json,
    current_revision,
    fetch,
    fetch_one,
    meta_value,
    name_of,
    stat_values,
)
from memory.store.sqlite_schema import SET_META, create_chunks_vec
from memory.store.writer import DocumentDelete, DocumentWrite, NewChunk, Refusal, WriteOutcome
from schemas.documents import DocumentKey, FileStat

UPSERT_FILE = """
INSERT INTO files (source, path, size, mtime_ns, inode, content_hash, revision, indexed_at, notes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (source, path) DO UPDATE SET
    size = excluded.size, mtime_ns = excluded.mtime_ns, inode = excluded.inode,
    content_hash = excluded.content_hash, revision = excluded.revision,
    indexed_at = excluded.indexed_at, notes = excluded.notes
RETURNING id
"""

DELETE_FILE = "DELETE FROM files WHERE id = ?"
TOUCH_FILE = "UPDATE files SET size = ?, mtime_ns = ?, inode = ? WHERE source = ? AND path = ?"
TOUCH_FILE_OF_CONTENT = f"{TOUCH_FILE} AND content_hash = ?"

SELECT_CHUNKS_OF_FILE = "SELECT id, vector_state FROM chunks WHERE file_id = ?"
SELECT_THESE_CHUNKS_OF_FILE = """
SELECT id, vector_state FROM chunks WHERE file_id = ? AND id IN (SELECT value FROM json_each(?))
"""

# The highest id that was ever given, also to a chunk that is gone.
SELECT_LAST_CHUNK_ID = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunks'), 0)"

INSERT_CHUNK = """
INSERT INTO chunks (id, file_id, ordinal, start_line, end_line, vector_state, text_hash, refusal, text)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
MOVE_CHUNK = "UPDATE chunks SET ordinal = ?, start_line = ?, end_line = ? WHERE id = ? AND file_id = ?"
DELETE_CHUNK = "DELETE FROM chunks WHERE id = ?"
SET_VECTOR_STATE = "UPDATE chunks SET vector_state = ?, refusal = ? WHERE id = ?"

INSERT_FTS = "INSERT INTO chunks_fts (rowid, text) VALUES (?, ?)"
DELETE_FTS = "DELETE FROM chunks_fts WHERE rowid = ?"

INSERT_VECTOR = "INSERT INTO chunks_vec (rowid, embedding) VALUES (?, ?)"
DELETE_VECTOR = "DELETE FROM chunks_vec WHERE rowid = ?"

SELECT_PENDING_HASHES = """
SELECT id, text_hash FROM chunks
WHERE vector_state = 'pending' AND id IN (SELECT value FROM json_each(?))
"""

INCREMENT_META = "UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = ? RETURNING value"


class WriteTransaction:
    """The changes of one transaction. Rows are collected and written table by table at its end."""

    def __init__(self, connection: apsw.Connection, backend: VectorBackend) -> None:
        self.changed = False
        self._connection = connection
        self._backend = backend
        self._now = time.time()
        self._number = int(meta_value(connection, "transactions") or 0) + 1
        [(last_chunk_id,)] = fetch(connection, SELECT_LAST_CHUNK_ID)
        self._last_chunk_id: int = last_chunk_id
        self._added: list[tuple[int, int, NewChunk]] = []  # id, file id, chunk
        self._removed: list[tuple[int, str]] = []  # id, vector state
        self._settled: dict[DocumentKey, bool] = {}  # document, whether it brought a refusal

    def put(self, change: DocumentWrite) -> WriteOutcome:
        if current_revision(self._connection, change.key) != change.expected_revision:
            return WriteOutcome.CONFLICT
        values = (
            *name_of(change.key),
            *stat_values(change.stat),
            change.content_hash,
            self._number,
            self._now,
            json.dumps(change.notes, ensure_ascii=False),
        )
        [(file_id,)] = fetch(self._connection, UPSERT_FILE, values)
        if change.removed:
            bindings = (file_id, as_json(change.removed))
            self._removed += fetch(self._connection, SELECT_THESE_CHUNKS_OF_FILE, bindings)
        self._connection.executemany(
            MOVE_CHUNK, [(kept.ordinal, kept.start_line, kept.end_line, kept.id, file_id) for kept in change.moved]
        )
        for chunk in change.added:
            self._last_chunk_id += 1
            self._added.append((self._last_chunk_id, file_id, chunk))
        return self._settle(change.key, refusal=any(chunk.refused is not None for chunk in change.added))

    def drop(self, change: DocumentDelete) -> WriteOutcome:
        if current_revision(self._connection, change.key) != change.expected_revision:
            return WriteOutcome.CONFLICT
        row = fetch_one(self._connection, SELECT_FILE_ID, name_of(change.key))
        if row is not None:
            self._removed += fetch(self._connection, SELECT_CHUNKS_OF_FILE, row)
            self._connection.execute(DELETE_FILE, row)
            fetch(self._connection, INCREMENT_META, ("deletions",))
        return self._settle(change.key, refusal=False)

    def _settle(self, key: DocumentKey, *, refusal: bool) -> WriteOutcome:
        self._settled[key] = refusal
        self.changed = True
        return WriteOutcome.COMMITTED

    def join_vectors(self, vectors: Mapping[int, tuple[str, Vector | Refusal]]) -> int:
        pending = fetch(self._connection, SELECT_PENDING_HASHES, (as_json(vectors),))
        states: list[tuple[str, str | None, int]] = []
        rows: list[tuple[int, Vector]] = []
        for chunk_id, text_hash in pending:
            expected, given = vectors[chunk_id]
            if expected != text_hash:
                continue
            if isinstance(given, Refusal):
                states.append((VectorState.REFUSED, given.reason, chunk_id))
            elif self._keeps_vectors:
                states.append((VectorState.READY, None, chunk_id))
                rows.append((chunk_id, given))
        self._connection.executemany(SET_VECTOR_STATE, states)
        self._insert_vectors(rows)
        refused = [chunk_id for state, _, chunk_id in states if state == VectorState.REFUSED]
        if refused:
            sqlite_letters.record_refusals(self._connection, refused, now=self._now)
        self.changed = self.changed or bool(states)
        return len(states)

    def touch(self, stats: Mapping[DocumentKey, FileStat], content_hashes: Mapping[DocumentKey, str] | None) -> None:
        for key, stat in stats.items():
            values = (*stat_values(stat), *name_of(key))
            if content_hashes is None:
                self._connection.execute(TOUCH_FILE, values)
            else:
                self._connection.execute(TOUCH_FILE_OF_CONTENT, (*values, content_hashes.get(key)))
            if self._connection.changes():
                self._settled[key] = False
        self.changed = bool(stats)

    def add_dead_letter(self, key: DocumentKey, reason: str, error_class: str) -> None:
        sqlite_letters.add(self._connection, key, reason=reason, error_class=error_class, now=self._now)
        self.changed = True

    def retry(self, key: DocumentKey) -> int:
        released, self.changed = sqlite_letters.retry(self._connection, key)
        return released

    def drop_letter(self, key: DocumentKey) -> bool:
        self.changed = sqlite_letters.remove(self._connection, key)
        return self.changed

    def set_meta(self, values: Mapping[str, str]) -> None:
        self._connection.executemany(SET_META, list(values.items()))
        self.changed = bool(values)

    def flush(self) -> None:
        """Write the chunks that were collected: removed ones from all three tables, then added ones to them.

        The letters come last: what they say of refused chunks is read from the tables.
        """
        if self._removed:
            self._remove_chunks()
        if self._added:
            self._add_chunks()
        for key, refusal in self._settled.items():
            sqlite_letters.settle(self._connection, key, fresh=refusal, now=self._now)

    def finish(self) -> None:
        """Count the transaction."""
        if self.changed:
            self.set_meta({"transactions": str(self._number), "last_commit_at": repr(self._now)})

    @property
    def _keeps_vectors(self) -> bool:
        return self._backend is VectorBackend.SQLITE_VEC

    def _remove_chunks(self) -> None:
        ids = [(chunk_id,) for chunk_id, _ in self._removed]
        self._connection.executemany(DELETE_CHUNK, ids)
        self._connection.executemany(DELETE_FTS, ids)
        ready = [chunk_id for chunk_id, state in self._removed if state == VectorState.READY]
        if not ready:
            return
        if self._keeps_vectors:
            self._connection.executemany(DELETE_VECTOR, [(chunk_id,) for chunk_id in ready])
        else:
            vec0_tables.delete_vectors(self._connection, ready)

    def _add_chunks(self) -> None:
        self._connection.executemany(INSERT_CHUNK, [self._chunk_values(*added) for added in self._added])
        self._connection.executemany(
            INSERT_FTS, ((chunk_id, index_text(chunk.text)) for chunk_id, _, chunk in self._added)
        )
        self._insert_vectors(
            [
                (chunk_id, chunk.vector)
                for chunk_id, _, chunk in self._added
                if chunk.vector is not None and self._state(chunk) is VectorState.READY
            ]
        )

    def _chunk_values(self, chunk_id: int, file_id: int, chunk: NewChunk) -> tuple[int | str | None, ...]:
        return (
            chunk_id,
            file_id,
            chunk.ordinal,
            chunk.start_line,
            chunk.end_line,
            self._state(chunk),
            chunk.text_hash,
            chunk.refused,
            chunk.text,
        )

    def _state(self, chunk: NewChunk) -> VectorState:
        if chunk.refused is not None:
            return VectorState.REFUSED
        return VectorState.READY if chunk.vector is not None and self._keeps_vectors else VectorState.PENDING

    def _insert_vectors(self, rows: Sequence[tuple[int, Vector]]) -> None:
        if not rows:
            return
        value = meta_value(self._connection, "dimensions")
        if value is None:
            value = str(rows[0][1].size)
            self._connection.execute(create_chunks_vec(int(value)))
            self._connection.execute(SET_META, ("dimensions", value))
        for chunk_id, vector in rows:
            if vector.shape != (int(value),):
                raise ValueError(f"chunk {chunk_id}: shape {vector.shape} in an index of {value} dimensions")
        self._connection.executemany(INSERT_VECTOR, ((chunk_id, as_blob(vector)) for chunk_id, vector in rows))
