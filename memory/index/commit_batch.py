"""Documents on their way into the index together: what is to be written, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from memory.embedding.backlog import Ticket
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
    """What an indexing run did, in documents and chunks.

    `again` says why some documents were passed over and must be looked at again, None when none were. `left` are
    documents that the run had no time for, or not for all of. `commits` is the number of transactions.
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
    """How one document, or one slice of a transcript, differs from one store."""

    write: DocumentWrite | TranscriptWrite
    added: tuple[CutChunk, ...]

    @property
    def completes(self) -> bool:
        """Whether the document is up to date once this is committed."""
        return not isinstance(self.write, TranscriptWrite) or self.write.final

    def finished(self, vectors: Mapping[str, Vector | Refusal], identity: str) -> DocumentWrite | TranscriptWrite:
        """The write with its new chunks and what is known of their vectors, by text hash."""
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
class Group:
    """Documents that are committed together.

    `done` are those with nothing (more) to write; `touched` ones only have a new stat.
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
        """Whether it is time to commit it."""
        return self.chunks >= MAX_CHUNKS_PER_COMMIT or len(self) >= MAX_DOCUMENTS_PER_COMMIT

    def add(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.chunks += len(plan.added)
