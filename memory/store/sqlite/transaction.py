"""Transactions of a SQLite generation: their changes to all tables, dead letters included.

A large change of one document (a transcript that was read again, a rewritten note, a deletion) takes several
transactions of a bounded size: one of 200,000 chunks would block other writers for seconds. Every state in between is a
sound index: new chunks are added before old ones are deleted, and no chunk of the new version is deleted. Until the end
the document counts as changed, so that a crash is repaired.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import apsw

from memory.chunking.chunker import Chunk
from memory.chunking.segmenting import index_text, index_title
from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN, refusal_letter
from memory.store.reader import NOWHERE, SentenceSigns, TranscriptPosition, Vector, VectorState
from memory.store.sqlite import vectors
from memory.store.sqlite.keywords import users_words
from memory.store.sqlite.maintenance import FORGET_META, UNERASED_SINCE
from memory.store.sqlite.rows import (
    DEAD_LETTER_COLUMNS,
    SELECT_FILE_ID,
    USERS_WORDS_DUE,
    as_json,
    current_revision,
    dead_letter,
    fetch,
    fetch_one,
    meta_value,
    name_of,
    position_of,
    refused_of,
    stat_values,
)
from memory.store.sqlite.schema import SET_META
from memory.store.writer import (
    DocumentChange,
    DocumentDelete,
    DocumentFailure,
    DocumentTouch,
    DocumentWrite,
    Refusal,
    Unread,
    VectorOutcome,
    WriteOutcome,
)
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.status import DeadLetter

T = TypeVar("T")

#: Largest numbers of chunks changed (added, moved, made stale, deleted) and added in one transaction, about 60 ms.
MOST_CHANGED = 1_000
MOST_ADDED = 500

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
DELETE_DEAD_LETTER = "DELETE FROM dead_letters WHERE source = ? AND path = ? RETURNING last_at"

# A retried letter is no letter, but if the document fails again, it continues the attempts and the first time.
HIDE_DEAD_LETTER = "UPDATE dead_letters SET last_at = 0 WHERE source = ? AND path = ?"
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
    """Changes of one transaction.

    Chunks are collected and written table by table at its end: writing three tables in turn for each chunk costs far
    more. Without `keeps_vectors`, all chunks stay pending.
    """

    def __init__(self, connection: apsw.Connection, *, keeps_vectors: bool) -> None:
        self.changed = False
        self._connection = connection
        self._keeps_vectors = keeps_vectors
        self._now = time.time()
        #: Revision of the documents that this transaction writes.
        self.number = int(meta_value(connection, "transactions") or 0) + 1
        self._settled: dict[DocumentKey, bool] = {}  # document, whether it brought a refusal
        [(last_chunk_id,)] = fetch(connection, SELECT_LAST_CHUNK_ID)
        self._last_chunk_id: int = last_chunk_id
        self._added: list[tuple[int, int, Chunk, VectorOutcome | None]] = []  # id, file id, chunk
        self._titles: dict[int, str] = {}  # by file id
        self._transcripts: set[int] = set()  # file ids
        self._removed: list[tuple[int, str, str]] = []  # id, vector state, text hash

    def apply(self, change: DocumentChange) -> WriteOutcome:
        """Carry out a change, unless another process has committed its document meanwhile."""
        match change:
            case DocumentTouch():
                self._touch(change)
            case DocumentFailure():
                self._fail(change)
            case DocumentWrite() | DocumentDelete() if self._is_late(change):
                return WriteOutcome.CONFLICT
            case DocumentWrite():
                self._put(change)
            case DocumentDelete():
                self._drop(change)
        self.changed = True
        return WriteOutcome.COMMITTED

    def _is_late(self, change: DocumentWrite | DocumentDelete) -> bool:
        if isinstance(change.expected, TranscriptPosition):
            position = position_of(self._connection, change.key)
            return position is None or not position.is_of(change.expected)
        return current_revision(self._connection, change.key) != change.expected

    def _put(self, change: DocumentWrite) -> None:
        remarks = json.dumps(change.notes, ensure_ascii=False)
        values = (*stat_values(change.stat), change.content_hash, self.number, self._now, remarks)
        [(file_id,)] = fetch(self._connection, UPSERT_FILE, (*name_of(change.key), *values))
        if (position := change.position) is not None:
            row = (file_id, position.offset, position.lines, position.digest, position.state)
            self._connection.execute(REPLACE_POSITION, row)
        if change.stale_from is not None:
            self._write_chunks_of(file_id)
            self._connection.execute(MAKE_STALE, (file_id, change.stale_from))
        if change.removed:
            bindings = (file_id, as_json(change.removed))
            self._removed += fetch(self._connection, SELECT_THESE_CHUNKS_OF_FILE, bindings)
        self._connection.executemany(
            MOVE_CHUNK,
            [(to.ordinal, to.start_line, to.end_line, to.said_at, to.id, file_id) for to in change.moved],
        )
        self._titles[file_id] = index_title(change.key.source, change.key.path)
        if change.key.is_transcript:
            self._transcripts.add(file_id)
        for number, chunk in enumerate(change.added, start=self._last_chunk_id + 1):
            self._added.append((number, file_id, chunk, change.vectors.get(chunk.text_hash)))
        self._last_chunk_id += len(change.added)
        refusal = any(isinstance(change.vectors.get(chunk.text_hash), Refusal) for chunk in change.added)
        if change.complete or refusal:  # an incomplete document without one may have the letter of its unreadable rest
            self._settled[change.key] = refusal or self._settled.get(change.key, False)

    def _drop(self, change: DocumentDelete) -> None:
        row = fetch_one(self._connection, SELECT_FILE_ID, name_of(change.key))
        if row is not None:
            self._write_chunks_of(row[0])
            self._removed += fetch(self._connection, SELECT_CHUNKS_OF_FILE, row)
            self._connection.execute(DELETE_FILE, row)
            self._connection.execute(DELETE_POSITION, row)
            fetch(self._connection, INCREMENT_META, ("deletions",))
        self._settled.setdefault(change.key, False)

    def rename(self, old: DocumentKey, new: DocumentKey) -> bool:
        file_ids = [fetch_one(self._connection, SELECT_FILE_ID, name_of(key)) for key in (old, new)]
        if file_ids[0] is None or file_ids[1] is not None:
            return False
        self._connection.execute(RENAME_FILE, (*name_of(new), self.number, *file_ids[0]))
        self._connection.execute(MOVE_DEAD_LETTER, (*name_of(new), *name_of(old)))
        # Another worker may have read the revision of one of the two names while it was unknown.
        fetch(self._connection, INCREMENT_META, ("deletions",))
        self.changed = True
        return True

    def join_vectors(self, vectors: Mapping[int, tuple[str, VectorOutcome]]) -> int:
        pending = fetch(self._connection, SELECT_PENDING_HASHES, (as_json(vectors),))
        states: list[tuple[str, str | None, int]] = []
        rows: list[tuple[int, Vector]] = []
        for chunk_id, text_hash in pending:
            expected, vector = vectors[chunk_id]
            if expected != text_hash:
                continue
            if isinstance(vector, Refusal):
                states.append((VectorState.REFUSED, vector.reason, chunk_id))
            elif isinstance(vector, Unread):
                states.append((VectorState.UNREAD, vector.script, chunk_id))
            elif self._keeps_vectors:
                states.append((VectorState.READY, None, chunk_id))
                rows.append((chunk_id, vector))
        self._connection.executemany(SET_VECTOR_STATE, states)
        self._insert_vectors(rows)
        refused = [chunk_id for state, _, chunk_id in states if state == VectorState.REFUSED]
        for row in fetch(self._connection, SELECT_DOCUMENTS_OF_CHUNKS, (as_json(refused),)) if refused else ():
            before = self._letter(key := DocumentKey(*row))
            # An unreadable document matters more than missing vectors of its older version.
            if before is None or not before.last_at or before.error_class == EMBEDDING_REFUSED:
                self._settle_letter(key, fresh=True)
        self.changed = self.changed or bool(states)
        return len(states)

    def add_users_words(self) -> bool:
        due = meta_value(self._connection, USERS_WORDS_DUE)
        rows = fetch(self._connection, SELECT_CHUNKS_DUE, (int(due), MOST_ADDED)) if due is not None else []
        self._insert_users_words((chunk_id, text) for chunk_id, text in reversed(rows))
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

    def _touch(self, change: DocumentTouch) -> None:
        self._connection.execute(TOUCH_FILE, (*stat_values(change.stat), *name_of(change.key), change.content_hash))
        if self._connection.changes():
            self._settled.setdefault(change.key, False)

    def _fail(self, change: DocumentFailure) -> None:
        # The name may be no valid UTF-8, which may be the reason itself; it is stored escaped.
        escaped = change.key.path.encode(errors="backslashreplace").decode()
        values = (change.key.source, escaped, change.reason, change.error_class, change.attempts, self._now, self._now)
        self._connection.execute(UPSERT_DEAD_LETTER, values)

    def retry(self, key: DocumentKey) -> int:
        letter = self._letter(key)
        released = 0
        if (row := fetch_one(self._connection, SELECT_FILE_ID, name_of(key))) is not None:
            self._connection.execute(RELEASE_REFUSED_OF_FILE, row)
            released = self._connection.changes()
        if letter is not None and letter.last_at:
            self._connection.execute(HIDE_DEAD_LETTER, name_of(key))
            self.changed = True
            if letter.error_class != EMBEDDING_REFUSED:
                self._connection.execute(FORGET_STAT, (*stat_values(FORGOTTEN), *name_of(key)))
        self.changed = self.changed or released > 0
        return released

    def drop_letter(self, key: DocumentKey) -> bool:
        dropped = fetch_one(self._connection, DELETE_DEAD_LETTER, name_of(key))
        self.changed = self.changed or dropped is not None
        return dropped is not None and bool(dropped[0])

    def _letter(self, key: DocumentKey) -> DeadLetter | None:
        row = fetch_one(self._connection, SELECT_DEAD_LETTER, name_of(key))
        return dead_letter(row) if row is not None else None

    def _settle_letter(self, key: DocumentKey, *, fresh: bool) -> None:
        """Update the letter of a readable document to match its refused chunks.

        A document without a letter and without a fresh refusal stays as it is, so that a dropped letter does not
        return.
        """
        before = self._letter(key)
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
        if self._added or self._removed:
            self._write_chunks()
        for key, refusal in self._settled.items():
            self._settle_letter(key, fresh=refusal)

    def finish(self) -> None:
        """Write the collected changes, and count the transaction."""
        self.flush()
        if self.changed:
            self.set_meta({"transactions": str(self.number), "last_commit_at": repr(self._now)})

    def _write_chunks_of(self, file_id: int) -> None:
        """Write the collected chunks if an earlier change in this transaction was of this document."""
        if file_id in self._titles:
            self._write_chunks()

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
        self._connection.executemany(INSERT_CHUNK, [self._chunk_values(*added) for added in self._added])
        self._connection.executemany(
            INSERT_FTS,
            (
                (chunk_id, index_text(f"{title}\n{chunk.text}" if (title := self._titles[file_id]) else chunk.text))
                for chunk_id, file_id, chunk, _ in self._added
            ),
        )
        texts = ((chunk_id, chunk.text) for chunk_id, file_id, chunk, _ in self._added if file_id in self._transcripts)
        self._insert_users_words(texts)
        # After the insertions: a text may be among both.
        self._connection.executemany(DELETE_SENTENCES, {(text_hash,) for *_, text_hash in removed})
        self._insert_vectors(
            [
                (chunk_id, vector)
                for chunk_id, _, _, vector in self._added
                if self._keeps_vectors and vector is not None and not isinstance(vector, Refusal | Unread)
            ]
        )
        self._removed, self._added = [], []

    def _insert_users_words(self, texts: Iterable[tuple[int, str]]) -> None:
        """Insert the users' words of chunks of transcripts: id and text, ascending."""
        rows = ((chunk_id, index_text(words)) for chunk_id, text in texts if (words := users_words(text)))
        self._connection.executemany(INSERT_USERS_WORDS, rows)

    def _chunk_values(
        self, chunk_id: int, file_id: int, chunk: Chunk, vector: VectorOutcome | None
    ) -> tuple[int | float | str | None, ...]:
        state, refusal = VectorState.PENDING, None
        if isinstance(vector, Refusal):
            state, refusal = VectorState.REFUSED, vector.reason
        elif isinstance(vector, Unread):
            state, refusal = VectorState.UNREAD, vector.script
        elif vector is not None and self._keeps_vectors:
            state = VectorState.READY
        place = (chunk.ordinal, chunk.start_line, chunk.end_line)
        return (chunk_id, file_id, *place, state, chunk.text_hash, refusal, chunk.text, chunk.said_at)

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


