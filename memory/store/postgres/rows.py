"""Statements of a generation in PostgreSQL, and conversion of the store's values into their bindings."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from memory.store.postgres.connection import BinaryArray, Connection
from memory.store.reader import MOST_NAMED, Vector
from memory.store.row_reader import PAGE, statements
from memory.store.rows import FILE_COLUMNS

#: PostgreSQL's number of the type `text`.
_TEXT_TYPE = 25

#: Condition of every statement, besides row-level security: the rows of one generation.
OF = "tenant = :tenant AND agent = :agent AND generation = :generation"

#: Condition on the documents in `:keys` (`memory.store.row_reader.names_of`).
#: The arrays have PostgreSQL look them up in the index.
_NAMES = "(SELECT {} FROM json_array_elements(:keys::json))"
IS_NAMED = (
    f"source = ANY (ARRAY{_NAMES.format('value ->> 0')}) AND path = ANY (ARRAY{_NAMES.format('value ->> 1')}) "
    f"AND (source, path) IN {_NAMES.format('value ->> 0, value ->> 1')}"
)

_POSITION = f"position_offset, position_lines, position_digest, position_state, {FILE_COLUMNS} FROM recalld.files"

_FOLDERS = """lower('/' || regexp_replace(path, '[^/]*$', '') COLLATE "C")"""
_NAMED = f"""
SELECT source, path FROM recalld.files
WHERE {OF} AND right({_FOLDERS}, length(:folder)) = lower(:folder COLLATE "C") AND name
"""
_NEWEST = f"ORDER BY id DESC LIMIT {MOST_NAMED}"
_LOWER = 'lower(:name COLLATE "C")'

STATEMENTS = {
    **statements(
        prefix="recalld.",
        of=OF,
        both=(
            "FROM recalld.chunks AS c JOIN recalld.files AS f USING (tenant, agent, generation) "
            f"WHERE {OF} AND f.id = c.file_id"
        ),
        ids="= ANY (:ids::bigint[])",
        keys=IS_NAMED,
        position=_POSITION,
        lacks_sentences="sentence_users IS NULL",
    ),
    # The offset has PostgreSQL look each document up by the index, however few it expects.
    "files_named": f"""
        SELECT file.* FROM json_array_elements(:keys::json) AS name CROSS JOIN LATERAL (
            SELECT id, {_POSITION} WHERE {OF} AND source = name.value ->> 0 AND path = name.value ->> 1 OFFSET 0
        ) AS file""",
    "named": f"""
        ({_NAMED} = {_LOWER} {_NEWEST})
        UNION ALL ({_NAMED} BETWEEN {_LOWER} || '.' AND {_LOWER} || '/' {_NEWEST})""",
    "texts_holding": f"""
        SELECT source, path, inode, text FROM recalld.files AS f LEFT JOIN LATERAL (
            SELECT text FROM recalld.chunks WHERE {OF} AND file_id = f.id
                AND EXISTS (SELECT FROM unnest(:words::text[]) AS word WHERE strpos(text, word) > 0)
        ) AS c ON true WHERE {OF} AND {IS_NAMED}""",
    "sentences_after": f"""
        SELECT id, text_hash, sentence_users, sentence_signs FROM recalld.chunks
        WHERE {OF} AND sentence_users IS NOT NULL AND id > :last ORDER BY id LIMIT {PAGE}""",
    # `to_jsonb` has the columns by their names: fingerprint, identity, takeover, dimensions, transactions.
    "meta": f"SELECT (jsonb_each_text(meta || to_jsonb(g))).* FROM recalld.generations AS g WHERE {OF}",
}
STATEMENTS["counts"] += f""",
    (SELECT last_commit_at FROM recalld.generations WHERE {OF}),
    (SELECT coalesce(dimensions, 0) FROM recalld.generations WHERE {OF})
"""


def halfvecs(vectors: Sequence[Vector | None], element_type: int) -> BinaryArray:
    """Return an array of vectors. `element_type` is the database's number of the type `halfvec`."""
    return _array((vector if vector is None else _halfvec(vector) for vector in vectors), element_type)


def texts(column: Iterable[str | None]) -> BinaryArray:
    """Return an array of texts: the server reads it several times as fast as JSON."""
    return _array((text if text is None else _storable_text(text).encode() for text in column), _TEXT_TYPE)


def binary_vector(vector: Vector) -> BinaryArray:
    """Return a vector as the server's type `vector`: it reads texts slowly."""
    return BinaryArray(struct.pack("!HH", vector.size, 0) + vector.astype(">f4").tobytes())


def _halfvec(vector: Vector) -> bytes:
    return struct.pack("!HH", vector.size, 0) + vector.astype(">f2").tobytes()


def _array(elements: Iterable[bytes | None], element_type: int) -> BinaryArray:
    parts = [struct.pack("!i", -1) if each is None else struct.pack("!i", len(each)) + each for each in elements]
    return BinaryArray(struct.pack("!5I", 1, 1, element_type, len(parts), 1) + b"".join(parts))


def run(connection: Connection, statement: str, bindings: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Return all rows of a statement with bindings such as `:name`."""
    cursor = connection.execute(_query(statement), {name: _storable(bound) for name, bound in bindings.items()})
    return cursor.fetchall() if cursor.description is not None else []


@lru_cache(maxsize=256)
def _query(statement: str) -> bytes:
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement).encode()


def as_json(columns: str, rows: Iterable[Sequence[object]]) -> str:
    """Return rows for `json_populate_recordset`: an array for each column would need its type."""
    names = columns.split(", ")
    return json.dumps([dict(zip(names, map(_storable, row), strict=True)) for row in rows])


def _storable(bound: object) -> object:
    """Return a binding without NUL, which PostgreSQL's text cannot hold."""
    if isinstance(bound, str):
        return _storable_text(bound)
    return list(map(_storable, bound)) if isinstance(bound, list | tuple) else bound


def _storable_text(text: str) -> str:
    return text.replace("\0", "\ufffd")
