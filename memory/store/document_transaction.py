"""Changes of documents, in transactions of a bounded size: the rules of every store.

A large change of one document (a transcript that was read again, a rewritten note, a deletion) takes several
transactions: one of 200,000 chunks would block other writers for seconds. Every state in between is a sound index: new
chunks are added before old ones are deleted, and no chunk of the new version is deleted. Until the end the document
counts as changed, so that a crash is repaired.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from memory.chunking.chunker import Chunk
from memory.chunking.segmenting import index_text, index_title
from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN, refusal_letter
from memory.store.errors import KeywordsUnavailable
from memory.store.reader import (
    NOWHERE,
    SentenceSigns,
    StoredChunk,
    StoreReader,
    TranscriptPosition,
    Vector,
    VectorState,
)
from memory.store.rows import escaped, users_words
from memory.store.writer import (
    DocumentChange,
    DocumentDelete,
    DocumentFailure,
    DocumentTouch,
    DocumentWrite,
    MovedChunk,
    Refusal,
    Store,
    Unread,
    VectorOutcome,
    WriteOutcome,
)
from schemas.documents import DocumentKey
from schemas.status import DeadLetter

P = ParamSpec("P")
T = TypeVar("T")

#: Largest numbers of chunks changed (added, moved, made stale, deleted) and added in one transaction, about 60 ms.
MOST_CHANGED = 1_000
MOST_ADDED = 500

#: Content hash that no text has: a partly written document is read again.
PARTLY = ""


class DocumentTransaction(ABC):
    """Changes of one transaction.

    New chunks are collected and written at its end: writing them one by one costs far more. Without `keeps_vectors`,
    all chunks stay pending.
    """

    def __init__(self, number: int, last_chunk_id: int, *, keeps_vectors: bool) -> None:
        self.changed = False
        #: Revision of the documents that this transaction writes.
        self.number = number
        self._keeps_vectors = keeps_vectors
        self._now = time.time()
        self._settled: dict[DocumentKey, bool] = {}  # document, whether it brought a refusal
        self._last_chunk_id = last_chunk_id  # the highest id ever used, also by a chunk that is gone
        self._added: list[tuple[int, int, Chunk, VectorOutcome | None]] = []  # id, file id, chunk
        self._titles: dict[int, str] = {}  # by file id
        self._transcripts: set[int] = set()  # file ids

    def apply_all(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        """Carry out changes in their order."""
        return [self.apply(change) for change in changes]

    def apply(self, change: DocumentChange) -> WriteOutcome:
        """Carry out a change, unless another process has committed its document meanwhile."""
        match change:
            case DocumentTouch():
                if self._touch(change):
                    self._settled.setdefault(change.key, False)
            case DocumentFailure():
                self._fail(change)
            case DocumentWrite() | DocumentDelete() if self._is_late(change):
                return WriteOutcome.CONFLICT
            case DocumentWrite():
                self._put(change)
            case DocumentDelete():
                self._drop(change.key)
                self._settled.setdefault(change.key, False)
        self.changed = True
        return WriteOutcome.COMMITTED

    def _is_late(self, change: DocumentWrite | DocumentDelete) -> bool:
        if isinstance(change.expected, TranscriptPosition):
            position = self._position(change.key)
            return position is None or not position.is_of(change.expected)
        return self._revision(change.key) != change.expected

    def _put(self, change: DocumentWrite) -> None:
        file_id = self._put_file(change)
        if change.stale_from is not None:
            self._write_chunks_of(file_id)
            self._make_stale(file_id, change.stale_from)
        if change.removed:
            self._remove(file_id, change.removed)
        if change.moved:
            self._move(file_id, change.moved)
        self._titles[file_id] = index_title(change.key.source, change.key.path)
        if change.key.is_transcript:
            self._transcripts.add(file_id)
        for number, chunk in enumerate(change.added, start=self._last_chunk_id + 1):
            self._added.append((number, file_id, chunk, change.vectors.get(chunk.text_hash)))
        self._last_chunk_id += len(change.added)
        refusal = any(isinstance(change.vectors.get(chunk.text_hash), Refusal) for chunk in change.added)
        if change.complete or refusal:  # an incomplete document without one may have the letter of its unreadable rest
            self._settled[change.key] = refusal or self._settled.get(change.key, False)

    def _write_chunks_of(self, file_id: int) -> None:
        """Write the collected chunks if an earlier change in this transaction was of this document."""
        if file_id in self._titles:
            self._write_chunks()

    def _words_of(self, file_id: int, chunk: Chunk) -> tuple[str, str]:
        """Return the text of a chunk for its keywords, a note's with its title, and the users' words in it."""
        title = self._titles[file_id]
        spoken = users_words(chunk.text) if file_id in self._transcripts else ""
        return index_text(f"{title}\n{chunk.text}" if title else chunk.text), index_text(spoken)

    def _state_of(self, outcome: VectorOutcome | None) -> tuple[VectorState, str | None, Vector | None]:
        """Return the state of a chunk's vector, the reason of a refusal or the unread script, and the vector."""
        match outcome:
            case Refusal():
                return VectorState.REFUSED, outcome.reason, None
            case Unread():
                return VectorState.UNREAD, outcome.script, None
        if outcome is None or not self._keeps_vectors:
            return VectorState.PENDING, None, None
        return VectorState.READY, None, outcome

    def join_vectors(self, vectors: Mapping[int, tuple[str, VectorOutcome]]) -> int:
        outcomes = [
            (chunk_id, vectors[chunk_id][1])
            for chunk_id, text_hash in self._pending_hashes(list(vectors))
            if vectors[chunk_id][0] == text_hash
        ]
        outcomes = [(id_, outcome) for id_, outcome in outcomes if self._state_of(outcome)[0] != VectorState.PENDING]
        self._set_outcomes(outcomes)
        refused = [chunk_id for chunk_id, outcome in outcomes if isinstance(outcome, Refusal)]
        for key in self._documents_of(refused) if refused else ():
            before = self._letter(key)
            # An unreadable document matters more than missing vectors of its older version.
            if before is None or not before.last_at or before.error_class == EMBEDDING_REFUSED:
                self._settle_letter(key, fresh=True)
        self.changed = self.changed or bool(outcomes)
        return len(outcomes)

    def rename(self, old: DocumentKey, new: DocumentKey) -> bool:
        if not self._rename_file(old, new):
            return False
        if (letter := self._delete_letter(old)) is not None:
            self._put_letter(letter.model_copy(update={"source": new.source, "path": new.path}))
        self.changed = True
        return True

    def add_users_words(self) -> bool:
        return False

    def _fail(self, change: DocumentFailure) -> None:
        # The name may be no valid UTF-8, which may be the reason itself; it is stored escaped.
        key = DocumentKey(change.key.source, escaped(change.key))
        before = self._letter(key)
        letter = DeadLetter(
            source=key.source,
            path=key.path,
            reason=change.reason,
            error_class=change.error_class,
            attempts=change.attempts + (before.attempts if before is not None else 0),
            first_at=before.first_at if before is not None else self._now,
            last_at=self._now,
        )
        self._put_letter(letter)

    def retry(self, key: DocumentKey) -> int:
        letter = self._letter(key)
        released = self._release_refused(key)
        if letter is not None and letter.last_at:
            # It is no letter now, but if the document fails again, it continues the attempts and the first time.
            self._put_letter(letter.model_copy(update={"last_at": 0.0}))
            self.changed = True
            if letter.error_class != EMBEDDING_REFUSED:
                self._forget_stat(key)
        self.changed = self.changed or released > 0
        return released

    def drop_letter(self, key: DocumentKey) -> bool:
        dropped = self._delete_letter(key)
        self.changed = self.changed or dropped is not None
        return dropped is not None and bool(dropped.last_at)

    def _settle_letter(self, key: DocumentKey, *, fresh: bool) -> None:
        """Update the letter of a readable document to match its refused chunks.

        A document without a letter and without a fresh refusal stays as it is, so that a dropped letter does not
        return.
        """
        before = self._letter(key)
        if before is None and not fresh:
            return
        letter = refusal_letter(key, self._refused_chunks(key), before, fresh=fresh, now=self._now)
        if letter is None:
            self._delete_letter(key)
        else:
            self._put_letter(letter)

    def flush(self) -> None:
        """Write the collected chunks, then the dead letters, which depend on the refused chunks in the tables."""
        self._write_chunks()
        for key, refusal in self._settled.items():
            self._settle_letter(key, fresh=refusal)

    @abstractmethod
    def finish(self) -> None:
        """Write the collected changes, and count the transaction."""

    @abstractmethod
    def add_sentences(self, sentences: Mapping[str, SentenceSigns]) -> None: ...
    @abstractmethod
    def set_meta(self, values: Mapping[str, str]) -> None: ...

    # Statements of a store. The rules above call them.

    @abstractmethod
    def _revision(self, key: DocumentKey) -> int: ...
    @abstractmethod
    def _position(self, key: DocumentKey) -> TranscriptPosition | None: ...
    @abstractmethod
    def _put_file(self, change: DocumentWrite) -> int: ...
    @abstractmethod
    def _rename_file(self, old: DocumentKey, new: DocumentKey) -> bool: ...
    @abstractmethod
    def _touch(self, change: DocumentTouch) -> bool: ...
    @abstractmethod
    def _forget_stat(self, key: DocumentKey) -> None: ...
    @abstractmethod
    def _drop(self, key: DocumentKey) -> None: ...
    @abstractmethod
    def _make_stale(self, file_id: int, first: int) -> None: ...
    @abstractmethod
    def _move(self, file_id: int, moved: Sequence[MovedChunk]) -> None: ...
    @abstractmethod
    def _remove(self, file_id: int, ids: Sequence[int]) -> None: ...
    @abstractmethod
    def _write_chunks(self) -> None: ...
    @abstractmethod
    def _pending_hashes(self, ids: Sequence[int]) -> Sequence[tuple[int, str]]: ...
    @abstractmethod
    def _set_outcomes(self, outcomes: Sequence[tuple[int, VectorOutcome]]) -> None: ...
    @abstractmethod
    def _documents_of(self, ids: Sequence[int]) -> list[DocumentKey]: ...
    @abstractmethod
    def _refused_chunks(self, key: DocumentKey) -> list[StoredChunk]: ...
    @abstractmethod
    def _release_refused(self, key: DocumentKey) -> int: ...
    @abstractmethod
    def _letter(self, key: DocumentKey) -> DeadLetter | None: ...
    @abstractmethod
    def _put_letter(self, letter: DeadLetter) -> None: ...
    @abstractmethod
    def _delete_letter(self, key: DocumentKey) -> DeadLetter | None: ...