# Large changes ---------------------------------------------------------------------------------------

# By `chunks_by_file`, up to a limit.
COUNT_FROM = """
SELECT count(*) FROM (
    SELECT 1 FROM chunks WHERE file_id = (SELECT id FROM files WHERE source = ? AND path = ?) AND ordinal >= ? LIMIT ?
)
"""
SELECT_HIGHEST_ORDINAL = """
SELECT coalesce(max(ordinal), -1) FROM chunks WHERE file_id = (SELECT id FROM files WHERE source = ? AND path = ?)
"""
SELECT_CHUNK_IDS = "SELECT id FROM chunks WHERE file_id = (SELECT id FROM files WHERE source = ? AND path = ?)"


def size_of(connection: apsw.Connection, change: DocumentChange) -> tuple[int, int]:
    """Return the number of chunks that a change changes, counted up to the limit, and of chunks that it adds."""
    if isinstance(change, DocumentTouch | DocumentFailure):
        return 0, 0
    first, changed, added = -sys.maxsize, 0, 0
    if isinstance(change, DocumentWrite):
        changed, added = len(change.added) + len(change.moved) + len(change.removed), len(change.added)
        if change.stale_from is None:
            return changed, added
        first = change.stale_from
    [(affected,)] = fetch(connection, COUNT_FROM, (*name_of(change.key), first, MOST_CHANGED + 1))
    return changed + int(affected), added


