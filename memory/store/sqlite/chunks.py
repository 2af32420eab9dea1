"""Chunk rows that a transaction adds and removes in `chunks`, `chunks_fts` and `chunks_vec`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import apsw

from memory.chunking.segmenting import index_text, index_title
from memory.store.reader import TranscriptMark, Vector, VectorState
from memory.store.sqlite import vec0_tables
from memory.store.sqlite.rows import as_json, fetch, fetch_one, meta_value
from memory.store.sqlite.schema import SET_META, create_chunks_vec
from memory.store.writer import NewChunk, TranscriptWrite
from schemas.documents import DocumentKey

# The highest id ever used, also by a chunk that is gone.
SELECT_LAST_CHUNK_ID = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunks'), 0)"

INSERT_CHUNK = """
INSERT INTO chunks (id, file_id, ordinal, start_line, end_line, vector_state, text_hash, refusal, text, said_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
DELETE_CHUNK = "DELETE FROM chunks WHERE id = ?"

INSERT_FTS = "INSERT INTO chunks_fts (rowid, text) VALUES (?, ?)"
DELETE_FTS = "DELETE FROM chunks_fts WHERE rowid = ?"


class ChunkRows:
    """Collected rows, written table by table: writing three tables in turn for each chunk costs far more."""

    def __init__(self, connection: apsw.Connection, *, keeps_vectors: bool) -> None:
        self._connection = connection
        #: False if vectors are switched off: all chunks stay pending.
        self.keeps_vectors = keeps_vectors
        [(last_chunk_id,)] = fetch(connection, SELECT_LAST_CHUNK_ID)
        self._last_chunk_id: int = last_chunk_id
        self._added: list[tuple[int, int, NewChunk]] = []  # id, file id, chunk
        self._titles: dict[int, str] = {}  # by file id
        self._removed: list[tuple[int, str]] = []  # id, vector state
        self._joined: list[tuple[int, Vector]] = []
        self._files: set[int] = set()

    def add(self, file_id: int, key: DocumentKey, chunks: Iterable[NewChunk]) -> None:
        """Insert chunks of a document."""
        self._files.add(file_id)
        self._titles[file_id] = index_title(key.source, key.path)
        for chunk in chunks:
            self._last_chunk_id += 1
            self._added.append((self._last_chunk_id, file_id, chunk))

    def remove(self, file_id: int, rows: Iterable[tuple[int, str]]) -> None:
        """Delete chunks of a document, given by id and vector state."""
        self._files.add(file_id)
        self._removed += rows

    def join(self, file_id: int, vectors: Iterable[tuple[int, Vector]]) -> None:
        """Insert vectors of chunks that were written as ready."""
        self._files.add(file_id)
        self._joined += vectors

    def flush_file(self, file_id: int) -> None:
        """Write the changes that this transaction has collected for a document."""
        if file_id in self._files:
            self.flush()

    def flush(self) -> None:
        """Write everything, removed chunks first: a chunk that was added later stays."""
        if self._removed:
            self._remove_chunks()
        if self._added:
            self._add_chunks()
        self.insert_vectors(self._joined)
        self._removed, self._added, self._joined = [], [], []
        self._files.clear()
        self._titles.clear()

    def insert_vectors(self, rows: Sequence[tuple[int, Vector]]) -> None:
        """Insert vectors at once; the first ones of an index make their table.

        Raises:
            ValueError: a vector has other dimensions than the index.
        """
        if not rows:
            return
        value = meta_value(self._connection, "dimensions")
        if value is None:
            value = str(rows[0][1].size)
            create_chunks_vec(self._connection, int(value))
            self._connection.execute(SET_META, ("dimensions", value))
        for chunk_id, vector in rows:
            if vector.shape != (int(value),):
                raise ValueError(f"chunk {chunk_id}: shape {vector.shape} in an index of {value} dimensions")
        vec0_tables.insert_vectors(self._connection, rows)

    def _remove_chunks(self) -> None:
        # Ascending: FTS5 flushes whenever a rowid is below the one before it. Deleting 20,000 stale chunks in another
        # order took 7.5 s instead of 0.1 s.
        self._removed.sort()
        ids = [(chunk_id,) for chunk_id, _ in self._removed]
        self._connection.executemany(DELETE_CHUNK, ids)
        self._connection.executemany(DELETE_FTS, ids)
        ready = [chunk_id for chunk_id, state in self._removed if state == VectorState.READY]
        if ready:
            vec0_tables.delete_vectors(self._connection, ready)

    def _add_chunks(self) -> None:
        self._connection.executemany(INSERT_CHUNK, [self._chunk_values(*added) for added in self._added])
        self._connection.executemany(
            INSERT_FTS,
            (
                (chunk_id, index_text(f"{title}\n{chunk.text}" if (title := self._titles[file_id]) else chunk.text))
                for chunk_id, file_id, chunk in self._added
            ),
        )
        self.insert_vectors(
            [
                (chunk_id, chunk.vector)
                for chunk_id, _, chunk in self._added
                if chunk.vector is not None and self._state(chunk) is VectorState.READY
            ]
        )

    def _chunk_values(self, chunk_id: int, file_id: int, chunk: NewChunk) -> tuple[int | float | str | None, ...]:
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
            chunk.said_at,
        )

    def _state(self, chunk: NewChunk) -> VectorState:
        if chunk.refused is not None:
            return VectorState.REFUSED
        return VectorState.READY if chunk.vector is not None and self.keeps_vectors else VectorState.PENDING


REPLACE_MARK = 'INSERT OR REPLACE INTO transcripts (file_id, "offset", lines, digest, state) VALUES (?, ?, ?, ?, ?)'
DELETE_MARK = "DELETE FROM transcripts WHERE file_id = ?"

