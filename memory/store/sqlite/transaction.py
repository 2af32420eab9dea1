"""Transactions of a SQLite generation: their changes to all tables, dead letters included."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import apsw

from memory.chunking.segmenting import index_text
from memory.store.document_transaction import MOST_ADDED, DocumentTransaction
from memory.store.reader import SentenceSigns, Vector, VectorState
from memory.store.rows import (
    DEAD_LETTER_COLUMNS,
    FILE_VALUES,
    FileRow,
    file_values,
    name_of,
    users_words,
)
from memory.store.sqlite import vectors
from memory.store.sqlite.maintenance import FORGET_META, UNERASED_SINCE
from memory.store.sqlite.rows import USERS_WORDS_DUE, as_json, fetch, meta_value, run
from memory.store.sqlite.schema import SET_META
from memory.store.writer import MovedChunk, VectorOutcome
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.status import DeadLetter

UPSERT_FILE = f"""
INSERT INTO files ({", ".join(FILE_VALUES)}) VALUES ({", ".join("?" * len(FILE_VALUES))})
ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in FILE_VALUES)}
"""  # noqa: S608 - constants
SELECT_LAST_FILE_ID = "SELECT coalesce(max(id), 0) FROM files"
DELETE_FILE = "DELETE FROM files WHERE id = ?"

SELECT_CHUNKS_OF_FILE = "SELECT id, vector_state, text_hash FROM chunks WHERE file_id = ?"
# The plus has SQLite look up the ids instead of reading all chunks of the file.
SELECT_THESE_CHUNKS_OF_FILE = """
SELECT id, vector_state, text_hash FROM chunks WHERE +file_id = ? AND id IN (SELECT value FROM json_each(?))
"""

MOVE_CHUNK = """
UPDATE chunks SET ordinal = ?, start_line = ?, end_line = ?, said_at = ? WHERE id = ? AND file_id = ?
"""

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
RELEASE_CHUNKS = """
UPDATE chunks SET vector_state = 'pending'
WHERE vector_state = 'held' AND id IN (SELECT value FROM json_each(?)) RETURNING id
"""

KEEP_META = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"

DELETE_LETTER = "DELETE FROM dead_letters WHERE source = ? AND path = ?"
INSERT_LETTER = f"INSERT INTO dead_letters ({DEAD_LETTER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - a constant


class WriteTransaction(DocumentTransaction):
    """Changes of one transaction. Chunks are written table by table: three tables in turn for each cost far more."""

    def __init__(self, connection: apsw.Connection, *, keeps_vectors: bool) -> None:
        number, deletions = (int(meta_value(connection, name) or 0) for name in ("transactions", "deletions"))
        ids = (fetch(connection, statement)[0][0] for statement in (SELECT_LAST_CHUNK_ID, SELECT_LAST_FILE_ID))
        super().__init__(number + 1, deletions, *ids, keeps_vectors=keeps_vectors)
        self._connection = connection
        self._removed: list[tuple[int, str, str]] = []  # id, vector state, text hash

    def _fetch(self, statement: str, **bindings: object) -> list[tuple[Any, ...]]:
        return run(self._connection, statement, **bindings)

    def _write_files(self, rows: Sequence[FileRow]) -> None:
        self._connection.executemany(UPSERT_FILE, map(file_values, rows))
        positions = ((row.id, *astuple(row.position)) for row in rows if row.position is not None)
        self._connection.executemany(REPLACE_POSITION, positions)

    def _write_letters(self, keys: Collection[DocumentKey], letters: Sequence[DeadLetter]) -> None:
        self._connection.executemany(DELETE_LETTER, map(name_of, keys))
        self._connection.executemany(INSERT_LETTER, (tuple(dict(letter).values()) for letter in letters))

    def _count(self) -> None:
        counters = {"transactions": str(self.number), "deletions": str(self._deletions)}
        self.set_meta({**counters, "last_commit_at": repr(self._now)})

    def _drop_file(self, file_id: int) -> None:
        self._removed += fetch(self._connection, SELECT_CHUNKS_OF_FILE, (file_id,))
        self._connection.execute(DELETE_FILE, (file_id,))
        self._connection.execute(DELETE_POSITION, (file_id,))

    def _remove(self, file_id: int, ids: Sequence[int]) -> None:
        self._removed += fetch(self._connection, SELECT_THESE_CHUNKS_OF_FILE, (file_id, as_json(ids)))

    def _move(self, file_id: int, moved: Sequence[MovedChunk]) -> None:
        places = [(to.ordinal, to.start_line, to.end_line, to.said_at, to.id, file_id) for to in moved]
        self._connection.executemany(MOVE_CHUNK, places)

    def _set_outcomes(self, outcomes: Sequence[tuple[int, VectorOutcome | None]]) -> None:
        states = [(chunk_id, *self._state_of(outcome)) for chunk_id, outcome in outcomes]
        rows = [(state, refusal, chunk_id) for chunk_id, state, refusal, _ in states]
        self._connection.executemany(SET_VECTOR_STATE, rows)
        self._insert_vectors([(chunk_id, vector) for chunk_id, *_, vector in states if vector is not None])

    def release_held(self, ids: Collection[int]) -> int:
        """Make those of these chunks that are held pending; return their number."""
        rows = fetch(self._connection, RELEASE_CHUNKS, (as_json(list(ids)),))
        self.changed = self.changed or bool(rows)
        return len(rows)

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

    def set_meta(self, values: Mapping[str, str]) -> None:
        self._connection.executemany(SET_META, list(values.items()))
        self.changed = self.changed or bool(values)

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
