"""Conversion between the store's values and SQLite's rows and bindings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import apsw

from memory.chunking.dates import note_date
from memory.store.reader import (
    ChunkFilter,
    Hit,
    StoredChunk,
    TranscriptPosition,
    Vector,
)
from memory.store.rows import CHANGED_AT, STORED_CHUNK_COLUMNS, in_order, name_of
from memory.store.sqlite.schema import FIRST_SCHEMA_NUMBER, SELECT_META
from schemas.documents import SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

SELECT_FILE_ID = "SELECT id FROM files WHERE source = ? AND path = ?"

SELECT_REFUSED_OF_FILE = f"""
SELECT {STORED_CHUNK_COLUMNS} FROM chunks WHERE file_id = ? AND vector_state = 'refused'
"""  # noqa: S608 - a constant

SELECT_POSITION = """
SELECT t."offset", t.lines, t.digest, t.state
FROM files AS f JOIN transcripts AS t ON t.file_id = f.id
WHERE f.source = ? AND f.path = ?
"""

USERS_WORDS_DUE = "users_words_due"  # entry of `meta`
SELECT_REVISION = "SELECT revision FROM files WHERE source = ? AND path = ?"

# SQLite's integers are signed, inode numbers are not.
_INODE_BITS = 64


def stat_values(stat: FileStat) -> tuple[int, int, int, int]:
    """Return size, mtime, inode and ctime as bindings."""
    inode = stat.inode - (1 << _INODE_BITS) if stat.inode >> (_INODE_BITS - 1) else stat.inode
    return stat.size, stat.mtime_ns, inode, stat.ctime_ns


def refused_of(connection: apsw.Connection, file_id: int) -> list[StoredChunk]:
    """Return the refused chunks of one file."""
    return in_order(fetch(connection, SELECT_REFUSED_OF_FILE, (file_id,)))


def position_of(connection: apsw.Connection, key: DocumentKey) -> TranscriptPosition | None:
    """Return a transcript's position, None without one."""
    row = fetch_one(connection, SELECT_POSITION, name_of(key))
    return TranscriptPosition(*row) if row is not None else None


def fetch(connection: apsw.Connection, statement: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a statement. The statement, not the type, tells the types of the columns."""
    return connection.execute(statement, bindings).fetchall()


def fetch_one(connection: apsw.Connection, statement: str, bindings: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    """Return the first row of a statement, None without one."""
    row: tuple[Any, ...] | None = connection.execute(statement, bindings).fetchone()
    return row


def meta_value(connection: apsw.Connection, name: str) -> str | None:
    """Return one entry of `meta`, None without it."""
    row = fetch_one(connection, SELECT_META, (name,))
    return None if row is None else str(row[0])


def schema_number(connection: apsw.Connection) -> int:
    """Return the number of the index's last migration."""
    return int(connection.pragma("user_version"))


def has_sentences(connection: apsw.Connection) -> bool:
    """Return True if the index has the tables of users' words and sentences: no writer may have migrated it yet."""
    return schema_number(connection) > FIRST_SCHEMA_NUMBER


def current_revision(connection: apsw.Connection, key: DocumentKey) -> int:
    """Return the document's revision (see `StoreReader.revision`)."""
    row = fetch_one(connection, SELECT_REVISION, name_of(key))
    return int(row[0]) if row else -int(meta_value(connection, "deletions") or 0)


def as_json(values: Iterable[int | str]) -> str:
    """Return a list as one binding for `json_each`, so that the statement does not depend on the number of values."""
    return json.dumps(list(values))


def as_blob(vector: Vector) -> bytes:
    """Return a vector in sqlite-vec's form: little-endian float32."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


#: Candidates per result that a search with a filter takes first, before it reads all rows.
OVER_FETCH = 4

#: Condition on a file f and its chunk c, with ?1 to ?4 of `bindings_of`. An archive counts where its session does.
IS_WITHIN = f"""
(f.source IN (SELECT value FROM json_each(?1)) OR f.source = '{SESSIONS_SOURCE}'
AND substr(f.path, 1, instr(f.path, '.jsonl') + 5) IN (SELECT value FROM json_each(?1)))
AND CASE WHEN ?2 IS NULL THEN 1 WHEN c.said_at IS NOT NULL THEN c.said_at >= ?3 AND c.said_at < ?4
ELSE f.id IN (SELECT value FROM json_each(?2)) END
"""  # noqa: S608 - a constant

SELECT_FILE_TIMES = f"SELECT id, path, {CHANGED_AT} FROM files"  # noqa: S608 - a constant

SELECT_IDS_WITHIN = f"""
SELECT c.id FROM chunks AS c JOIN files AS f ON f.id = c.file_id
WHERE c.id IN (SELECT value FROM json_each(?5)) AND {IS_WITHIN}
"""  # noqa: S608 - constants

# Repeated until NULL: one look-up for each source instead of a scan of all files.
SELECT_NEXT_SOURCE = "SELECT min(source) FROM files WHERE source > ?"


def bindings_of(connection: apsw.Connection, within: ChunkFilter) -> tuple[str, str | None, float, float]:
    """Return the bindings of `IS_WITHIN`: sources, ids of the files of the span, None without one, start and end."""
    if (span := within.span) is None:
        return as_json(within.sources), None, 0.0, 0.0
    # The day in its name, or that of the last change.
    rows = fetch(connection, SELECT_FILE_TIMES)
    days = {id_: str(note_date(path) or date.fromtimestamp(changed)) for id_, path, changed in rows}
    files = [id_ for id_, day in days.items() if span.first_day <= day <= span.last_day]
    return as_json(within.sources), as_json(files), span.start, span.end


def passing(connection: apsw.Connection, hits: Sequence[Hit], within: ChunkFilter) -> list[Hit]:
    """Return the hits that pass a filter."""
    bindings = (*bindings_of(connection, within), as_json([hit.id for hit in hits]))
    matching_ids = {row[0] for row in fetch(connection, SELECT_IDS_WITHIN, bindings)}
    return [hit for hit in hits if hit.id in matching_ids]


def covers_all(connection: apsw.Connection, within: ChunkFilter) -> bool:
    """Return True if a filter passes all chunks: it has no span, and the index has documents of its sources only."""
    source = ""
    while within.span is None:
        [(source,)] = fetch(connection, SELECT_NEXT_SOURCE, (source,))
        if source is None:
            return True
        if source not in within.sources:
            break
    return False
