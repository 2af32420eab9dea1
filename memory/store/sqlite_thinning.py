"""Deleting a great many chunks of one transcript before the change that ends them, in transactions of a bounded size.

The last slice of a transcript that was read anew deletes what is still stale, and a deletion everything. Of 200,000
chunks that is 12 s in which nobody else can write. So most of it goes first. Every state in between is a sound index
that a crash may leave: nothing goes that the new version holds, and until the end the index says that the file is to be
looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeAlias

import apsw

from memory.store import sqlite_transcripts
from memory.store.letters import FORGOTTEN
from memory.store.reader import TranscriptMark
from memory.store.sqlite_rows import SELECT_FILE_ID, current_revision, fetch_one, mark_of, name_of
from memory.store.sqlite_transaction import WriteTransaction
from memory.store.writer import DocumentChange, DocumentDelete, TranscriptWrite, WriteOutcome
from schemas.documents import DocumentKey

#: Chunks that are deleted in one transaction: 60 ms or so.
MOST_DELETED = 1_000

#: Nothing of the file is known: it is read from its start.
_NOWHERE = TranscriptMark(0, 0, "", "")

# By `chunks_by_file`, and no further than it takes to know.
SELECT_WHETHER_MANY = """
SELECT 1 FROM chunks WHERE file_id = ? AND (ordinal < 0 OR ordinal >= ?) LIMIT 1 OFFSET ?
"""

Begin: TypeAlias = Callable[[], AbstractContextManager[WriteTransaction]]


def ends_many(connection: apsw.Connection, change: DocumentChange, *, after_others: bool) -> bool:
    """Whether a change may delete more chunks than one transaction should.

    `after_others` says that earlier changes of the same call are about the same document.
    """
    match change:
        case TranscriptWrite(final=True):
            lowest = 0 if after_others else change.keep
        case DocumentDelete():
            lowest = 0
        case _:
            return False
    row = fetch_one(connection, SELECT_FILE_ID, name_of(change.key))
    if row is None:
        return False
    bindings = (*row, 2**62 if lowest is None else lowest, MOST_DELETED)
    return fetch_one(connection, SELECT_WHETHER_MANY, bindings) is not None


def thinned(begin: Begin, change: DocumentChange) -> DocumentChange:
    """Delete what the change would, but for a rest; returns the change that does the rest.

    A change that would conflict is returned as it is.
    """
    match change:
        case TranscriptWrite():
            return _before_last_slice(begin, change)
        case DocumentDelete():
            return _before_deletion(begin, change)
        case _:
            return change


def _before_last_slice(begin: Begin, change: TranscriptWrite) -> TranscriptWrite:
    if change.keep == 0 and change.continues is not None:
        with begin() as transaction:
            if _unread(transaction, change.key, change.continues):
                change = replace(change, continues=_NOWHERE, keep=None)
    if change.keep is None and change.continues is not None:
        _delete_stale(begin, change)
    return change


def _before_deletion(begin: Begin, change: DocumentDelete) -> DocumentDelete:
    with begin() as transaction:
        mark = mark_of(transaction.connection, change.key)
        current = current_revision(transaction.connection, change.key) == change.expected_revision
        if mark is None or not current or not _unread(transaction, change.key, mark):
            return change
        revision = current_revision(transaction.connection, change.key)
    nothing = TranscriptWrite(change.key, _NOWHERE, _NOWHERE, FORGOTTEN, keep=None, added=(), final=True)
    _delete_stale(begin, nothing)
    return replace(change, expected_revision=revision)


def _unread(transaction: WriteTransaction, key: DocumentKey, mark: TranscriptMark) -> bool:
    """Make all chunks of a transcript stale and forget how far it was read; False when its mark is another one."""
    reset = TranscriptWrite(key, mark, _NOWHERE, FORGOTTEN, keep=0, added=(), final=False)
    return transaction.apply(reset) is WriteOutcome.COMMITTED


def _delete_stale(begin: Begin, change: TranscriptWrite) -> None:
    """Delete the stale chunks that the slice does not take over, until few are left or somebody else was faster."""
    deleted = MOST_DELETED
    while deleted == MOST_DELETED:
        with begin() as transaction:
            connection = transaction.connection
            row = fetch_one(connection, SELECT_FILE_ID, name_of(change.key))
            mark = mark_of(connection, change.key)
            if row is None or mark is None or change.continues is None or not mark.is_of(change.continues):
                return
            [file_id] = row
            surplus = sqlite_transcripts.surplus(connection, file_id, change.added, limit=MOST_DELETED)
            transaction.remove(file_id, surplus)
            deleted = len(surplus)
