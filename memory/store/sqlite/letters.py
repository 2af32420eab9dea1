"""Dead letters in a SQLite generation, as part of whatever transaction is open."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN, RETRIED, refusal_letter, remembered, taken
from memory.store.reader import DeadLetterRow
from memory.store.sqlite.rows import (
    DEAD_LETTER_COLUMNS,
    SELECT_FILE_ID,
    as_json,
    dead_letter,
    fetch,
    fetch_one,
    meta_value,
    name_of,
    refused_of,
    stat_values,
)
from memory.store.sqlite.schema import SET_META
from schemas.documents import DocumentKey

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

# A letter of the new name says less than the one that the document brings along.
MOVE_DEAD_LETTER = "UPDATE OR REPLACE dead_letters SET source = ?, path = ? WHERE source = ? AND path = ?"

FORGET_STAT = "UPDATE files SET size = ?, mtime_ns = ?, inode = ?, ctime_ns = ? WHERE source = ? AND path = ?"


def add(
    connection: apsw.Connection, key: DocumentKey, *, reason: str, error_class: str, attempts: int, now: float
) -> None:
    """Record that a document could not be indexed."""
    # A name that is no UTF-8 can be the very reason; it is shown escaped.
    shown = DocumentKey(key.source, key.path.encode(errors="backslashreplace").decode())
    before = _take_retried(connection, shown)
    if before is not None:
        attempts += before.attempts
    first_at = before.first_at if before is not None else now
    connection.execute(UPSERT_DEAD_LETTER, (*name_of(shown), reason, error_class, attempts, first_at, now))


def find(connection: apsw.Connection, key: DocumentKey) -> DeadLetterRow | None:
    """A document's letter."""
    row = fetch_one(connection, SELECT_DEAD_LETTER, name_of(key))
    return dead_letter(row) if row is not None else None


def remove(connection: apsw.Connection, key: DocumentKey) -> bool:
    """Remove a document's letter; whether there was one."""
    connection.execute(DELETE_DEAD_LETTER, name_of(key))
    return connection.changes() > 0


def _take_retried(connection: apsw.Connection, key: DocumentKey) -> DeadLetterRow | None:
    """The letter that a document had before it was retried, which is forgotten with that."""
    found = taken(meta_value(connection, RETRIED), key)
    if found is None:
        return None
    connection.execute(SET_META, (RETRIED, found[0]))
    return found[1]


def move(connection: apsw.Connection, old: DocumentKey, new: DocumentKey) -> None:
    """Give a document's letter its new name."""
    connection.execute(MOVE_DEAD_LETTER, (*name_of(new), *name_of(old)))


def settle(connection: apsw.Connection, key: DocumentKey, *, fresh: bool, now: float) -> None:
    """Bring the letter of a document that could be read in line with its refused chunks.

    A document without a letter and without a fresh refusal is left alone: a letter that was dropped stays away.
    """
    before = find(connection, key) or _take_retried(connection, key)
    if before is None and not fresh:
        return
    row = fetch_one(connection, SELECT_FILE_ID, name_of(key))
    refused = refused_of(connection, row[0]) if row is not None else []
    letter = refusal_letter(key, refused, before, fresh=fresh, now=now)
    if letter is None:
        remove(connection, key)
    else:
        values = (letter.reason, letter.error_class, letter.attempts, letter.first_at, letter.last_at)
        connection.execute(REPLACE_DEAD_LETTER, (*name_of(key), *values))


def record_refusals(connection: apsw.Connection, chunk_ids: Iterable[int], *, now: float) -> None:
    """Say in the letters of the documents that these chunks were refused just now."""
    for row in fetch(connection, SELECT_DOCUMENTS_OF_CHUNKS, (as_json(chunk_ids),)):
        key = DocumentKey(*row)
        before = find(connection, key)
        # What could not be read says more than that some vectors of an older version are missing.
        if before is None or before.error_class == EMBEDDING_REFUSED:
            settle(connection, key, fresh=True, now=now)


def retry(connection: apsw.Connection, key: DocumentKey) -> tuple[int, bool]:
    """See `Store.retry_dead_letter`. Returns the number of chunks, and whether anything changed at all."""
    letter = find(connection, key)
    row = fetch_one(connection, SELECT_FILE_ID, name_of(key))
    released = 0
    if row is not None:
        connection.execute(RELEASE_REFUSED_OF_FILE, row)
        released = connection.changes()
    if letter is not None:
        remove(connection, key)
        connection.execute(SET_META, (RETRIED, remembered(meta_value(connection, RETRIED), letter)))
        if letter.error_class != EMBEDDING_REFUSED:
            connection.execute(FORGET_STAT, (*stat_values(FORGOTTEN), *name_of(key)))
    return released, letter is not None or released > 0
