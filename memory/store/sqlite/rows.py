"""Conversion between the store's values and SQLite's rows and bindings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import apsw

from memory.chunking.dates import note_date
from memory.store.reader import MOST_NAMED, ChunkFilter, Hit, Vector
from memory.store.row_reader import statements
from memory.store.rows import CHANGED_AT, FILE_COLUMNS
from memory.store.sqlite.schema import FILE_NAME, FIRST_SCHEMA_NUMBER, SELECT_META
from schemas.documents import SESSIONS_SOURCE
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

# Two ranges of the index on names: this name, and this name with a full stop.
_IN_FOLDER = "substr('/' || lower(rtrim(path, replace(path, '/', ''))), -length(:folder)) = lower(:folder)"
STATEMENTS = {
    **statements(
        prefix="",
        of="true",
        both="FROM chunks AS c JOIN files AS f ON f.id = c.file_id WHERE true",
        ids="IN (SELECT value FROM json_each(:ids))",
        keys="(source, path) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:keys))",
        position=f'"offset", lines, digest, state, {FILE_COLUMNS} FROM files LEFT JOIN transcripts ON file_id = id',
        lacks_sentences="text_hash NOT IN (SELECT text_hash FROM sentences)",
    ),
    "named": f"""
        SELECT * FROM (
            SELECT source, path FROM files WHERE {FILE_NAME} = lower(:name) AND {_IN_FOLDER}
            ORDER BY id DESC LIMIT {MOST_NAMED}
        ) UNION ALL SELECT * FROM (
            SELECT source, path FROM files WHERE {FILE_NAME} > lower(:name) || '.' AND {FILE_NAME} < lower(:name) || '/'
            AND {_IN_FOLDER} ORDER BY id DESC LIMIT {MOST_NAMED}
        )""",  # noqa: S608 - constants
    "texts_holding": """
        SELECT f.source, f.path, f.inode, c.text FROM json_each(:keys) AS wanted
        CROSS JOIN files AS f ON f.source = wanted.value ->> 0 AND f.path = wanted.value ->> 1
        LEFT JOIN chunks AS c ON c.file_id = f.id
            AND EXISTS (SELECT 1 FROM json_each(:words) AS words WHERE instr(c.text, words.value))""",
    "sentences_after": """
        SELECT rowid, text_hash, users, signs FROM sentences WHERE rowid > :last ORDER BY rowid LIMIT 500""",
    "times": """
        SELECT id, said_at FROM chunks WHERE said_at IS NOT NULL AND id IN (SELECT value FROM json_each(:ids))""",
    "unread": """
        SELECT id FROM chunks WHERE vector_state = 'unread' AND id IN (SELECT value FROM json_each(:ids))""",
    "chunk_rows": """
        SELECT c.id, source, path, ordinal, start_line, end_line, text FROM chunks AS c JOIN files AS f
        ON f.id = c.file_id WHERE c.id IN (SELECT value FROM json_each(:ids))""",
    "held": "SELECT id, text_hash FROM chunks WHERE vector_state = 'held' AND id > :after ORDER BY id LIMIT :limit",
    "sentences": """
        SELECT c.id, s.users, s.signs FROM chunks AS c JOIN sentences AS s ON s.text_hash = c.text_hash
        WHERE c.id IN (SELECT value FROM json_each(:ids)) AND length(s.users)""",
}
STATEMENTS["counts"] += """, (SELECT count(*) FROM chunks WHERE vector_state = 'held'),
    (SELECT value FROM meta WHERE name = 'last_commit_at'),
    (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'chunks'),
    (SELECT value FROM meta WHERE name = 'erased'), (SELECT value FROM meta WHERE name = 'unerased_since')
"""

USERS_WORDS_DUE = "users_words_due"  # entry of `meta`


def run(connection: apsw.Connection, statement: str, **bindings: object) -> list[tuple[Any, ...]]:
    """Return all rows of the statement of this name. A list is bound as JSON."""
    values = {name: as_json(bound) if isinstance(bound, list | tuple) else bound for name, bound in bindings.items()}
    return connection.execute(STATEMENTS[statement], values).fetchall()


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


def as_json(values: Iterable[object]) -> str:
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