def is_large(changed: int, added: int) -> bool:
    """Return True if changes of this size are too large for one transaction."""
    return changed > MOST_CHANGED or added > MOST_ADDED


def parts_of(
    connection: apsw.Connection, change: DocumentWrite | DocumentDelete
) -> tuple[list[DocumentWrite], DocumentWrite | DocumentDelete]:
    """Split a large change into parts for a transaction each. Return them, and the rest for the last transaction.

    The writer sets the parts' expected revision or position. After a crash, reading goes on at the parts' position.
    """
    if isinstance(change, DocumentDelete):
        position = NOWHERE if position_of(connection, change.key) is not None else None
        part = DocumentWrite(change.key, change.expected, FORGOTTEN, PARTLY, position=position, complete=False)
        ids = tuple(row[0] for row in fetch(connection, SELECT_CHUNK_IDS, name_of(change.key)))
        return [replace(part, removed=group) for group in _groups(ids, MOST_CHANGED)], change
    position = change.position
    if position is not None:
        expected = change.expected
        position = expected if change.stale_from != 0 and isinstance(expected, TranscriptPosition) else NOWHERE
    part = DocumentWrite(
        change.key, change.expected, FORGOTTEN, PARTLY, notes=change.notes, position=position, complete=False
    )
    parts: list[DocumentWrite] = []
    if change.stale_from is not None:
        [(highest,)] = fetch(connection, SELECT_HIGHEST_ORDINAL, name_of(change.key))
        # The last chunks first, so that the rest is the beginning.
        firsts = range(highest + 1 - MOST_CHANGED, change.stale_from, -MOST_CHANGED)
        parts += [replace(part, stale_from=first) for first in (*firsts, change.stale_from)]
    parts += [replace(part, added=group, vectors=change.vectors) for group in _groups(change.added, MOST_ADDED)]
    parts += [replace(part, moved=group) for group in _groups(change.moved, MOST_CHANGED)]
    parts += [replace(part, removed=group) for group in _groups(change.removed, MOST_CHANGED)]
    *parts, last = parts
    return parts, replace(
        last, stat=change.stat, content_hash=change.content_hash, position=change.position, complete=change.complete
    )


def _groups(values: tuple[T, ...], most: int) -> list[tuple[T, ...]]:
    return [values[start : start + most] for start in range(0, len(values), most)]
