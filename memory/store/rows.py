"""Conversion of rows into the store's values, for every store."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memory.store.reader import ChunkRow, Flaw, IndexedFile, SentenceSigns, StoredChunk, TranscriptPosition, VectorState
from memory.transcripts.packing import messages_of
from schemas.documents import DocumentKey, FileStat
from schemas.errors import Permanent
from schemas.lazy_module import LazyModule
from schemas.status import DeadLetter

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

#: Columns for `indexed_file`, in its order.
FILE_COLUMNS = (
    "source, path, size, mtime_ns, inode, coalesce(ctime_ns, 0), content_hash, revision, indexed_at, notes, touches"
)

#: Columns for `file_values`, in its order.
FILE_VALUES = (
    *("id", "source", "path", "size", "mtime_ns", "inode", "ctime_ns", "content_hash", "revision", "indexed_at"),
    *("notes", "touches"),
)

#: Columns for `stored_chunk`.
STORED_CHUNK_COLUMNS = "id, text_hash, ordinal, start_line, end_line, vector_state, refusal"

#: Columns for `dead_letter`.
DEAD_LETTER_COLUMNS = "source, path, reason, error_class, attempts, first_at, last_at"

#: Ids listed in a finding.
MAX_LISTED_IDS = 5

#: Time of the last change of a file. It may be any number; one of the future or before 1970 is no time of a change.
CHANGED_AT = "CASE WHEN mtime_ns > 0 AND mtime_ns <= 1e9 * (indexed_at + 86400) THEN mtime_ns / 1e9 ELSE indexed_at END"


def name_of(key: DocumentKey) -> tuple[str, str]:
    """Return the two columns that name a document.

    Raises:
        Permanent: the file's name is not valid UTF-8, so no database can store it as text.
    """
    try:
        key.path.encode()
    except UnicodeEncodeError as error:
        raise Permanent(f"the name of {escaped(key)} is not valid UTF-8; rename the file to have it indexed") from error
    return key.source, key.path


def escaped(key: DocumentKey) -> str:
    """Return the path of a document that may be no valid UTF-8, as text."""
    return key.path.encode(errors="backslashreplace").decode()


def indexed_file(row: Sequence[Any]) -> IndexedFile:
    """Convert a row of `FILE_COLUMNS`."""
    source, path, size, mtime_ns, inode, ctime_ns, content_hash, revision, indexed_at, notes, touches = row
    return IndexedFile(
        key=DocumentKey(source, path),
        stat=FileStat(size=size, mtime_ns=mtime_ns, inode=int(inode) % 2**64, ctime_ns=ctime_ns),
        content_hash=content_hash,
        revision=revision,
        indexed_at=indexed_at,
        notes=tuple(json.loads(notes)) if notes != "[]" else (),
        touches=touches,
    )


def stored_chunk(row: Sequence[Any]) -> StoredChunk:
    """Convert a row of `STORED_CHUNK_COLUMNS`."""
    chunk_id, text_hash, ordinal, start_line, end_line, vector_state, refusal = row
    return StoredChunk(chunk_id, text_hash, ordinal, start_line, end_line, VectorState(vector_state), refusal)


@dataclass(frozen=True, slots=True)
class FileRow:
    """Row of a document, with the position of a transcript."""

    id: int
    file: IndexedFile
    position: TranscriptPosition | None

    @classmethod
    def of(cls, row: Sequence[Any]) -> FileRow:
        """Convert a row of id, offset, lines, digest and state of a position, and `FILE_COLUMNS`."""
        id_, *place = row[:5]
        return cls(id_, indexed_file(row[5:]), TranscriptPosition(*place) if place[0] is not None else None)


def file_values(row: FileRow) -> tuple[int | float | str, ...]:
    """Return the bindings of `FILE_VALUES`."""
    file, stat = row.file, row.file.stat
    # Databases have signed integers only.
    inode = stat.inode - 2**64 if stat.inode >= 2**63 else stat.inode
    return (
        *(row.id, *name_of(file.key), stat.size, stat.mtime_ns, inode, stat.ctime_ns, file.content_hash),
        *(file.revision, file.indexed_at, json.dumps(file.notes, ensure_ascii=False), file.touches),
    )


def in_order(rows: Sequence[Sequence[Any]]) -> list[StoredChunk]:
    """Convert rows of `STORED_CHUNK_COLUMNS`, sorted: by ordinal, then the stale ones by former ordinals."""
    return sorted(map(stored_chunk, rows), key=lambda chunk: (chunk.ordinal < 0, abs(chunk.ordinal), chunk.id))


def chunk_row(row: Sequence[Any]) -> ChunkRow:
    """Convert a row of id, source, path, ordinal, start_line, end_line, text."""
    chunk_id, source, path, ordinal, *rest = row
    return ChunkRow(chunk_id, DocumentKey(source, path), ordinal if ordinal >= 0 else -1 - ordinal, *rest)


def dead_letter(row: Sequence[Any]) -> DeadLetter:
    """Convert a row of `DEAD_LETTER_COLUMNS`."""
    return DeadLetter.model_validate(dict(zip(DEAD_LETTER_COLUMNS.split(", "), row, strict=True)))


def stored_signs(users: bytes, signs: bytes) -> SentenceSigns:
    """Convert the columns users and signs."""
    is_users = np.frombuffer(users, dtype=np.bool_)
    return SentenceSigns(np.frombuffer(signs, dtype=np.uint8).reshape(len(is_users), -1 if users else 0), is_users)


def users_words(text: str) -> str:
    """Return the users' messages in a transcript's chunk, without labels, "" without any."""
    return "\n".join(message.text for message in messages_of(text) if message.is_users).strip()


def flaws_of(kind: str, ids: Collection[int]) -> Iterator[Flaw]:
    """Yield the finding of a check that some rows have a flaw, nothing without any."""
    if ids:
        listed = ", ".join(map(str, sorted(ids)[:MAX_LISTED_IDS]))
        flaw = Flaw(f"{len(ids)} {kind} (ids {listed}{', ...' if len(ids) > MAX_LISTED_IDS else ''})")
        flaw.rows = len(ids)
        yield flaw
