"""Contents of the store in memory, and read access to them."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from memory.chunking.segmenting import QueryTerm, index_text, index_title, query_terms
from memory.store.reader import (
    MOST_BEGUN,
    MOST_NAMED,
    ChunkRow,
    DeadLetterRow,
    Hit,
    IndexCounts,
    IndexedFile,
    PendingChunk,
    RefusedChunk,
    StoredChunk,
    StoreReader,
    TermCounts,
    TranscriptMark,
    Vector,
    VectorState,
)
from memory.store.writer import NewChunk
from schemas.documents import DocumentKey


class InMemoryReader(StoreReader):
    """Reading half of `InMemoryStore`. Exact cosine by numpy; BM25 without stemming."""

    def __init__(self, *, fingerprint: str = "", description: str = "") -> None:
        self._lock = threading.RLock()
        self._meta = {"fingerprint": fingerprint, "identity": description}
        self._files: dict[DocumentKey, IndexedFile] = {}
        self._marks: dict[DocumentKey, TranscriptMark] = {}
        self._chunks: dict[int, MemoryChunk] = {}
        self._dead: dict[DocumentKey, DeadLetterRow] = {}
        self._transactions = 0
        self._deletions = 0
        self._last_chunk_id = 0
        self._last_commit_at: float | None = None

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

    def chunks_by_path(self, source: str) -> dict[str, int]:
        with self._lock:
            counts = {key.path: 0 for key in self._files if key.source == source}
            for chunk in self._chunks.values():
                if chunk.row.key.source == source:
                    counts[chunk.row.key.path] += 1
            return counts

    def transcript(self, key: DocumentKey) -> TranscriptMark | None:
        with self._lock:
            return self._marks.get(key)

    def chunks_of(self, key: DocumentKey) -> list[StoredChunk]:
        with self._lock:
            found = [chunk for chunk in self._chunks.values() if chunk.row.key == key]
            return [
                StoredChunk(
                    id=chunk.row.id,
                    text_hash=chunk.text_hash,
                    ordinal=-1 - chunk.row.ordinal if chunk.stale else chunk.row.ordinal,
                    start_line=chunk.row.start_line,
                    end_line=chunk.row.end_line,
                    vector_state=chunk.state,
                )
                for chunk in sorted(found, key=attrgetter("place"))
            ]

    def named(self, folder: str, name: str) -> list[DocumentKey]:
        with self._lock:
            found: tuple[list[DocumentKey], list[DocumentKey]] = [], []
            for key in reversed(self._files):
                folders, _, own = f"/{key.path.lower()}".rpartition("/")
                own = own[28:] if re.match("rollout-....-..-..t..-..-..-", own) else own
                if f"{folders}/".endswith(folder.lower()) and f"{own}.".startswith(f"{name.lower()}."):
                    found[own != name.lower()].append(key)
            return found[0][:MOST_NAMED] + found[1][:MOST_NAMED]

    def begun_by(self, text_hash: str) -> list[DocumentKey]:
        with self._lock:
            chunks = self._chunks.values()
            found = (chunk for chunk in chunks if (chunk.text_hash, chunk.row.ordinal) == (text_hash, 0))
            keys = [chunk.row.key for chunk in found if not chunk.stale and chunk.row.key.is_transcript]
            return keys[:MOST_BEGUN]

    def times_of(self, ids: Sequence[int]) -> dict[int, float]:
        with self._lock:
            times = {chunk_id: self._chunks[chunk_id].said_at for chunk_id in ids if chunk_id in self._chunks}
            return {chunk_id: said_at for chunk_id, said_at in times.items() if said_at is not None}

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
                for chunk in sorted(found, key=attrgetter("place"))
            ]

    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        wanted = set(text_hashes)
        with self._lock:
            return {
                chunk.text_hash: chunk.vector
                for chunk in self._chunks.values()
                if chunk.vector is not None and chunk.text_hash in wanted
            }

    def vectors_of(self, ids: Sequence[int]) -> dict[int, Vector]:
        with self._lock:
            found = {chunk_id: self._chunks[chunk_id].vector for chunk_id in ids if chunk_id in self._chunks}
            return {chunk_id: vector for chunk_id, vector in found.items() if vector is not None}

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

    def term_counts(self, query: str) -> TermCounts:
        with self._lock:
            return TermCounts(len(self._chunks), holders(query, self._chunks))

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

    def vectors_pending(self) -> int:
        with self._lock:
            return len(self._pending())

    def size(self) -> int:
        return 0

    def change_token(self) -> object:
        with self._lock:
            return id(self), self._transactions

    def check(self) -> list[str]:
        with self._lock:
            chunks = self._chunks.values()
            findings = {
                "chunks without a file": sum(chunk.row.key not in self._files for chunk in chunks),
                "marks of transcripts without a file": len(self._marks.keys() - self._files.keys()),
                "stale chunks of documents that are no transcripts": sum(
                    chunk.stale and chunk.row.key not in self._marks for chunk in chunks
                ),
            }
        return [f"{number} {what}" for what, number in findings.items() if number]

    def close(self) -> None:
        """Do nothing."""

    def _pending(self) -> list[MemoryChunk]:
        return [chunk for _, chunk in sorted(self._chunks.items()) if chunk.state is VectorState.PENDING]

    def _ids_of(self, sources: Sequence[str] | None) -> list[int]:
        return [
            chunk_id for chunk_id, chunk in self._chunks.items() if sources is None or chunk.row.key.source in sources
        ]


def _best(scores: Mapping[int, float], k: int) -> list[Hit]:
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [Hit(chunk_id, score) for chunk_id, score in ranked[: max(0, k)]]


# BM25 as FTS5 has it (https://www.sqlite.org/fts5.html#the_bm25_function).
_K1 = 1.2
_B = 0.75
_SMALLEST_IDF = 1e-6

# As in FTS5, private use counts as letters: `memory.chunking.segmenting` writes marks so.
_WORD = re.compile(r"(?:[^\W_]|[\ue000-\uefff])+")


@dataclass(slots=True)
class MemoryChunk:
    """One chunk with its words for searches. A stale one keeps its former ordinal."""

    row: ChunkRow
    text_hash: str
    words: list[str]
    vector: Vector | None
    refusal: str | None
    said_at: float | None
    stale: bool = False

    @property
    def place(self) -> tuple[bool, int, int]:
        """Return the sort key of a document's chunks."""
        return self.stale, self.row.ordinal, self.row.id

    @property
    def state(self) -> VectorState:
        """Return the state of its vector."""
        if self.refusal is not None:
            return VectorState.REFUSED
        return VectorState.PENDING if self.vector is None else VectorState.READY


