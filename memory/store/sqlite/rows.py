"""How our values become bindings and rows become our values again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import apsw

from memory.store.lazy_module import LazyModule
from memory.store.reader import (
    ChunkRow,
    DeadLetterRow,
    IndexedFile,
    RefusedChunk,
    StoredChunk,
    TranscriptMark,
    Vector,
    VectorState,
)
from memory.store.sqlite.schema import SELECT_META, TRANSCRIPTS_SCHEMA_NUMBER
from schemas.documents import DocumentKey, FileStat
from schemas.errors import Permanent

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

#: The columns that `indexed_file` takes, in its order.
FILE_COLUMNS = "source, path, size, mtime_ns, inode, ctime_ns, content_hash, revision, indexed_at, notes, touches"

#: The same, in a database that knows no change times yet.
FILE_COLUMNS_WITHOUT_CTIME = "source, path, size, mtime_ns, inode, NULL, content_hash, revision, indexed_at, notes, 0"

#: The columns that `stored_chunk` takes.
STORED_CHUNK_COLUMNS = "id, text_hash, ordinal, start_line, end_line, vector_state"

#: The columns that `dead_letter` takes.
DEAD_LETTER_COLUMNS = "source, path, reason, error_class, attempts, first_at, last_at"

SELECT_FILE_ID = "SELECT id FROM files WHERE source = ? AND path = ?"

# Stale ones last, in the order that they had.
SELECT_REFUSED_OF_FILE = """
SELECT id, start_line, end_line, refusal FROM chunks WHERE file_id = ? AND vector_state = 'refused'
ORDER BY ordinal < 0, abs(ordinal), id
"""

SELECT_MARK = """
SELECT t."offset", t.lines, t.digest, t.state
FROM files AS f JOIN transcripts AS t ON t.file_id = f.id
WHERE f.source = ? AND f.path = ?
"""

SELECT_REVISION = "SELECT revision FROM files WHERE source = ? AND path = ?"

# SQLite's integers are signed, inode numbers are not.
_INODE_BITS = 64


def name_of(key: DocumentKey) -> tuple[str, str]:
    """The two columns that name a document.

    Raises:
        Permanent: the file's name is not valid UTF-8, so no database can keep it as text.
    """
    try:
        key.path.encode()
    except UnicodeEncodeError as error:
        shown = key.path.encode(errors="backslashreplace").decode()
        raise Permanent(f"the name of {shown} is not valid UTF-8; rename the file to have it indexed") from error
    return key.source, key.path


def stat_values(stat: FileStat) -> tuple[int, int, int, int]:
    """Size, mtime, inode and ctime as bindings."""
    inode = stat.inode - (1 << _INODE_BITS) if stat.inode >> (_INODE_BITS - 1) else stat.inode
    return stat.size, stat.mtime_ns, inode, stat.ctime_ns


def indexed_file(row: Sequence[Any]) -> IndexedFile:
    """A row of `FILE_COLUMNS`."""
    source, path, size, mtime_ns, inode, ctime_ns, content_hash, revision, indexed_at, notes, touches = row
    if ctime_ns is None:
        # What was changed after it was indexed is read, the rest of an old index is not.
        ctime_ns = -round(indexed_at * 1e9) if size >= 0 else 0
    return IndexedFile(
        key=DocumentKey(source, path),
        stat=FileStat(size=size, mtime_ns=mtime_ns, inode=inode % (1 << _INODE_BITS), ctime_ns=ctime_ns),
        content_hash=content_hash,
        revision=revision,
        indexed_at=indexed_at,
        notes=tuple(json.loads(notes)) if notes != "[]" else (),
        touches=touches,
    )


def stored_chunk(row: Sequence[Any]) -> StoredChunk:
    """A row of `STORED_CHUNK_COLUMNS`."""
    chunk_id, text_hash, ordinal, start_line, end_line, vector_state = row
    return StoredChunk(
        id=chunk_id,
        text_hash=text_hash,
        ordinal=ordinal,
        start_line=start_line,
        end_line=end_line,
        vector_state=VectorState(vector_state),
    )


def place(ordinal: int) -> int:
    """Where a chunk is in its document, or was when it became stale."""
    return ordinal if ordinal >= 0 else -1 - ordinal


def chunk_row(row: Sequence[Any]) -> ChunkRow:
    """A row of id, source, path, ordinal, start_line, end_line, text."""
    chunk_id, source, path, ordinal, start_line, end_line, text = row
    return ChunkRow(
        id=chunk_id,
        key=DocumentKey(source, path),
        ordinal=place(ordinal),
        start_line=start_line,
        end_line=end_line,
        text=text,
    )


def dead_letter(row: Sequence[Any]) -> DeadLetterRow:
    """A row of `DEAD_LETTER_COLUMNS`."""
    source, path, *rest = row
    return DeadLetterRow(DocumentKey(source, path), *rest)


def refused_of(connection: apsw.Connection, file_id: int) -> list[RefusedChunk]:
    """The chunks of one file that a provider refused."""
    return [RefusedChunk(*row) for row in fetch(connection, SELECT_REFUSED_OF_FILE, (file_id,))]


def mark_of(connection: apsw.Connection, key: DocumentKey) -> TranscriptMark | None:
    """How far a transcript has been read. None also in a database that knows no transcripts yet."""
    if int(connection.pragma("user_version")) < TRANSCRIPTS_SCHEMA_NUMBER:
        return None
    row = fetch_one(connection, SELECT_MARK, name_of(key))
    return TranscriptMark(*row) if row is not None else None


def fetch(connection: apsw.Connection, statement: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a statement. What a column holds is known from the statement, not from its type."""
    return connection.execute(statement, bindings).fetchall()


def fetch_one(connection: apsw.Connection, statement: str, bindings: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
    """The first row of a statement."""
    row: tuple[Any, ...] | None = connection.execute(statement, bindings).fetchone()
    return row


def meta_value(connection: apsw.Connection, name: str) -> str | None:
    """One entry of `meta`."""
    row = fetch_one(connection, SELECT_META, (name,))
    return None if row is None else str(row[0])


def current_revision(connection: apsw.Connection, key: DocumentKey) -> int:
    """The document's revision: see `StoreReader.revision`."""
    row = fetch_one(connection, SELECT_REVISION, name_of(key))
    return int(row[0]) if row else -int(meta_value(connection, "deletions") or 0)


def as_json(values: Iterable[int | str]) -> str:
    """A list as one binding, for `json_each`: the statement stays the same whatever the number of values."""
    return json.dumps(list(values))


def as_blob(vector: Vector) -> bytes:
    """A vector as sqlite-vec takes it: little-endian float32."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()
