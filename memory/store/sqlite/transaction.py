"""Transactions of a SQLite generation: their changes to all tables, dead letters included."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import apsw

from memory.chunking.segmenting import index_text, index_title
from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN, RETRIED, refusal_letter, remembered, taken
from memory.store.reader import DeadLetterRow, TranscriptMark, Vector, VectorState
from memory.store.sqlite import vectors
from memory.store.sqlite.rows import (
    DEAD_LETTER_COLUMNS,
    SELECT_FILE_ID,
    as_json,
    current_revision,
    dead_letter,
    fetch,
    fetch_one,
    mark_of,
    meta_value,
    name_of,
    refused_of,
    stat_values,
)
from memory.store.sqlite.schema import SET_META
from memory.store.writer import (
    DocumentChange,
    DocumentDelete,
    DocumentWrite,
    NewChunk,
    Refusal,
    TranscriptWrite,
    WriteOutcome,
)
from schemas.documents import DocumentKey, FileStat

#: Content hash that no text has: a partly written document is read again.
PARTLY = ""

UPSERT_FILE = """
INSERT INTO files (source, path, size, mtime_ns, inode, ctime_ns, content_hash, revision, indexed_at, notes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (source, path) DO UPDATE SET
    size = excluded.size, mtime_ns = excluded.mtime_ns, inode = excluded.inode,
    ctime_ns = excluded.ctime_ns, touches = iif(content_hash = excluded.content_hash, touches + 1, 0),
    content_hash = excluded.content_hash, revision = excluded.revision,
    indexed_at = excluded.indexed_at, notes = excluded.notes
RETURNING id
"""

RENAME_FILE = "UPDATE files SET source = ?, path = ?, revision = ? WHERE id = ?"
DELETE_FILE = "DELETE FROM files WHERE id = ?"
TOUCH_FILE = """
UPDATE files SET size = ?, mtime_ns = ?, inode = ?, ctime_ns = ?, touches = touches + 1 WHERE source = ? AND path = ?
"""
TOUCH_FILE_OF_CONTENT = f"{TOUCH_FILE} AND content_hash = ?"

SELECT_CHUNKS_OF_FILE = "SELECT id, vector_state FROM chunks WHERE file_id = ?"
SELECT_THESE_CHUNKS_OF_FILE = """
SELECT id, vector_state FROM chunks WHERE file_id = ? AND id IN (SELECT value FROM json_each(?))
"""

MOVE_CHUNK = "UPDATE chunks SET ordinal = ?, start_line = ?, end_line = ? WHERE id = ? AND file_id = ?"
SET_VECTOR_STATE = "UPDATE chunks SET vector_state = ?, refusal = ? WHERE id = ?"

SELECT_PENDING_HASHES = """
SELECT id, text_hash FROM chunks
WHERE vector_state = 'pending' AND id IN (SELECT value FROM json_each(?))
"""

INCREMENT_META = "UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = ? RETURNING value"


SELECT_DEAD_LETTER = f"SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters WHERE source = ? AND path = ?"  # noqa: S608 - a constant
DELETE_DEAD_LETTER = "DELETE FROM dead_letters WHERE source = ? AND path = ?"
REPLACE_DEAD_LETTER = f"INSERT OR REPLACE INTO dead_letters ({DEAD_LETTER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - a constant

# A second failure adds its attempts.
UPSERT_DEAD_LETTER = """
INSERT INTO dead_letters (source, path, reason, error_class, attempts, first_at, last_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (source, path) DO UPDATE SET
    reason = excluded.reason, error_class = excluded.error_class,
    attempts = attempts + excluded.attempts, last_at = excluded.last_at
"""

SELECT_DOCUMENTS_OF_CHUNKS = """
SELECT DISTINCT f.source, f.path
FROM chunks AS c JOIN files AS f ON f.id = c.file_id
WHERE c.id IN (SELECT value FROM json_each(?))
"""

RELEASE_REFUSED_OF_FILE = """
UPDATE chunks SET vector_state = 'pending', refusal = NULL WHERE file_id = ? AND vector_state = 'refused'
"""

# The letter of the old name replaces one of the new name.
MOVE_DEAD_LETTER = "UPDATE OR REPLACE dead_letters SET source = ?, path = ? WHERE source = ? AND path = ?"

FORGET_STAT = "UPDATE files SET size = ?, mtime_ns = ?, inode = ?, ctime_ns = ? WHERE source = ? AND path = ?"


class WriteTransaction:
    """Changes of one transaction. Rows are collected and written table by table at its end."""

    def __init__(self, connection: apsw.Connection, *, keeps_vectors: bool) -> None:
        self.changed = False
        self.connection = connection
        self._connection = connection
        self._rows = ChunkRows(connection, keeps_vectors=keeps_vectors)
        self._now = time.time()
        self._number = int(meta_value(connection, "transactions") or 0) + 1
        self._settled: dict[DocumentKey, bool] = {}  # document, whether it brought a refusal

    def apply(self, change: DocumentChange) -> WriteOutcome:
        match change:
            case DocumentWrite():
                return self.put(change)
            case TranscriptWrite():
                return self.put_slice(change)
            case DocumentDelete():
                return self.drop(change)

    def put(self, change: DocumentWrite) -> WriteOutcome:
        if current_revision(self._connection, change.key) != change.expected_revision:
            return WriteOutcome.CONFLICT
        if mark_of(self._connection, change.key) is not None:
            return WriteOutcome.CONFLICT
        file_id = self._put_file(change.key, change.stat, change.content_hash, change.notes)
        if change.removed:
            bindings = (file_id, as_json(change.removed))
            self._rows.remove(file_id, fetch(self._connection, SELECT_THESE_CHUNKS_OF_FILE, bindings))
        self._connection.executemany(
            MOVE_CHUNK, [(kept.ordinal, kept.start_line, kept.end_line, kept.id, file_id) for kept in change.moved]
        )
        self._rows.add(file_id, change.key, change.added)
        return self._settle(change.key, refusal=any(chunk.refused is not None for chunk in change.added))

    def put_slice(self, change: TranscriptWrite) -> WriteOutcome:
        mark = mark_of(self._connection, change.key)
        if change.continues is None:
            # A missing mark is not enough: a known document without one is a note.
            if fetch_one(self._connection, SELECT_FILE_ID, name_of(change.key)) is not None:
                return WriteOutcome.CONFLICT
        elif mark is None or not mark.is_of(change.continues):
            return WriteOutcome.CONFLICT
        file_id = self._put_file(change.key, change.stat, change.mark.digest, change.notes)
        set_mark(self._connection, file_id, change.mark)
        refusal = write_chunks(self._connection, self._rows, file_id, change)
        if not change.final and not refusal:
            # An unreadable part of it is still a dead letter.
            self.changed = True
            return WriteOutcome.COMMITTED
        return self._settle(change.key, refusal=refusal)

    def drop(self, change: DocumentDelete) -> WriteOutcome:
        if current_revision(self._connection, change.key) != change.expected_revision:
            return WriteOutcome.CONFLICT
        row = fetch_one(self._connection, SELECT_FILE_ID, name_of(change.key))
        if row is not None:
            [file_id] = row
            self._rows.flush_file(file_id)
            self._rows.remove(file_id, fetch(self._connection, SELECT_CHUNKS_OF_FILE, row))
            self._connection.execute(DELETE_FILE, row)
            forget_mark(self._connection, file_id)
            fetch(self._connection, INCREMENT_META, ("deletions",))
        return self._settle(change.key, refusal=False)

    def rename(self, old: DocumentKey, new: DocumentKey) -> bool:
        known = [fetch_one(self._connection, SELECT_FILE_ID, name_of(key)) for key in (old, new)]
        if known[0] is None or known[1] is not None:
            return False
        self._connection.execute(RENAME_FILE, (*name_of(new), self._number, *known[0]))
        self._connection.execute(MOVE_DEAD_LETTER, (*name_of(new), *name_of(old)))
        # Another worker may have read the revision of one of the two names while it was unknown.
        fetch(self._connection, INCREMENT_META, ("deletions",))
        self.changed = True
        return True

    def remove(self, file_id: int, rows: Sequence[tuple[int, str]]) -> None:
        """Delete chunks of a document, given by id and vector state, without settling the document."""
        self._rows.remove(file_id, rows)
        self.changed = self.changed or bool(rows)

    def thin(self, key: DocumentKey, ids: Sequence[int]) -> None:
        """Delete chunks of a document that is to be deleted. Until then it counts as changed and unread."""
        file_id = self._put_file(key, FORGOTTEN, PARTLY, ())
        if mark_of(self._connection, key) is not None:
            set_mark(self._connection, file_id, NOWHERE)
        self.remove(file_id, fetch(self._connection, SELECT_THESE_CHUNKS_OF_FILE, (file_id, as_json(ids))))

    def _put_file(self, key: DocumentKey, stat: FileStat, content_hash: str, notes: Sequence[str]) -> int:
        remarks = json.dumps(notes, ensure_ascii=False)
        values = (*name_of(key), *stat_values(stat), content_hash, self._number, self._now, remarks)
        [(file_id,)] = fetch(self._connection, UPSERT_FILE, values)
        return int(file_id)

    def _settle(self, key: DocumentKey, *, refusal: bool) -> WriteOutcome:
        self._settled[key] = refusal or self._settled.get(key, False)
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
            elif self._rows.keeps_vectors:
                states.append((VectorState.READY, None, chunk_id))
                rows.append((chunk_id, given))
        self._connection.executemany(SET_VECTOR_STATE, states)
        self._rows.insert_vectors(rows)
        refused = [chunk_id for state, _, chunk_id in states if state == VectorState.REFUSED]
        for row in fetch(self._connection, SELECT_DOCUMENTS_OF_CHUNKS, (as_json(refused),)) if refused else ():
            before = self._letter(key := DocumentKey(*row))
            # An unreadable document matters more than missing vectors of its older version.
            if before is None or before.error_class == EMBEDDING_REFUSED:
                self._settle_letter(key, fresh=True)
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

    def add_dead_letter(self, key: DocumentKey, reason: str, error_class: str, attempts: int) -> None:
        # The name may be no valid UTF-8, which may be the reason itself; it is stored escaped.
        shown = DocumentKey(key.source, key.path.encode(errors="backslashreplace").decode())
        before = self._take_retried(shown)
        first_at = self._now
        if before is not None:
            attempts, first_at = attempts + before.attempts, before.first_at
        self._connection.execute(
            UPSERT_DEAD_LETTER, (*name_of(shown), reason, error_class, attempts, first_at, self._now)
        )
        self.changed = True

    def retry(self, key: DocumentKey) -> int:
        letter = self._letter(key)
        released = 0
        if (row := fetch_one(self._connection, SELECT_FILE_ID, name_of(key))) is not None:
            self._connection.execute(RELEASE_REFUSED_OF_FILE, row)
            released = self._connection.changes()
        if letter is not None:
            self.drop_letter(key)
            self.set_meta({RETRIED: remembered(meta_value(self._connection, RETRIED), letter)})
            if letter.error_class != EMBEDDING_REFUSED:
                self._connection.execute(FORGET_STAT, (*stat_values(FORGOTTEN), *name_of(key)))
        self.changed = letter is not None or released > 0
        return released

    def drop_letter(self, key: DocumentKey) -> bool:
        self._connection.execute(DELETE_DEAD_LETTER, name_of(key))
        dropped = self._connection.changes() > 0
        self.changed = self.changed or dropped
        return dropped

    def _letter(self, key: DocumentKey) -> DeadLetterRow | None:
        row = fetch_one(self._connection, SELECT_DEAD_LETTER, name_of(key))
        return dead_letter(row) if row is not None else None

    def _take_retried(self, key: DocumentKey) -> DeadLetterRow | None:
        """Return and forget the letter that a document had before its retry, None without one."""
        found = taken(meta_value(self._connection, RETRIED), key)
        if found is None:
            return None
        self.set_meta({RETRIED: found[0]})
        return found[1]

    def _settle_letter(self, key: DocumentKey, *, fresh: bool) -> None:
        """Update the letter of a readable document to match its refused chunks.

        A document without a letter and without a fresh refusal stays as it is, so that a dropped letter does not
        return.
        """
        before = self._letter(key) or self._take_retried(key)
        if before is None and not fresh:
            return
        row = fetch_one(self._connection, SELECT_FILE_ID, name_of(key))
        refused = refused_of(self._connection, row[0]) if row is not None else []
        letter = refusal_letter(key, refused, before, fresh=fresh, now=self._now)
        if letter is None:
            self.drop_letter(key)
        else:
            values = (letter.reason, letter.error_class, letter.attempts, letter.first_at, letter.last_at)
            self._connection.execute(REPLACE_DEAD_LETTER, (*name_of(key), *values))

    def set_meta(self, values: Mapping[str, str]) -> None:
        self._connection.executemany(SET_META, list(values.items()))
        self.changed = self.changed or bool(values)

    def flush(self) -> None:
        """Write the collected chunks, then the dead letters, which depend on the refused chunks in the tables."""
        self._rows.flush()
        for key, refusal in self._settled.items():
            self._settle_letter(key, fresh=refusal)

    def finish(self) -> None:
        """Count the transaction."""
        if self.changed:
            self.set_meta({"transactions": str(self._number), "last_commit_at": repr(self._now)})


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
            vectors.create_table(self._connection, int(value))
            self._connection.execute(SET_META, ("dimensions", value))
        for chunk_id, vector in rows:
            if vector.shape != (int(value),):
                raise ValueError(f"chunk {chunk_id}: shape {vector.shape} in an index of {value} dimensions")
        vectors.insert_vectors(self._connection, rows)

    def _remove_chunks(self) -> None:
        # Ascending: FTS5 flushes whenever a rowid is below the one before it. Deleting 20,000 stale chunks in another
        # order took 7.5 s instead of 0.1 s.
        self._removed.sort()
        ids = [(chunk_id,) for chunk_id, _ in self._removed]
        self._connection.executemany(DELETE_CHUNK, ids)
        self._connection.executemany(DELETE_FTS, ids)
        ready = [chunk_id for chunk_id, state in self._removed if state == VectorState.READY]
        if ready:
            vectors.delete_vectors(self._connection, ready)

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