def new_chunk(chunk_id: int, key: DocumentKey, added: NewChunk) -> MemoryChunk:
    """Return a chunk for insertion."""
    return MemoryChunk(
        row=ChunkRow(
            id=chunk_id,
            key=key,
            ordinal=added.ordinal,
            start_line=added.start_line,
            end_line=added.end_line,
            text=added.text,
        ),
        text_hash=added.text_hash,
        words=_WORD.findall(index_text(f"{index_title(key.source, key.path)}\n{added.text}").casefold()),
        vector=None if added.refused is not None else added.vector,
        refusal=added.refused,
        said_at=added.said_at,
    )


def bm25(query: str, chunks: Mapping[int, MemoryChunk]) -> dict[int, float]:
    """Return the scores of the chunks that hold a term of the query, by id."""
    scores: dict[int, float] = {}
    average = sum(len(chunk.words) for chunk in chunks.values()) / max(1, len(chunks))
    for term in query_terms(query):
        counts = {chunk_id: count for chunk_id, chunk in chunks.items() if (count := _occurrences(term, chunk.words))}
        idf = math.log((len(chunks) - len(counts) + 0.5) / (len(counts) + 0.5))
        for chunk_id, count in counts.items():
            length = len(chunks[chunk_id].words) / average
            weight = count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
            scores[chunk_id] = scores.get(chunk_id, 0.0) + max(idf, _SMALLEST_IDF) * weight
    return scores


def holders(query: str, chunks: Mapping[int, MemoryChunk]) -> dict[str, int]:
    """Return the number of chunks that hold each of the query's terms."""
    return {
        term.text: sum(_occurrences(term, chunk.words) > 0 for chunk in chunks.values()) for term in query_terms(query)
    }


def _occurrences(term: QueryTerm, words: Sequence[str]) -> int:
    phrase = _WORD.findall(term.text.casefold())
    if not phrase:
        return 0
    if term.prefix and len(phrase) == 1:
        return sum(word.startswith(phrase[0]) for word in words)
    return sum(list(words[start : start + len(phrase)]) == phrase for start in range(len(words) - len(phrase) + 1))
