"""Store in memory, for tests and for trials. It passes the conformance suite of the SQLite store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from memory.store.dead_letters import EMBEDDING_REFUSED, FORGOTTEN, RETRIED, refusal_letter, remembered, taken
from memory.store.reader import DeadLetterRow, IndexedFile, Vector, VectorState
from memory.store.stub_reader import InMemoryReader, MemoryChunk, new_chunk
from memory.store.writer import (
    DocumentChange,
    DocumentDelete,
    DocumentWrite,
    KeptChunk,
    NewChunk,
    Refusal,
    Store,
    TranscriptWrite,
    WriteOutcome,
)
from schemas.documents import DocumentKey, FileStat


class InMemoryStore(InMemoryReader, Store):
    """One generation in this process. Exact cosine by numpy; BM25 without stemming."""

    def write(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        settled: dict[DocumentKey, bool] = {}
        with self._lock:
            self._refuse_other_dimensions(
                [chunk.vector for change in changes if not isinstance(change, DocumentDelete) for chunk in change.added]
            )
            outcomes = [self._apply(change, settled) for change in changes]
            for key, fresh in settled.items():
                self._settle(key, fresh=fresh)
            if WriteOutcome.COMMITTED in outcomes:
                self._commit()
        return outcomes

    def rename_document(self, old: DocumentKey, new: DocumentKey) -> bool:
        with self._lock:
            if old not in self._files or new in self._files:
                return False
            self._files[new] = replace(self._files.pop(old), key=new, revision=self._transactions + 1)
            if old in self._marks:
                self._marks[new] = self._marks.pop(old)
            if old in self._dead:
                self._dead[new] = replace(self._dead.pop(old), key=new)
            for chunk in self._chunks.values():
                if chunk.row.key == old:
                    chunk.row = replace(chunk.row, key=new)
            self._deletions += 1
            self._commit()
            return True

    def write_vectors(self, vectors: Mapping[int, tuple[str, Vector | Refusal]]) -> int:
        changed = 0
        refused: set[DocumentKey] = set()
        with self._lock:
            self._refuse_other_dimensions(
                [given for _, given in vectors.values() if not isinstance(given, Refusal)], remember=False
            )
            for chunk_id, (text_hash, given) in vectors.items():
                chunk = self._chunks.get(chunk_id)
                if chunk is None or chunk.text_hash != text_hash or chunk.state is not VectorState.PENDING:
                    continue
                if isinstance(given, Refusal):
                    chunk.refusal = given.reason
                    refused.add(chunk.row.key)
                else:
                    self._refuse_other_dimensions([given])
                    chunk.vector = given
                changed += 1
            for key in refused:
                before = self._dead.get(key)
                if before is None or before.error_class == EMBEDDING_REFUSED:
                    self._settle(key, fresh=True)
            if changed:
                self._commit()
        return changed

    def touch(
        self, stats: Mapping[DocumentKey, FileStat], *, content_hashes: Mapping[DocumentKey, str] | None = None
    ) -> None:
        with self._lock:
            for key, stat in stats.items():
                file = self._files.get(key)
                if file is None or (content_hashes is not None and content_hashes.get(key) != file.content_hash):
                    continue
                self._files[key] = replace(file, stat=stat, touches=file.touches + 1)
                self._settle(key, fresh=False)
            self._commit()

    def add_dead_letter(self, key: DocumentKey, *, reason: str, error_class: str, attempts: int = 1) -> None:
        now = time.time()
        with self._lock:
            before = self._dead.get(key) or self._take_retried(key)
            self._dead[key] = DeadLetterRow(
                key=key,
                reason=reason,
                error_class=error_class,
                attempts=before.attempts + attempts if before else attempts,
                first_at=before.first_at if before else now,
                last_at=now,
            )
            self._commit()

    def retry_dead_letter(self, key: DocumentKey) -> int:
        with self._lock:
            refused = self.refused_chunks(key)
            for one in refused:
                self._chunks[one.id].refusal = None
            letter = self._dead.pop(key, None)
            if letter is not None:
                self._meta[RETRIED] = remembered(self._meta.get(RETRIED), letter)
            if letter is not None and letter.error_class != EMBEDDING_REFUSED and key in self._files:
                self._files[key] = replace(self._files[key], stat=FORGOTTEN)
            if refused or letter is not None:
                self._commit()
            return len(refused)

    def drop_dead_letter(self, key: DocumentKey) -> bool:
        with self._lock:
            dropped = self._dead.pop(key, None) is not None
            if dropped:
                self._commit()
            return dropped

    def set_meta(self, values: Mapping[str, str]) -> None:
        with self._lock:
            self._meta.update(values)
            self._commit()

    def _commit(self) -> None:
        self._transactions += 1
        self._last_commit_at = time.time()

    def _apply(self, change: DocumentChange, settled: dict[DocumentKey, bool]) -> WriteOutcome:
        """Apply one change unless it conflicts; record in `settled` if it brought a refusal."""
        if isinstance(change, TranscriptWrite):
            if not self._continues(change):
                return WriteOutcome.CONFLICT
            fresh = self._put_slice(change)
            if not change.final and not fresh:
                return WriteOutcome.COMMITTED  # an unreadable part is still a dead letter
        elif self.revision(change.key) != change.expected_revision:
            return WriteOutcome.CONFLICT
        elif isinstance(change, DocumentDelete):
            self._drop(change.key)
            fresh = False
        elif change.key in self._marks:
            return WriteOutcome.CONFLICT
        else:
            self._put(change)
            fresh = any(chunk.refused is not None for chunk in change.added)
        settled[change.key] = fresh or settled.get(change.key, False)
        return WriteOutcome.COMMITTED

    def _continues(self, change: TranscriptWrite) -> bool:
        mark = self._marks.get(change.key)
        if change.continues is None:
            return change.key not in self._files
        return mark is not None and mark.is_of(change.continues)

    def _settle(self, key: DocumentKey, *, fresh: bool) -> None:
        before = self._dead.get(key) or self._take_retried(key)
        if before is None and not fresh:
            return
        letter = refusal_letter(key, self.refused_chunks(key), before, fresh=fresh, now=time.time())
        if letter is None:
            self._dead.pop(key, None)
        else:
            self._dead[key] = letter

    def _take_retried(self, key: DocumentKey) -> DeadLetterRow | None:
        found = taken(self._meta.get(RETRIED), key)
        if found is None:
            return None
        self._meta[RETRIED], letter = found
        return letter

    def _drop(self, key: DocumentKey) -> None:
        if self._files.pop(key, None) is None:
            return
        self._marks.pop(key, None)
        self._deletions += 1
        for chunk_id in [chunk_id for chunk_id, chunk in self._chunks.items() if chunk.row.key == key]:
            del self._chunks[chunk_id]

    def _put(self, change: DocumentWrite) -> None:
        for chunk_id in change.removed:
            if self._belongs(chunk_id, change.key):
                del self._chunks[chunk_id]
        for kept in change.moved:
            if self._belongs(kept.id, change.key):
                self._move(kept)
        for added in change.added:
            chunk_id = self._next_chunk_id()
            self._chunks[chunk_id] = new_chunk(chunk_id, change.key, added)
        self._put_file(change, change.content_hash)

    def _put_slice(self, change: TranscriptWrite) -> bool:
        self._marks[change.key] = change.mark
        self._put_file(change, change.mark.digest)
        return write_chunks(self._chunks, change, self._next_chunk_id)

    def _put_file(self, change: DocumentWrite | TranscriptWrite, content_hash: str) -> None:
        before = self._files.get(change.key)
        touches = before.touches + 1 if before is not None and before.content_hash == content_hash else 0
        self._files[change.key] = IndexedFile(
            key=change.key,
            stat=change.stat,
            content_hash=content_hash,
            revision=self._transactions + 1,
            indexed_at=time.time(),
            notes=change.notes,
            touches=touches,
        )

    def _next_chunk_id(self) -> int:
        self._last_chunk_id += 1
        return self._last_chunk_id

    def _belongs(self, chunk_id: int, key: DocumentKey) -> bool:
        return chunk_id in self._chunks and self._chunks[chunk_id].row.key == key

    def _move(self, kept: KeptChunk) -> None:
        chunk = self._chunks[kept.id]
        chunk.row = replace(chunk.row, ordinal=kept.ordinal, start_line=kept.start_line, end_line=kept.end_line)

    def _refuse_other_dimensions(self, vectors: Sequence[Vector | None], *, remember: bool = True) -> None:
        expected = int(self._meta["dimensions"]) if "dimensions" in self._meta else None
        for vector in vectors:
            if vector is None:
                continue
            expected = expected or vector.size
            if vector.shape != (expected,):
                raise ValueError(f"shape {vector.shape} in an index of {expected} dimensions")
        if expected is not None and remember:
            self._meta["dimensions"] = str(expected)


def write_chunks(chunks: dict[int, MemoryChunk], change: TranscriptWrite, next_id: Callable[[], int]) -> bool:
    """Apply a slice to the chunks; return True if it brought a refusal."""
    refusal = False
    if change.keep is not None:
        for chunk in _chunks_of(chunks, change):
            chunk.stale = chunk.stale or chunk.row.ordinal >= change.keep
    stale = sorted((chunk for chunk in _chunks_of(chunks, change) if chunk.stale), key=attrgetter("place"))
    for added in change.added:
        taken = next((one for one in stale if one.stale and one.text_hash == added.text_hash), None)
        if taken is None:
            chunk_id = next_id()
            chunks[chunk_id] = new_chunk(chunk_id, change.key, added)
            refusal = refusal or added.refused is not None
        else:
            refusal = _take_over(taken, added) or refusal
    if change.final:
        for chunk in stale:
            if chunk.stale:
                del chunks[chunk.row.id]
    return refusal


def _chunks_of(chunks: dict[int, MemoryChunk], change: TranscriptWrite) -> list[MemoryChunk]:
    return [chunk for chunk in chunks.values() if chunk.row.key == change.key]


def _take_over(chunk: MemoryChunk, added: NewChunk) -> bool:
    chunk.stale = False
    chunk.row = replace(chunk.row, ordinal=added.ordinal, start_line=added.start_line, end_line=added.end_line)
    chunk.said_at = added.said_at
    if added.vector is not None and chunk.state is not VectorState.READY:
        chunk.vector, chunk.refusal = added.vector, None
    elif added.refused is not None and chunk.state is VectorState.PENDING:
        chunk.refusal = added.refused
        return True
    return False