# -1 - ordinal has as many bytes as the ordinal (except for the first two), so SQLite overwrites rows in place.
MAKE_STALE = "UPDATE chunks SET ordinal = -1 - ordinal WHERE file_id = ? AND ordinal >= ?"

# The last chunks first, so that the rest is the beginning.
MAKE_SOME_STALE = """
UPDATE chunks SET ordinal = -1 - ordinal
WHERE id IN (SELECT id FROM chunks WHERE file_id = ? AND ordinal >= ? ORDER BY ordinal DESC LIMIT ?)
"""

SELECT_HAS_STALE = "SELECT 1 FROM chunks WHERE file_id = ? AND ordinal < 0 LIMIT 1"
SELECT_STALE = "SELECT id, vector_state FROM chunks WHERE file_id = ? AND ordinal < 0"

SELECT_STALE_BUT = """
SELECT id, vector_state FROM chunks
WHERE file_id = ? AND ordinal < 0 AND id NOT IN (SELECT value FROM json_each(?)) LIMIT ?
"""

# CROSS JOIN forces a look-up by hash for each text of the slice, however many chunks are stale.
# The earliest of several chunks with the same text comes first.
SELECT_STALE_BY_HASH = """
SELECT c.text_hash, c.id, c.vector_state
FROM json_each(?) AS wanted CROSS JOIN chunks AS c INDEXED BY chunks_by_hash ON c.text_hash = wanted.value
WHERE c.file_id = ? AND c.ordinal < 0
ORDER BY c.ordinal DESC, c.id
"""

# A stored refusal stays unless a vector replaces it.
TAKE_OVER = """
UPDATE chunks SET ordinal = ?, start_line = ?, end_line = ?, said_at = ?, vector_state = ?,
    refusal = CASE WHEN ? = 'refused' THEN coalesce(refusal, ?) END
WHERE id = ?
"""


#: Mark at the start of a file.
NOWHERE = TranscriptMark(0, 0, "", "")


def forget_mark(connection: apsw.Connection, file_id: int) -> None:
    """Delete the mark of a deleted document."""
    connection.execute(DELETE_MARK, (file_id,))


def set_mark(connection: apsw.Connection, file_id: int, mark: TranscriptMark) -> None:
    """Store the mark of a transcript."""
    connection.execute(REPLACE_MARK, (file_id, mark.offset, mark.lines, mark.digest, mark.state))


def write_chunks(connection: apsw.Connection, rows: ChunkRows, file_id: int, change: TranscriptWrite) -> bool:
    """Apply a slice to the document's chunks; return True if it brought a refusal."""
    rows.flush_file(file_id)  # an earlier slice in the same transaction
    if change.keep is not None:
        connection.execute(MAKE_STALE, (file_id, change.keep))
    added, refusal = _take_over(connection, rows, file_id, change.added)
    rows.add(file_id, change.key, added)
    if change.final:
        rows.remove(file_id, fetch(connection, SELECT_STALE, (file_id,)))
    return refusal or any(chunk.refused is not None for chunk in added)


def make_stale(connection: apsw.Connection, file_id: int, *, from_ordinal: int, limit: int) -> int:
    """Make at most `limit` chunks stale; return their number."""
    connection.execute(MAKE_SOME_STALE, (file_id, from_ordinal, limit))
    return connection.changes()


def surplus(
    connection: apsw.Connection, file_id: int, chunks: Iterable[NewChunk], *, limit: int
) -> list[tuple[int, str]]:
    """Return the id and vector state of at most `limit` stale chunks that these new chunks do not take over."""
    stale = _stale_by_hash(connection, file_id, chunks)
    wanted = [stale[chunk.text_hash].popleft()[0] for chunk in chunks if stale.get(chunk.text_hash)]
    return fetch(connection, SELECT_STALE_BUT, (file_id, as_json(wanted), limit))


def _take_over(
    connection: apsw.Connection, rows: ChunkRows, file_id: int, chunks: Iterable[NewChunk]
) -> tuple[list[NewChunk], bool]:
    """Give chunks the stale rows with their texts; return the chunks without one, and True if a chunk was refused."""
    stale = _stale_by_hash(connection, file_id, chunks)
    left: list[NewChunk] = []
    vectors: list[tuple[int, Vector]] = []
    refusal = False
    for chunk in chunks:
        if not (candidates := stale.get(chunk.text_hash)):
            left.append(chunk)
            continue
        chunk_id, state = candidates.popleft()
        if state is not VectorState.READY and chunk.vector is not None and rows.keeps_vectors:
            state = VectorState.READY
            vectors.append((chunk_id, chunk.vector))
        elif state is VectorState.PENDING and chunk.refused is not None:
            state = VectorState.REFUSED
            refusal = True
        place = (chunk.ordinal, chunk.start_line, chunk.end_line, chunk.said_at)
        connection.execute(TAKE_OVER, (*place, state, state, chunk.refused, chunk_id))
    rows.join(file_id, vectors)
    return left, refusal


def _stale_by_hash(
    connection: apsw.Connection, file_id: int, chunks: Iterable[NewChunk]
) -> dict[str, deque[tuple[int, VectorState]]]:
    found: dict[str, deque[tuple[int, VectorState]]] = {}
    # Nearly always there is no stale chunk, or only the last one.
    if fetch_one(connection, SELECT_HAS_STALE, (file_id,)) is None:
        return found
    wanted = as_json({chunk.text_hash for chunk in chunks})
    for text_hash, chunk_id, state in fetch(connection, SELECT_STALE_BY_HASH, (wanted, file_id)):
        found.setdefault(text_hash, deque()).append((chunk_id, VectorState(state)))
    return found
