"""Changes of documents, in transactions of a bounded size: the rules of every store.

A large change of one document (a transcript that was read again, a rewritten note, a deletion) takes several
transactions: one of 200,000 chunks would block other writers for seconds. Every state in between is a sound index: new
chunks are added before old ones are deleted, and no chunk of the new version is deleted. Until the end the document
counts as changed, so that a crash is repaired.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from memory.chunking.chunker import Chunk
from memory.chunking.segmenting import index_text, index_title
from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN, refusal_letter
from memory.store.errors import KeywordsUnavailable
from memory.store.reader import (
    NOWHERE,
    IndexedFile,
    SentenceSigns,
    StoredChunk,
    StoreReader,
    TranscriptPosition,
    Vector,
    VectorState,
)
from memory.store.row_reader import names_of
from memory.store.rows import FileRow, dead_letter, escaped, in_order, users_words
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

    Rows are read for all documents at once, collected, and written at its end: one by one they cost far more. Without
    `keeps_vectors`, no chunk becomes ready.
    """

    def __init__(
        self, number: int, deletions: int, last_chunk_id: int, last_file_id: int, *, keeps_vectors: bool
    ) -> None:
        self.changed = False
        #: Revision of the documents that this transaction writes.
        self.number = number
        self._keeps_vectors = keeps_vectors
        self._now = time.time()
        self._settled: dict[DocumentKey, bool] = {}  # document, whether it brought a refusal
        self._deletions = deletions
        self._last_chunk_id = last_chunk_id  # the highest id ever used, also by a chunk that is gone
        self._last_file_id = last_file_id
        # Rows as this transaction leaves them, None without one, and the keys of those to write.
        self._files: dict[DocumentKey, FileRow | None] = {}
        self._letters: dict[DocumentKey, DeadLetter | None] = {}
        self._changed_files: set[DocumentKey] = set()
        self._changed_letters: set[DocumentKey] = set()
        self._added: list[tuple[int, int, Chunk, VectorOutcome | None]] = []  # id, file id, chunk
        self._titles: dict[int, str] = {}  # by file id
        self._transcripts: set[int] = set()  # file ids

    def apply_all(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        """Carry out changes in their order."""
        self._load([change.key for change in changes if not isinstance(change, DocumentFailure)])
        return [self.apply(change) for change in changes]

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
                self._drop(change.key)
        self.changed = True
        return WriteOutcome.COMMITTED

    def _load(self, keys: Collection[DocumentKey]) -> None:
        if missing := {key for key in keys if key not in self._files}:
            files = map(FileRow.of, self._fetch("files_named", keys=names_of(missing)))
            letters = map(dead_letter, self._fetch("letters_named", keys=names_of(missing)))
            self._files |= dict.fromkeys(missing) | {row.file.key: row for row in files}
            self._letters |= dict.fromkeys(missing) | {letter.key: letter for letter in letters}

    def _file(self, key: DocumentKey) -> FileRow | None:
        self._load([key])
        return self._files[key]

    def _save(self, row: FileRow) -> int:
        self._files[row.file.key] = row
        self._changed_files.add(row.file.key)
        return row.id

    def _forget(self, key: DocumentKey) -> None:
        """Take a document out of the index, by deletion or under another name."""
        self._files[key] = None
        self._changed_files.discard(key)
        # Another worker may have read the revision of the name while it was unknown.
        self._deletions += 1

    def _is_late(self, change: DocumentWrite | DocumentDelete) -> bool:
        row = self._file(change.key)
        if isinstance(change.expected, TranscriptPosition):
            return row is None or row.position is None or not row.position.is_of(change.expected)
        return (row.file.revision if row is not None else -self._deletions) != change.expected

    def _put(self, change: DocumentWrite) -> None:
        file_id = self._put_file(change)
        if change.stale_from is not None:
            self._write_chunks_of(file_id)
            self._fetch("make_stale", file=file_id, first=change.stale_from)
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

    def _put_file(self, change: DocumentWrite) -> int:
        row = self._file(change.key)
        is_same = row is not None and row.file.content_hash == change.content_hash
        touches = row.file.touches + 1 if row is not None and is_same else 0
        facts = (change.key, change.stat, change.content_hash, self.number, self._now, change.notes, touches)
        if row is None:
            self._last_file_id += 1
            return self._save(FileRow(self._last_file_id, IndexedFile(*facts), change.position))
        return self._save(FileRow(row.id, IndexedFile(*facts), change.position or row.position))

    def _drop(self, key: DocumentKey) -> None:
        if (row := self._file(key)) is not None:
            self._write_chunks_of(row.id)
            self._drop_file(row.id)
            self._forget(key)
        self._settled.setdefault(key, False)

    def _touch(self, change: DocumentTouch) -> None:
        row = self._file(change.key)
        if row is not None and row.file.content_hash == change.content_hash:
            self._save(replace(row, file=replace(row.file, stat=change.stat, touches=row.file.touches + 1)))
            self._settled.setdefault(change.key, False)

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
            case VectorState():
                return outcome, None, None
        if outcome is None or not self._keeps_vectors:
            return VectorState.PENDING, None, None
        return VectorState.READY, None, outcome

    def join_vectors(self, vectors: Mapping[int, tuple[str, VectorOutcome]]) -> int:
        outcomes: list[tuple[int, VectorOutcome]] = []
        refused: set[DocumentKey] = set()
        for chunk_id, text_hash, *name in self._fetch("pending_among", ids=list(vectors)):
            expected, outcome = vectors[chunk_id]
            if expected == text_hash and self._state_of(outcome)[0] is not VectorState.PENDING:
                outcomes.append((chunk_id, outcome))
                refused |= {DocumentKey(*name)} if isinstance(outcome, Refusal) else set()
        self._set_outcomes(outcomes)
        for key in refused:
            before = self._letter(key)
            # An unreadable document matters more than missing vectors of its older version.
            if before is None or not before.last_at or before.error_class == EMBEDDING_REFUSED:
                self._settle_letter(key, fresh=True)
        self.changed = self.changed or bool(outcomes)
        return len(outcomes)

    def rename(self, old: DocumentKey, new: DocumentKey) -> bool:
        row = self._file(old)
        if row is None or self._file(new) is not None:
            return False
        self._forget(old)
        self._save(replace(row, file=replace(row.file, key=new, revision=self.number)))
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
        row = self._file(key)
        released = self._refused_chunks(key)
        self._set_outcomes([(chunk.id, None) for chunk in released])
        if letter is not None and letter.last_at:
            # It is no letter now, but if the document fails again, it continues the attempts and the first time.
            self._put_letter(letter.model_copy(update={"last_at": 0.0}))
            self.changed = True
            if letter.error_class != EMBEDDING_REFUSED and row is not None:
                self._save(replace(row, file=replace(row.file, stat=FORGOTTEN)))
        self.changed = self.changed or bool(released)
        return len(released)

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

    def _refused_chunks(self, key: DocumentKey) -> list[StoredChunk]:
        row = self._file(key)
        return in_order(self._fetch("refused_of_file", file=row.id)) if row is not None else []

    def _letter(self, key: DocumentKey) -> DeadLetter | None:
        self._load([key])
        return self._letters[key]

    def _put_letter(self, letter: DeadLetter) -> None:
        self._letters[letter.key] = letter
        self._changed_letters.add(letter.key)

    def _delete_letter(self, key: DocumentKey) -> DeadLetter | None:
        letter = self._letter(key)
        self._letters[key] = None
        self._changed_letters.add(key)
        return letter

    def flush(self) -> None:
        """Write the collected chunks, then the dead letters, which depend on the refused chunks in the tables."""
        self._write_chunks()
        for key, refusal in self._settled.items():
            self._settle_letter(key, fresh=refusal)

    def finish(self) -> None:
        """Write all collected rows, and count the transaction."""
        self.flush()
        if self.changed:
            self._write_files([row for key in self._changed_files if (row := self._files[key]) is not None])
            letters = [self._letters[key] for key in self._changed_letters]
            self._write_letters(self._changed_letters, [letter for letter in letters if letter is not None])
            self._count()

    @abstractmethod
    def _fetch(self, statement: str, **bindings: object) -> list[tuple[Any, ...]]:
        """Return all rows of the statement of this name (`memory.store.row_reader.statements`)."""

    # Statements of each store. Those that write chunks carry out all changes before them.

    @abstractmethod
    def _write_files(self, rows: Sequence[FileRow]) -> None: ...
    @abstractmethod
    def _write_letters(self, keys: Collection[DocumentKey], letters: Sequence[DeadLetter]) -> None: ...
    @abstractmethod
    def _count(self) -> None: ...
    @abstractmethod
    def _drop_file(self, file_id: int) -> None: ...
    @abstractmethod
    def _move(self, file_id: int, moved: Sequence[MovedChunk]) -> None: ...
    @abstractmethod
    def _remove(self, file_id: int, ids: Sequence[int]) -> None: ...
    @abstractmethod
    def _write_chunks(self) -> None: ...
    @abstractmethod
    def _set_outcomes(self, outcomes: Sequence[tuple[int, VectorOutcome | None]]) -> None: ...
    @abstractmethod
    def add_sentences(self, sentences: Mapping[str, SentenceSigns]) -> None: ...
    @abstractmethod
    def set_meta(self, values: Mapping[str, str]) -> None: ...


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
