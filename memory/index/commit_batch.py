"""Batches of documents that are committed together, and the report of an indexing run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from memory.embedding.batcher import Ticket
from memory.embedding.selection import NO_VECTORS
from memory.index.difference import CutChunk
from memory.store.reader import Vector
from memory.store.writer import DocumentDelete, DocumentWrite, NewChunk, Refusal, TranscriptWrite
from schemas.documents import DocumentKey, FileStat
from schemas.errors import Transient

#: New chunks in one transaction.
MAX_CHUNKS_PER_COMMIT = 500

#: Documents in one transaction.
MAX_DOCUMENTS_PER_COMMIT = 128


@dataclass(slots=True)
class IndexReport:
    """Counts of an indexing run, in documents and chunks.

    `again` is the reason why some documents need another attempt, None without any. `left` counts documents that the
    run did not finish in time. `commits` is the number of transactions.
    """

    documents: int = 0
    unchanged: int = 0
    deleted: int = 0
    failed: int = 0
    added: int = 0
    removed: int = 0
    vectors_missing: int = 0
    left: int = 0
    commits: int = 0
    again: Transient | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Difference between one document, or one slice of a transcript, and one store."""

    write: DocumentWrite | TranscriptWrite
    added: tuple[CutChunk, ...]

    @property
    def completes(self) -> bool:
        """Return True if this commit brings the document up to date."""
        return not isinstance(self.write, TranscriptWrite) or self.write.final

    def finished(self, vectors: Mapping[str, Vector | Refusal], identity: str) -> DocumentWrite | TranscriptWrite:
        """Return the write with its new chunks and their vectors or refusals, looked up by text hash."""
        added = []
        for chunk in self.added:
            value = vectors.get(chunk.text_hash) if identity != NO_VECTORS else None
            added.append(
                NewChunk(
                    ordinal=chunk.ordinal,
                    start_line=chunk.start_line,
                    end_line=chunk.end_line,
                    text=chunk.text,
                    text_hash=chunk.text_hash,
                    vector=None if isinstance(value, Refusal) else value,
                    refused=value.reason if isinstance(value, Refusal) else None,
                    said_at=chunk.said_at,
                )
            )
        return replace(self.write, added=tuple(added))


@dataclass(slots=True)
class CommitBatch:
    """Documents that are committed together.

    `done` are documents with nothing left to write. For `touched` documents only the stat changes.
    """

    plans: list[Plan] = field(default_factory=list)
    deletes: list[DocumentDelete] = field(default_factory=list)
    touched: dict[DocumentKey, FileStat] = field(default_factory=dict)
    hashes: dict[DocumentKey, str] = field(default_factory=dict)
    done: list[DocumentKey] = field(default_factory=list)
    chunks: int = 0
    vectors: dict[str, Vector | Refusal] = field(default_factory=dict)
    ticket: Ticket | None = None
    deadline: float = 0.0

    def __len__(self) -> int:
        return len(self.plans) + len(self.deletes) + len(self.touched) + len(self.done)

    @property
    def full(self) -> bool:
        """Return True if the batch is large enough to commit."""
        return self.chunks >= MAX_CHUNKS_PER_COMMIT or len(self) >= MAX_DOCUMENTS_PER_COMMIT

    def add(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.chunks += len(plan.added)
