"""Transactions of a SQLite generation: their changes to all tables, dead letters included."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import apsw

from memory.chunking.segmenting import index_text
from memory.store.dead_letters import FORGOTTEN
from memory.store.document_transaction import MOST_ADDED, DocumentTransaction
from memory.store.reader import SentenceSigns, StoredChunk, TranscriptPosition, Vector, VectorState
from memory.store.rows import DEAD_LETTER_COLUMNS, dead_letter, name_of, users_words
from memory.store.sqlite import vectors
from memory.store.sqlite.maintenance import FORGET_META, UNERASED_SINCE
from memory.store.sqlite.rows import (
    SELECT_FILE_ID,
    USERS_WORDS_DUE,
    as_json,
    current_revision,
    fetch,
    fetch_one,
    meta_value,
    position_of,
    refused_of,
    stat_values,
)
from memory.store.sqlite.schema import SET_META
from memory.store.writer import DocumentTouch, DocumentWrite, MovedChunk, VectorOutcome
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.status import DeadLetter

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
UPDATE files SET size = ?, mtime_ns = ?, inode = ?, ctime_ns = ?, touches = touches + 1
WHERE source = ? AND path = ? AND content_hash = ?
"""

SELECT_CHUNKS_OF_FILE = "SELECT id, vector_state, text_hash FROM chunks WHERE file_id = ?"
# The plus has SQLite look up the ids instead of reading all chunks of the file.
SELECT_THESE_CHUNKS_OF_FILE = """
SELECT id, vector_state, text_hash FROM chunks WHERE +file_id = ? AND id IN (SELECT value FROM json_each(?))
"""

MOVE_CHUNK = """
UPDATE chunks SET ordinal = ?, start_line = ?, end_line = ?, said_at = ? WHERE id = ? AND file_id = ?
"""

# -1 - ordinal has as many bytes as the ordinal (except for the first two), so SQLite overwrites rows in place.
MAKE_STALE = "UPDATE chunks SET ordinal = -1 - ordinal WHERE file_id = ? AND ordinal >= ?"

# The highest id ever used, also by a chunk that is gone.
SELECT_LAST_CHUNK_ID = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunks'), 0)"

