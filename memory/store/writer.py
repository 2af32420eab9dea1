"""Changes that the writer of a generation carries out, and their outcomes (`memory.store.sqlite.writer`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from memory.chunking.chunker import Chunk
from memory.store.reader import TranscriptPosition, Vector
from schemas.documents import DocumentKey, FileStat


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why the provider will never embed a chunk."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unread:
    """Script of a chunk that the model does not read. The chunk has no vector, and is complete without."""

    script: str


#: A chunk's vector, or the reason why it has none.
VectorOutcome: TypeAlias = "Vector | Refusal | Unread"


@dataclass(frozen=True, slots=True)
class MovedChunk:
    """Stored chunk with its place in the new version of the document, and the time of its last message."""

    id: int
    ordinal: int
    start_line: int
    end_line: int
    said_at: float | None = None


@dataclass(frozen=True, slots=True)
class DocumentWrite:
    """New state of a document, or of the next part of a transcript, as the difference from its indexed state.

    `expected` is the result of `revision` before the source was read, or the position that this part of a transcript
    continues. `vectors` holds the outcomes of `added` chunks by text hash; other chunks are pending. `moved`
    lists kept chunks with a new ordinal or new lines. Other kept chunks are not listed.

    A transcript has a `position`, and its `content_hash` is the digest of it. A long one is written in parts; only the
    last part is `complete`. The others have the stat `memory.store.dead_letters.FORGOTTEN`, so that a worker
    continues after a crash. Chunks with an ordinal of `stale_from` or more become stale first. Searches find stale
    chunks until a part moves or removes them, so that a transcript that is read again never answers less than before.
    """

    key: DocumentKey
    expected: int | TranscriptPosition
    stat: FileStat
    content_hash: str
    added: tuple[Chunk, ...] = ()
    vectors: Mapping[str, VectorOutcome] = field(default_factory=dict)
    moved: tuple[MovedChunk, ...] = ()
    removed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    position: TranscriptPosition | None = None
    stale_from: int | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class DocumentDelete:
    """Deletion of a document."""

    key: DocumentKey
    expected: int


@dataclass(frozen=True, slots=True)
class DocumentTouch:
    """New stat of a document with unchanged content.

    It has no effect if the document has another content by now: a fresh stat would hide that for ever. A dead letter
    that calls the document unreadable is removed.
    """

    key: DocumentKey
    stat: FileStat
    content_hash: str


@dataclass(frozen=True, slots=True)
class DocumentFailure:
    """Dead letter of a document that could not be indexed in this number of attempts; repeated ones add up."""

    key: DocumentKey
    reason: str
    error_class: str
    attempts: int = 1


#: Change of one document.
DocumentChange: TypeAlias = DocumentWrite | DocumentDelete | DocumentTouch | DocumentFailure


class WriteOutcome(StrEnum):
    """Outcome of one document's change."""

    COMMITTED = "committed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Maintained:
    """Work of a round of maintenance: steps of moving vectors and of merging keywords, and bytes cut from the log.

    `seconds` are listed by "vectors", "keywords" and "log", only for parts with work.
    """

    vector_steps: int = 0
    keyword_steps: int = 0
    log_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def anything(self) -> bool:
        """Return True if the round did any work."""
        return bool(self.vector_steps or self.keyword_steps or self.log_bytes)
