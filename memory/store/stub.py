"""A store in memory, for tests and for trying things out. Passes the conformance suite that SQLite passes."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memory.segmenting import QueryTerm, index_text, query_terms
from memory.store.reader import (
    ChunkRow,
    DeadLetterRow,
    Hit,
    IndexCounts,
    IndexedFile,
    PendingChunk,
    StoredChunk,
    Vector,
    VectorBackend,
    VectorState,
)
from memory.store.writer import DocumentDelete, DocumentWrite, KeptChunk, NewChunk, Refusal, Store, WriteOutcome
from schemas.documents import DocumentKey, FileStat

# BM25 as FTS5 has it (https://www.sqlite.org/fts5.html#the_bm25_function).
_K1 = 1.2
_B = 0.75
_SMALLEST_IDF = 1e-6

_WORD = re.compile(r"[^\W_]+")


@dataclass(slots=True)
class _Chunk:
    row: ChunkRow
    text_hash: str
    words: list[str]
    vector: Vector | None
    refusal: str | None

    @property
    def state(self) -> VectorState:
        if self.refusal is not None:
            return VectorState.REFUSED
        return VectorState.PENDING if self.vector is None else VectorState.READY


class InMemoryStore(Store):
    """One generation in this process only. Exact cosine by numpy; BM25 without stemming."""

    def __init__(self, *, fingerprint: str = "", description: str = "") -> None:
        self._lock = threading.RLock()
        self._meta = {"fingerprint": fingerprint, "identity": description}
        self._files: dict[DocumentKey, IndexedFile] = {}
        self._chunks: dict[int, _Chunk] = {}
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

    def pending_chunks(self, limit: int) -> list[PendingChunk]:
        with self._lock:
            pending = [chunk for _, chunk in sorted(self._chunks.items()) if chunk.state is VectorState.PENDING]
            return [PendingChunk(chunk.row.id, chunk.text_hash, chunk.row.text) for chunk in pending[:limit]]

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
            return _best({chunk_id: score for chunk_id, score in self._bm25(query).items() if chunk_id in wanted}, k)

    def text_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        with self._lock:
            wanted = set(ids)
            return {chunk_id: score for chunk_id, score in self._bm25(query).items() if chunk_id in wanted}

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
                else:
                    self._refuse_other_dimensions([given])
                    chunk.vector = given
                changed += 1
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

    def set_meta(self, values: Mapping[str, str]) -> None:
        with self._lock:
            self._meta.update(values)
            self._commit()

    def _commit(self) -> None:
        self._transactions += 1
        self._last_commit_at = time.time()

    def _apply(self, change: DocumentWrite | DocumentDelete, number: int) -> WriteOutcome:
        if self.revision(change.key) != change.expected_revision:
            return WriteOutcome.CONFLICT
        if isinstance(change, DocumentDelete):
            self._drop(change.key)
        else:
            self._put(change, number)
        self._dead.pop(change.key, None)
        return WriteOutcome.COMMITTED

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
            self._chunks[self._last_chunk_id] = _new_chunk(self._last_chunk_id, change.key, added)
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

    def _bm25(self, query: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        average = sum(len(chunk.words) for chunk in self._chunks.values()) / max(1, len(self._chunks))
        for term in query_terms(query):
            counts = {
                chunk_id: count
                for chunk_id, chunk in self._chunks.items()
                if (count := _occurrences(term, chunk.words))
            }
            idf = math.log((len(self._chunks) - len(counts) + 0.5) / (len(counts) + 0.5))
            for chunk_id, count in counts.items():
                length = len(self._chunks[chunk_id].words) / average
                weight = count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
                scores[chunk_id] = scores.get(chunk_id, 0.0) + max(idf, _SMALLEST_IDF) * weight
        return scores


def _new_chunk(chunk_id: int, key: DocumentKey, added: NewChunk) -> _Chunk:
    return _Chunk(
        row=ChunkRow(
            id=chunk_id,
            key=key,
            ordinal=added.ordinal,
            start_line=added.start_line,
            end_line=added.end_line,
            text=added.text,
        ),
        text_hash=added.text_hash,
        words=_WORD.findall(index_text(added.text).casefold()),
        vector=None if added.refused is not None else added.vector,
        refusal=added.refused,
    )


def _occurrences(term: QueryTerm, words: Sequence[str]) -> int:
    phrase = _WORD.findall(term.text.casefold())
    if not phrase:
        return 0
    if term.prefix and len(phrase) == 1:
        return sum(word.startswith(phrase[0]) for word in words)
    return sum(list(words[start : start + len(phrase)]) == phrase for start in range(len(words) - len(phrase) + 1))


def _best(scores: Mapping[int, float], k: int) -> list[Hit]:
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(chunk_id, score) for chunk_id, score in ranked[: max(0, k)]]
