"""Large changes of one document, in transactions of a bounded size.

A large change is a transcript that was read again, a rewritten note or a deletion. In one transaction, 200,000 chunks
would block other writers for seconds. Most of the change is therefore written first, and the change itself does the
rest.

Every state in between is a sound index: new chunks are added before old ones are deleted, and no chunk of the new
version is deleted. Until the end the document counts as changed, so that a crash is repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

import apsw

from memory.store.dead_letters import FORGOTTEN
from memory.store.sqlite.rows import SELECT_FILE_ID, current_revision, fetch, fetch_one, mark_of, name_of
from memory.store.sqlite.transaction import NOWHERE, PARTLY, WriteTransaction, make_stale, surplus
from memory.store.writer import DocumentChange, DocumentDelete, DocumentWrite, TranscriptWrite, WriteOutcome

#: Largest numbers of chunks changed (added, moved, made stale, deleted) and added in one transaction, about 60 ms.
MOST_CHANGED = 1_000
MOST_ADDED = 500

# By `chunks_by_file`, up to a limit.
COUNT_STALE = "SELECT count(*) FROM (SELECT 1 FROM chunks WHERE file_id = ? AND ordinal < 0 LIMIT ?)"
COUNT_FROM = "SELECT count(*) FROM (SELECT 1 FROM chunks WHERE file_id = ? AND ordinal >= ? LIMIT ?)"

SELECT_SOME_CHUNKS = "SELECT id FROM chunks WHERE file_id = ? LIMIT ?"

Begin: TypeAlias = Callable[[], AbstractContextManager[WriteTransaction]]


@dataclass(frozen=True, slots=True)
class Size:
    """Number of chunks that changes change, and of chunks that they add, counted up to the limits."""

    changed: int = 0
    added: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.changed + other.changed, self.added + other.added)

    @property
    def too_large(self) -> bool:
        """Return True if the change is too large for one transaction."""
        return self.changed > MOST_CHANGED or self.added > MOST_ADDED


def size_of(connection: apsw.Connection, change: DocumentChange, *, after_others: bool) -> Size:
    """Return the size of a change to the stored chunks.

    `after_others` is True if earlier changes of the same document are not in the tables yet.
    """
    if isinstance(change, DocumentWrite):
        return Size(len(change.added) + len(change.moved) + len(change.removed), len(change.added))
    row = fetch_one(connection, SELECT_FILE_ID, name_of(change.key))
    added = len(change.added) if isinstance(change, TranscriptWrite) else 0
    if row is None:
        return Size(added, added)
    stale = after_others or isinstance(change, DocumentDelete) or change.final
    lowest = 0 if after_others or isinstance(change, DocumentDelete) else change.keep
    there = 0
    if stale:
        there += _count(connection, COUNT_STALE, *row)
    if lowest is not None:
        there += _count(connection, COUNT_FROM, *row, lowest)
    return Size(added + there, added)


def thinned(begin: Begin, change: DocumentChange) -> DocumentChange:
    """Write most of a change; return the change that does the rest.

    A change that conflicts is returned unchanged, or in a form that conflicts.
    """
    match change:
        case DocumentWrite():
            return _most_of_a_note(begin, change)
        case TranscriptWrite():
            change = _before_slice(begin, change)
            return _before_last_slice(begin, change) if change.final else change
        case DocumentDelete():
            return _before_deletion(begin, change)


def _most_of_a_note(begin: Begin, change: DocumentWrite) -> DocumentWrite:
    """Write all slices but the last one: first new chunks, then moved ones, then deletions."""
    *slices, last = _slices(change)
    for part in slices:
        with begin() as transaction:
            if transaction.apply(replace(part, expected_revision=change.expected_revision)) is WriteOutcome.CONFLICT:
                return change
            change = replace(change, expected_revision=current_revision(transaction.connection, change.key))
    return replace(last, expected_revision=change.expected_revision, stat=change.stat, content_hash=change.content_hash)


def _slices(change: DocumentWrite) -> Iterator[DocumentWrite]:
    nothing = replace(change, stat=FORGOTTEN, content_hash=PARTLY, added=(), moved=(), removed=())
    for start in range(0, len(change.added), MOST_ADDED):
        yield replace(nothing, added=change.added[start : start + MOST_ADDED])
    for start in range(0, len(change.moved), MOST_CHANGED):
        yield replace(nothing, moved=change.moved[start : start + MOST_CHANGED])
    for start in range(0, len(change.removed), MOST_CHANGED):
        yield replace(nothing, removed=change.removed[start : start + MOST_CHANGED])


def _before_slice(begin: Begin, change: TranscriptWrite) -> TranscriptWrite:
    """Make chunks stale as the slice would."""
    if change.keep is None or change.continues is None:
        return change
    # After a crash, the next job starts with the file, or with the first of these chunks.
    standing = NOWHERE if change.keep == 0 else change.continues
    continues = change.continues
    made_stale = MOST_CHANGED
    while made_stale == MOST_CHANGED:
        with begin() as transaction:
            # Marks the document as changed, and detects a concurrent commit.
            reset = TranscriptWrite(change.key, continues, standing, FORGOTTEN, keep=None, added=(), final=False)
            if transaction.apply(reset) is WriteOutcome.CONFLICT:
                return change
            row = fetch_one(transaction.connection, SELECT_FILE_ID, name_of(change.key))
            if row is None:
                return change
            made_stale = make_stale(transaction.connection, row[0], from_ordinal=change.keep, limit=MOST_CHANGED)
        continues = standing
    return replace(change, continues=standing)


def _before_last_slice(begin: Begin, change: TranscriptWrite) -> TranscriptWrite:
    """Delete the stale chunks that the slice does not take over."""
    if change.continues is not None:
        _delete_stale(begin, change)
    return change


def _before_deletion(begin: Begin, change: DocumentDelete) -> DocumentDelete:
    """Delete all chunks of a document, in any order."""
    revision, deleted = change.expected_revision, MOST_CHANGED
    while deleted == MOST_CHANGED:
        with begin() as transaction:
            connection = transaction.connection
            row = fetch_one(connection, SELECT_FILE_ID, name_of(change.key))
            if row is None or current_revision(connection, change.key) != revision:
                return change
            ids = tuple(id_ for (id_,) in fetch(connection, SELECT_SOME_CHUNKS, (*row, MOST_CHANGED)))
            deleted = len(ids)
            if ids:
                transaction.thin(change.key, ids)
                revision = current_revision(connection, change.key)
    return replace(change, expected_revision=revision)


def _delete_stale(begin: Begin, change: TranscriptWrite) -> None:
    """Delete the stale chunks that the slice does not take over, up to the last one or a concurrent commit."""
    deleted = MOST_CHANGED
    while deleted == MOST_CHANGED:
        with begin() as transaction:
            connection = transaction.connection
            row = fetch_one(connection, SELECT_FILE_ID, name_of(change.key))
            mark = mark_of(connection, change.key)
            if row is None or mark is None or change.continues is None or not mark.is_of(change.continues):
                return
            [file_id] = row
            rows = surplus(connection, file_id, change.added, limit=MOST_CHANGED)
            transaction.remove(file_id, rows)
            deleted = len(rows)


def _count(connection: apsw.Connection, statement: str, *bindings: int) -> int:
    [(number,)] = fetch(connection, statement, (*bindings, MOST_CHANGED + 1))
    return int(number)
