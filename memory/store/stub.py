"""A store in memory, for tests and for trying things out. Passes the conformance suite that SQLite passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from memory.store.letters import EMBEDDING_REFUSED, FORGOTTEN, refusal_letter
from memory.store.reader import (
    ChunkRow,
    DeadLetterRow,
    Hit,
    IndexCounts,
    IndexedFile,
    PendingChunk,
    RefusedChunk,
    StoredChunk,
    Vector,
    VectorBackend,
    VectorState,
)
from memory.store.stub_chunks import MemoryChunk, bm25, new_chunk
from memory.store.writer import DocumentDelete, DocumentWrite, KeptChunk, Refusal, Store, WriteOutcome
from schemas.documents import DocumentKey, FileStat


class InMemoryStore(Store):
    """One generation in this process only. Exact cosine by numpy; BM25 without stemming."""

    def __init__(self, *, fingerprint: str = "", description: str = "") -> None:
        self._lock = threading.RLock()
        self._meta = {"fingerprint": fingerprint, "identity": description}
        self._files: dict[DocumentKey, IndexedFile] = {}
        self._chunks: dict[int, MemoryChunk] = {}
        self._dead: dict[DocumentKey, DeadLetterRow] = {}
        self._transactions = 0
        self._deletions = 0
        self._last_chunk_id = 0
        self._last_commit_at: float | None = None

    @property
    def vector_backend(self) -> VectorBackend:
        return VectorBackend.NUMPY

    @property
    def vector_reason(self) -> str | None:
        return None

    def meta(self, name: str) -> str | None:
        with self._lock:
            return self._meta.get(name)

    def revision(self, key: DocumentKey) -> int:
        with self._lock:
            file = self._files.get(key)
            return file.revision if file else -self._deletions

    def file(self, key: DocumentKey) -> IndexedFile | None:
        with self._lock:
            return self._files.get(key)

    def files(self) -> Iterator[IndexedFile]:
        with self._lock:
            return iter(list(self._files.values()))

    def chunks_of(self, key: DocumentKey) -> list[StoredChunk]:
        with self._lock:
            found = [chunk for chunk in self._chunks.values() if chunk.row.key == key]
            return [
                StoredChunk(
                    id=chunk.row.id,
                    text_hash=chunk.text_hash,
                    ordinal=chunk.row.ordinal,
                    start_line=chunk.row.start_line,
                    end_line=chunk.row.end_line,
                    vector_state=chunk.state,
                )
                for chunk in sorted(found, key=lambda chunk: chunk.row.ordinal)
            ]

    def chunk_rows(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        with self._lock:
            return {chunk_id: self._chunks[chunk_id].row for chunk_id in ids if chunk_id in self._chunks}

    def pending_chunks(self, limit: int, *, among: Collection[str] | None = None) -> list[PendingChunk]:
        with self._lock:
            pending = [chunk for chunk in self._pending() if among is None or chunk.text_hash in among]
            return [PendingChunk(chunk.row.id, chunk.text_hash, chunk.row.text) for chunk in pending[:limit]]

    def pending_hashes(self) -> dict[int, str]:
        with self._lock:
            return {chunk.row.id: chunk.text_hash for chunk in self._pending()}

    def refused_chunks(self, key: DocumentKey) -> list[RefusedChunk]:
        with self._lock:
            found = [chunk for chunk in self._chunks.values() if chunk.row.key == key and chunk.refusal is not None]
            return [
                RefusedChunk(chunk.row.id, chunk.row.start_line, chunk.row.end_line, chunk.refusal or "")
                for chunk in sorted(found, key=lambda chunk: chunk.row.ordinal)
            ]

    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        wanted = set(text_hashes)
        with self._lock:
            return {
                chunk.text_hash: chunk.vector
                for chunk in self._chunks.values()
                if chunk.vector is not None and chunk.text_hash in wanted
            }

    def search_vectors(self, vector: Vector, k: int, sources: Sequence[str] | None = None) -> list[Hit]:
        with self._lock:
            scores = self.vector_scores(vector, self._ids_of(sources))
        return _best(scores, k)

    def vector_scores(self, vector: Vector, ids: Sequence[int]) -> dict[int, float]:
        with self._lock:
            found = {
                chunk_id: stored
                for chunk_id in ids
                if chunk_id in self._chunks and (stored := self._chunks[chunk_id].vector) is not None
            }
        if not found:
            return {}
        return dict(zip(found, (np.stack(list(found.values())) @ vector).tolist(), strict=True))

    def search_text(self, query: str, k: int, sources: Sequence[str] | None = None) -> list[Hit]:
        with self._lock:
            wanted = set(self._ids_of(sources))
            return _best(
                {chunk_id: score for chunk_id, score in bm25(query, self._chunks).items() if chunk_id in wanted}, k
            )

    def text_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        with self._lock:
            wanted = set(ids)
            return {chunk_id: score for chunk_id, score in bm25(query, self._chunks).items() if chunk_id in wanted}

    def dead_letters(self) -> list[DeadLetterRow]:
        with self._lock:
            return sorted(self._dead.values(), key=lambda row: (-row.last_at, row.key))

    def counts(self) -> IndexCounts:
        with self._lock:
            states = [chunk.state for chunk in self._chunks.values()]
            return IndexCounts(
                files=len(self._files),
                chunks=len(states),
                vectors_ready=states.count(VectorState.READY),
                vectors_pending=states.count(VectorState.PENDING),
                vectors_refused=states.count(VectorState.REFUSED),
                last_commit_at=self._last_commit_at,
                disk_bytes=0,
            )

    def change_token(self) -> object:
        with self._lock:
            return id(self), self._transactions

    def check(self) -> list[str]:
        with self._lock:
            orphans = [chunk.row.id for chunk in self._chunks.values() if chunk.row.key not in self._files]
        return [f"{len(orphans)} chunks without a file"] if orphans else []

    def close(self) -> None:
        """Nothing to let go of."""

    def write(self, changes: Sequence[DocumentWrite | DocumentDelete]) -> list[WriteOutcome]:
        with self._lock:
            self._refuse_other_dimensions(
                [chunk.vector for change in changes if isinstance(change, DocumentWrite) for chunk in change.added]
            )
            number = self._transactions + 1
            outcomes = [self._apply(change, number) for change in changes]
            if WriteOutcome.COMMITTED in outcomes:
                self._commit()
        return outcomes

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
                self._files[key] = replace(file, stat=stat)
                self._settle(key, fresh=False)
            self._commit()

    def add_dead_letter(self, key: DocumentKey, *, reason: str, error_class: str) -> None:
        now = time.time()
        with self._lock:
            before = self._dead.get(key)
            self._dead[key] = DeadLetterRow(
                key=key,
                reason=reason,
                error_class=error_class,
                attempts=before.attempts + 1 if before else 1,
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

    def _pending(self) -> list[MemoryChunk]:
        return [chunk for _, chunk in sorted(self._chunks.items()) if chunk.state is VectorState.PENDING]

    def _commit(self) -> None:
        self._transactions += 1
        self._last_commit_at = time.time()

    def _apply(self, change: DocumentWrite | DocumentDelete, number: int) -> WriteOutcome:
        if self.revision(change.key) != change.expected_revision:
            return WriteOutcome.CONFLICT
        if isinstance(change, DocumentDelete):
            self._drop(change.key)
            self._settle(change.key, fresh=False)
        else:
            self._put(change, number)
            self._settle(change.key, fresh=any(chunk.refused is not None for chunk in change.added))
        return WriteOutcome.COMMITTED

    def _settle(self, key: DocumentKey, *, fresh: bool) -> None:
        before = self._dead.get(key)
        if before is None and not fresh:
            return
        letter = refusal_letter(key, self.refused_chunks(key), before, fresh=fresh, now=time.time())
        if letter is None:
            del self._dead[key]
        else:
            self._dead[key] = letter

    def _drop(self, key: DocumentKey) -> None:
        if self._files.pop(key, None) is None:
            return
        self._deletions += 1
        for chunk_id in [chunk_id for chunk_id, chunk in self._chunks.items() if chunk.row.key == key]:
            del self._chunks[chunk_id]

    def _put(self, change: DocumentWrite, number: int) -> None:
        for chunk_id in change.removed:
            if self._belongs(chunk_id, change.key):
                del self._chunks[chunk_id]
        for kept in change.moved:
            if self._belongs(kept.id, change.key):
                self._move(kept)
        for added in change.added:
            self._last_chunk_id += 1
            self._chunks[self._last_chunk_id] = new_chunk(self._last_chunk_id, change.key, added)
        self._files[change.key] = IndexedFile(
            key=change.key,
            stat=change.stat,
            content_hash=change.content_hash,
            revision=number,
            indexed_at=time.time(),
            notes=change.notes,
        )

    def _belongs(self, chunk_id: int, key: DocumentKey) -> bool:
        return chunk_id in self._chunks and self._chunks[chunk_id].row.key == key

    def _move(self, kept: KeptChunk) -> None:
        chunk = self._chunks[kept.id]
        chunk.row = replace(chunk.row, ordinal=kept.ordinal, start_line=kept.start_line, end_line=kept.end_line)

    def _ids_of(self, sources: Sequence[str] | None) -> list[int]:
        return [
            chunk_id for chunk_id, chunk in self._chunks.items() if sources is None or chunk.row.key.source in sources
        ]

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


def _best(scores: Mapping[int, float], k: int) -> list[Hit]:
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(chunk_id, score) for chunk_id, score in ranked[: max(0, k)]]
