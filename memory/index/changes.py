"""Changes of documents on their way into the index: their difference from it, and the batches of one commit."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from memory.chunking.chunker import Chunk, chunk_text, text_hash
from memory.embedding.batcher import Ticket
from memory.embedding.providers.provider import EmbeddingProvider
from memory.store.reader import StoredChunk
from memory.store.writer import DocumentChange, DocumentWrite, MovedChunk, VectorOutcome
from schemas.documents import DocumentKey
from schemas.errors import Transient
from schemas.settings import Chunking


class UnmatchedChunks:
    """Stored chunks of a document that its new version has not taken over yet.

    Equal texts are matched in order, so that repeated passages keep as many rows as there are repeats. `stale` chunks
    have lost their places, so that all of them move.
    """

    def __init__(self, stored: Iterable[StoredChunk], *, stale: bool = False) -> None:
        self._stale = stale
        self._rows: defaultdict[str, deque[StoredChunk]] = defaultdict(deque)
        for chunk in stored:
            self._rows[chunk.text_hash].append(chunk)

    def take_over(self, cut: Iterable[Chunk]) -> tuple[tuple[Chunk, ...], tuple[MovedChunk, ...]]:
        """Take over chunks with the texts of the new version; return the chunks to add, and those that move."""
        added: list[Chunk] = []
        moved: list[MovedChunk] = []
        for chunk in cut:
            if not (old_chunks := self._rows[chunk.text_hash]):
                added.append(chunk)
                continue
            old = old_chunks.popleft()
            place = (chunk.ordinal, chunk.start_line, chunk.end_line)
            if self._stale or (old.ordinal, old.start_line, old.end_line) != place:
                moved.append(MovedChunk(old.id, *place, chunk.said_at))
        return tuple(added), tuple(moved)

    def remaining_ids(self) -> tuple[int, ...]:
        """Return the ids of the chunks that the new version does not hold."""
        return tuple(chunk.id for rows in self._rows.values() for chunk in rows)


#: Largest number of UTF-8 bytes in a chunk without a provider.
_MAX_BYTES = 8191


def byte_limit(provider: EmbeddingProvider | None) -> int:
    """Return the largest number of UTF-8 bytes in a chunk."""
    return provider.limits.input_bytes if provider is not None else _MAX_BYTES


def cut_document(text: str, chunking: Chunking, provider: EmbeddingProvider | None) -> list[Chunk]:
    """Return the chunks that hold more than white space, each short enough for the provider."""
    chunks = chunk_text(text, tokens=chunking.tokens, overlap=chunking.overlap, max_bytes=byte_limit(provider))
    filled = (chunk for chunk in chunks if chunk.text.strip())
    return [
        Chunk(ordinal, chunk.start_line, chunk.end_line, chunk.text, text_hash(chunk.text))
        for ordinal, chunk in enumerate(filled)
    ]


#: New chunks in one transaction.
MAX_CHUNKS_PER_COMMIT = 500

#: Documents in one transaction.
MAX_DOCUMENTS_PER_COMMIT = 128


@dataclass(slots=True)
class IndexReport:
    """Counts of an indexing run, in documents and chunks.

    `again` is the reason why some documents need another attempt, None without any. `unfinished` counts documents for
    which the time was too short. `commits` is the number of transactions. `cache_hits` and `cache_misses` are new texts
    that the cache had, and that have to be embedded: a text counts when it comes into the index, not when it is looked
    up again because its vector waits.
    """

    documents: int = 0
    unchanged: int = 0
    deleted: int = 0
    failed: int = 0
    added: int = 0
    removed: int = 0
    vectors_missing: int = 0
    unfinished: int = 0
    commits: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    again: Transient | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Difference between one document, or one slice of a transcript, and one store, without vectors.

    `messages` counts those that were read of a transcript. After a `resumable` slice, a later run may go on; a slice
    that ends inside a line is none, since the next run reads that line again. `meanings` are texts of a curated note
    that get vectors in the cache only.
    """

    write: DocumentWrite
    messages: int = 0
    resumable: bool = False
    meanings: tuple[str, ...] = ()


@dataclass(slots=True)
class CommitBatch:
    """Documents of one commit: `plans`, `other_changes` without new chunks, and `done` documents without a change.

    The texts of the hashes in `unpaid` wait for a consent to their cost.
    """

    plans: list[Plan] = field(default_factory=list)
    other_changes: list[DocumentChange] = field(default_factory=list)
    done: list[DocumentKey] = field(default_factory=list)
    chunks: int = 0
    vectors: dict[str, VectorOutcome] = field(default_factory=dict)
    unpaid: set[str] = field(default_factory=set)
    ticket: Ticket | None = None
    deadline: float = 0.0

    def __len__(self) -> int:
        return len(self.plans) + len(self.other_changes) + len(self.done)

    @property
    def full(self) -> bool:
        """Return True if the batch is large enough to commit."""
        return self.chunks >= MAX_CHUNKS_PER_COMMIT or len(self) >= MAX_DOCUMENTS_PER_COMMIT

    def add(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.chunks += len(plan.write.added)