INSERT_CHUNK = """
INSERT INTO chunks (id, file_id, ordinal, start_line, end_line, vector_state, text_hash, refusal, text, said_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
DELETE_CHUNK = "DELETE FROM chunks WHERE id = ?"

INSERT_FTS = "INSERT INTO chunks_fts (rowid, text) VALUES (?, ?)"
DELETE_FTS = "DELETE FROM chunks_fts WHERE rowid = ?"

INSERT_USERS_WORDS = "INSERT INTO chunks_said (rowid, text) VALUES (?, ?)"
DELETE_USERS_WORDS = "DELETE FROM chunks_said WHERE rowid = ?"
SELECT_CHUNKS_DUE = f"""
SELECT c.id, iif(f.source = '{SESSIONS_SOURCE}', c.text, '') FROM chunks AS c JOIN files AS f ON f.id = c.file_id
WHERE c.id <= ? ORDER BY c.id DESC LIMIT ?
"""  # noqa: S608 - a constant

INSERT_SENTENCES = "INSERT OR IGNORE INTO sentences SELECT ?1, ?2, ?3 WHERE ?1 IN (SELECT text_hash FROM chunks)"
DELETE_SENTENCES = "DELETE FROM sentences WHERE text_hash = ?1 AND ?1 NOT IN (SELECT text_hash FROM chunks)"

REPLACE_POSITION = 'INSERT OR REPLACE INTO transcripts (file_id, "offset", lines, digest, state) VALUES (?, ?, ?, ?, ?)'
DELETE_POSITION = "DELETE FROM transcripts WHERE file_id = ?"
SET_VECTOR_STATE = "UPDATE chunks SET vector_state = ?, refusal = ? WHERE id = ?"

SELECT_PENDING_HASHES = """
SELECT id, text_hash FROM chunks
WHERE vector_state = 'pending' AND id IN (SELECT value FROM json_each(?))
"""

KEEP_META = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
INCREMENT_META = "UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = ? RETURNING value"


SELECT_DEAD_LETTER = f"SELECT {DEAD_LETTER_COLUMNS} FROM dead_letters WHERE source = ? AND path = ?"  # noqa: S608 - a constant
DELETE_DEAD_LETTER = f"DELETE FROM dead_letters WHERE source = ? AND path = ? RETURNING {DEAD_LETTER_COLUMNS}"  # noqa: S608 - a constant
REPLACE_DEAD_LETTER = f"INSERT OR REPLACE INTO dead_letters ({DEAD_LETTER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - a constant

SELECT_DOCUMENTS_OF_CHUNKS = """
SELECT DISTINCT f.source, f.path
FROM chunks AS c JOIN files AS f ON f.id = c.file_id
WHERE c.id IN (SELECT value FROM json_each(?))
"""

RELEASE_REFUSED_OF_FILE = """
UPDATE chunks SET vector_state = 'pending', refusal = NULL WHERE file_id = ? AND vector_state = 'refused'
"""

FORGET_STAT = "UPDATE files SET size = ?, mtime_ns = ?, inode = ?, ctime_ns = ? WHERE source = ? AND path = ?"


class WriteTransaction(DocumentTransaction):
    """Changes of one transaction. Chunks are written table by table: three tables in turn for each cost far more."""

    def __init__(self, connection: apsw.Connection, *, keeps_vectors: bool) -> None:
        [(last_chunk_id,)] = fetch(connection, SELECT_LAST_CHUNK_ID)
        number = int(meta_value(connection, "transactions") or 0) + 1
        super().__init__(number, last_chunk_id, keeps_vectors=keeps_vectors)
        self._connection = connection
        self._removed: list[tuple[int, str, str]] = []  # id, vector state, text hash

    def _revision(self, key: DocumentKey) -> int:
        return current_revision(self._connection, key)

    def _position(self, key: DocumentKey) -> TranscriptPosition | None:
        return position_of(self._connection, key)

    def _put_file(self, change: DocumentWrite) -> int:
        remarks = json.dumps(change.notes, ensure_ascii=False)
        values = (*stat_values(change.stat), change.content_hash, self.number, self._now, remarks)
        [(file_id,)] = fetch(self._connection, UPSERT_FILE, (*name_of(change.key), *values))
        if (position := change.position) is not None:
            row = (file_id, position.offset, position.lines, position.digest, position.state)
            self._connection.execute(REPLACE_POSITION, row)
        return int(file_id)

    def _make_stale(self, file_id: int, first: int) -> None:
        self._connection.execute(MAKE_STALE, (file_id, first))

    def _remove(self, file_id: int, ids: Sequence[int]) -> None:
        self._removed += fetch(self._connection, SELECT_THESE_CHUNKS_OF_FILE, (file_id, as_json(ids)))

    def _move(self, file_id: int, moved: Sequence[MovedChunk]) -> None:
        places = [(to.ordinal, to.start_line, to.end_line, to.said_at, to.id, file_id) for to in moved]
        self._connection.executemany(MOVE_CHUNK, places)

    def _drop(self, key: DocumentKey) -> None:
        row = fetch_one(self._connection, SELECT_FILE_ID, name_of(key))
        if row is not None:
            self._write_chunks_of(row[0])
            self._removed += fetch(self._connection, SELECT_CHUNKS_OF_FILE, row)
            self._connection.execute(DELETE_FILE, row)
            self._connection.execute(DELETE_POSITION, row)
            fetch(self._connection, INCREMENT_META, ("deletions",))

    def _rename_file(self, old: DocumentKey, new: DocumentKey) -> bool:
        file_ids = [fetch_one(self._connection, SELECT_FILE_ID, name_of(key)) for key in (old, new)]
        if file_ids[0] is None or file_ids[1] is not None:
            return False
        self._connection.execute(RENAME_FILE, (*name_of(new), self.number, *file_ids[0]))
        # Another worker may have read the revision of one of the two names while it was unknown.
        fetch(self._connection, INCREMENT_META, ("deletions",))
        return True

    def _pending_hashes(self, ids: Sequence[int]) -> Sequence[tuple[int, str]]:
        return [(row[0], row[1]) for row in fetch(self._connection, SELECT_PENDING_HASHES, (as_json(ids),))]

    def _set_outcomes(self, outcomes: Sequence[tuple[int, VectorOutcome]]) -> None:
        states = [(chunk_id, *self._state_of(outcome)) for chunk_id, outcome in outcomes]
        rows = [(state, refusal, chunk_id) for chunk_id, state, refusal, _ in states]
        self._connection.executemany(SET_VECTOR_STATE, rows)
        self._insert_vectors([(chunk_id, vector) for chunk_id, *_, vector in states if vector is not None])

    def _documents_of(self, ids: Sequence[int]) -> list[DocumentKey]:
        return [DocumentKey(*row) for row in fetch(self._connection, SELECT_DOCUMENTS_OF_CHUNKS, (as_json(ids),))]

    def add_users_words(self) -> bool:
        due = meta_value(self._connection, USERS_WORDS_DUE)
        rows = fetch(self._connection, SELECT_CHUNKS_DUE, (int(due), MOST_ADDED)) if due is not None else []
        words = ((chunk_id, index_text(users_words(text))) for chunk_id, text in reversed(rows))
        self._insert_users_words(words)
        if rows:
            self._connection.execute(SET_META, (USERS_WORDS_DUE, str(rows[-1][0] - 1)))
        elif due is not None:
            self._connection.execute(FORGET_META, (USERS_WORDS_DUE,))
            self.changed = True
        return bool(rows)

    def add_sentences(self, sentences: Mapping[str, SentenceSigns]) -> None:
        rows = ((text_hash, of.is_users.tobytes(), of.signs.tobytes()) for text_hash, of in sentences.items())
        self._connection.executemany(INSERT_SENTENCES, rows)
        self.changed = self.changed or bool(sentences)

    def _touch(self, change: DocumentTouch) -> bool:
        self._connection.execute(TOUCH_FILE, (*stat_values(change.stat), *name_of(change.key), change.content_hash))
        return self._connection.changes() > 0

    def _forget_stat(self, key: DocumentKey) -> None:
        self._connection.execute(FORGET_STAT, (*stat_values(FORGOTTEN), *name_of(key)))

    def _release_refused(self, key: DocumentKey) -> int:
        if (row := fetch_one(self._connection, SELECT_FILE_ID, name_of(key))) is None:
            return 0
        self._connection.execute(RELEASE_REFUSED_OF_FILE, row)
        return self._connection.changes()

    def _refused_chunks(self, key: DocumentKey) -> list[StoredChunk]:
        row = fetch_one(self._connection, SELECT_FILE_ID, name_of(key))
        return refused_of(self._connection, row[0]) if row is not None else []

    def _letter(self, key: DocumentKey) -> DeadLetter | None:
        row = fetch_one(self._connection, SELECT_DEAD_LETTER, name_of(key))
        return dead_letter(row) if row is not None else None

    def _put_letter(self, letter: DeadLetter) -> None:
        values = (letter.reason, letter.error_class, letter.attempts, letter.first_at, letter.last_at)
        self._connection.execute(REPLACE_DEAD_LETTER, (*name_of(letter.key), *values))

    def _delete_letter(self, key: DocumentKey) -> DeadLetter | None:
        row = fetch_one(self._connection, DELETE_DEAD_LETTER, name_of(key))
        return dead_letter(row) if row is not None else None

    def set_meta(self, values: Mapping[str, str]) -> None:
        self._connection.executemany(SET_META, list(values.items()))
        self.changed = self.changed or bool(values)

    def finish(self) -> None:
        self.flush()
        if self.changed:
            self.set_meta({"transactions": str(self.number), "last_commit_at": repr(self._now)})

    def _write_chunks(self) -> None:
        """Write the collected chunks, removed ones first: a chunk that was added later stays."""
        # Ascending: FTS5 flushes whenever a rowid is below the one before it. Deleting 20,000 stale chunks in another
        # order took 7.5 s instead of 0.1 s.
        removed = sorted(self._removed)
        ids = [(chunk_id,) for chunk_id, *_ in removed]
        if ids:
            self._connection.execute(KEEP_META, (UNERASED_SINCE, repr(self._now)))
        self._connection.executemany(DELETE_CHUNK, ids)
        self._connection.executemany(DELETE_FTS, ids)
        self._connection.executemany(DELETE_USERS_WORDS, ids)
        if ready := [chunk_id for chunk_id, state, _ in removed if state == VectorState.READY]:
            vectors.delete_vectors(self._connection, ready)
        states = [(added, self._state_of(added[-1])) for added in self._added]
        self._connection.executemany(
            INSERT_CHUNK,
            (
                (
                    *(chunk_id, file_id, chunk.ordinal, chunk.start_line, chunk.end_line),
                    *(state, chunk.text_hash, refusal, chunk.text, chunk.said_at),
                )
                for (chunk_id, file_id, chunk, _), (state, refusal, _) in states
            ),
        )
        words = [(chunk_id, *self._words_of(file_id, chunk)) for chunk_id, file_id, chunk, _ in self._added]
        self._connection.executemany(INSERT_FTS, ((chunk_id, text) for chunk_id, text, _ in words))
        self._insert_users_words((chunk_id, spoken) for chunk_id, _, spoken in words)
        # After the insertions: a text may be among both.
        self._connection.executemany(DELETE_SENTENCES, {(text_hash,) for *_, text_hash in removed})
        self._insert_vectors([(added[0], vector) for added, (*_, vector) in states if vector is not None])
        self._removed, self._added = [], []

    def _insert_users_words(self, words: Iterable[tuple[int, str]]) -> None:
        """Insert the users' words of chunks, ascending by id; chunks without any have no row."""
        self._connection.executemany(INSERT_USERS_WORDS, (row for row in words if row[1]))

    def _insert_vectors(self, rows: Sequence[tuple[int, Vector]]) -> None:
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