def _committed(step: Callable[Concatenate[DocumentTransaction, P], T]) -> Callable[Concatenate[DocumentWriter, P], T]:
    """Return the method of a store that carries out this step in a transaction of its own."""

    def method(store: DocumentWriter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store.transaction() as transaction:
            outcome: T = getattr(transaction, step.__name__)(*args, **kwargs)
            return outcome

    return method


class DocumentWriter(Store, ABC):
    """Writing half of a store whose changes are `DocumentTransaction`s."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[DocumentTransaction]:
        """Commit the changes made in this context, or none of them after an error."""

    def write(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        writes_chunks = any(isinstance(change, DocumentWrite | DocumentDelete) for change in changes)
        if self.text_reason is not None and writes_chunks:
            raise KeywordsUnavailable(f"nothing is indexed by this process: {self.text_reason}")
        outcomes: list[WriteOutcome] = []
        together: list[DocumentChange] = []
        changed = added = 0
        for change in changes:
            size = size_of(self, change)
            if is_large(changed + size[0], added + size[1]):
                outcomes += self._write_together(together)
                together, changed, added = [], 0, 0
            together.append(self._most_of(change) if is_large(*size) else change)
            changed, added = changed + size[0], added + size[1]
        return outcomes + self._write_together(together)

    def _most_of(self, change: DocumentChange) -> DocumentChange:
        """Write all parts of a large change but the last one; return the rest, which conflicts if a part did."""
        if not isinstance(change, DocumentWrite | DocumentDelete):
            return change
        parts, rest = parts_of(self, change)
        for part in parts:
            with self.transaction() as transaction:
                if transaction.apply(replace(part, expected=rest.expected)) is WriteOutcome.CONFLICT:
                    return change
            position = part.position if isinstance(rest.expected, TranscriptPosition) else None
            if isinstance(rest, DocumentWrite) and position is not None:
                rest = replace(rest, expected=position)
            else:
                rest = replace(rest, expected=transaction.number)
        return rest

    def _write_together(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        if not changes:
            return []
        with self.transaction() as transaction:
            return transaction.apply_all(changes)

    rename_document = _committed(DocumentTransaction.rename)
    write_vectors = _committed(DocumentTransaction.join_vectors)
    add_users_words = _committed(DocumentTransaction.add_users_words)
    add_sentences = _committed(DocumentTransaction.add_sentences)
    retry_dead_letter = _committed(DocumentTransaction.retry)
    drop_dead_letter = _committed(DocumentTransaction.drop_letter)
    set_meta = _committed(DocumentTransaction.set_meta)


# Large changes ---------------------------------------------------------------------------------------


def size_of(reader: StoreReader, change: DocumentChange) -> tuple[int, int]:
    """Return the number of chunks that a change changes, and of chunks that it adds."""
    if isinstance(change, DocumentTouch | DocumentFailure):
        return 0, 0
    if isinstance(change, DocumentDelete):
        return len(reader.chunks_of(change.key)), 0
    changed, added = len(change.added) + len(change.moved) + len(change.removed), len(change.added)
    if change.stale_from is not None:
        changed += sum(chunk.ordinal >= 0 for chunk in reader.chunks_of(change.key, first=change.stale_from))
    return changed, added


def is_large(changed: int, added: int) -> bool:
    """Return True if changes of this size are too large for one transaction."""
    return changed > MOST_CHANGED or added > MOST_ADDED


def parts_of(
    reader: StoreReader, change: DocumentWrite | DocumentDelete
) -> tuple[list[DocumentWrite], DocumentWrite | DocumentDelete]:
    """Split a large change into parts for a transaction each. Return them, and the rest for the last transaction.

    The writer sets the parts' expected revision or position. After a crash, reading goes on at the parts' position.
    """
    if isinstance(change, DocumentDelete):
        position = NOWHERE if reader.transcript(change.key) is not None else None
        part = DocumentWrite(change.key, change.expected, FORGOTTEN, PARTLY, position=position, complete=False)
        ids = tuple(chunk.id for chunk in reader.chunks_of(change.key))
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
        highest = max((chunk.ordinal for chunk in reader.chunks_of(change.key, first=change.stale_from)), default=-1)
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
