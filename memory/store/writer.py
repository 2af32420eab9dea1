"""Contract of every store for writers: the changes of a generation and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from memory.chunking.chunker import Chunk
from memory.store.reader import SentenceSigns, StoreReader, TranscriptPosition, Vector, VectorState
from schemas.documents import DocumentKey, FileStat


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why the provider will never embed a chunk."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unread:
    """Script of a chunk that the model does not read. The chunk has no vector, and is complete without."""

    script: str


#: A chunk's vector, or the reason why it has none. The only state among them is `HELD`.
VectorOutcome: TypeAlias = "Vector | Refusal | Unread | VectorState"


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


@runtime_checkable
class Store(StoreReader, Protocol):
    """Read and write access to one generation. Each writing method is one transaction or a few, of a bounded size.

    Reads see committed data. Several threads and processes may write; commits are serialised.

    Raises, from every writing method, which then has written nothing:
        StoreUnreadable, StoreBusy, StoreCorrupt
        StoreFull: the disk is full.
    """

    def write(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        """Apply all changes in their order, in as few transactions as the limit of chunks in each allows.

        As a rule, a document is written in one transaction. A document with more changed chunks than that takes
        several. Until the last one it holds chunks of both versions and counts as changed. Each transaction leaves a
        sound index; after a crash, the next reading of the file completes the change.

        A change that expects another revision or position is left out and reported as a conflict; others are committed.

        A committed document's dead letter is removed. A document with refused chunks, new or kept, gets one about them
        (`memory.store.dead_letters`), unless all of them are old and the user dropped the letter.

        Raises:
            KeywordsUnavailable: there is no keyword index, which every chunk has to be in (`text_reason`).
        """

    def rename_document(self, old: DocumentKey, new: DocumentKey) -> bool:
        """Move all rows of a document, including its dead letter, to another key; return True if they moved.

        Its revision changes, and `old` counts as deleted. Nothing happens if `old` is unknown or `new` is known.
        """

    def write_vectors(self, vectors: Mapping[int, tuple[str, VectorOutcome]]) -> int:
        """Give chunks their vectors: chunk id -> (text hash, outcome).

        Skips chunks that are gone, have another text hash or are no longer pending. A refusal enters the document's
        dead letter, unless the letter says that the document could not be read. Returns the number of chunks changed.
        """

    def release_held(self, ids: Collection[int]) -> int:  # noqa: ARG002 - a store that holds some uses it
        """Make those of these chunks that are held pending; return their number."""
        return 0

    def add_users_words(self) -> bool:
        """Add the users' words that an older version left out, of the newest chunks; return False if none are left."""

    def add_sentences(self, sentences: Mapping[str, SentenceSigns]) -> None:
        """Add sentences by text hash, without texts that have some or that no chunk holds."""

    def retry_dead_letter(self, key: DocumentKey) -> int:
        """Release a document for another attempt: refused chunks become pending, and its dead letter is removed.

        The stat of an unreadable document is forgotten, so that the next job reads it even if the file is unchanged. If
        it fails again, the new letter continues the attempts and the first time of the old one. Returns the number of
        released chunks.
        """

    def drop_dead_letter(self, key: DocumentKey) -> bool:
        """Remove a document's dead letter, leaving its refused chunks as they are; return True if there was one."""

    def set_meta(self, values: Mapping[str, str]) -> None:
        """Set facts by their names."""

    def add_dead_letter(self, key: DocumentKey, *, reason: str, error_class: str, attempts: int = 1) -> None:
        """Record that a document could not be indexed."""
        self.write([DocumentFailure(key, reason, error_class, attempts)])

    def maintain(self, *, go_on: Callable[[], bool], now: float) -> Maintained:
        """Clear up after writing where it is worth it, in short transactions, as long as `go_on` returns True.

        Words of chunks that were deleted a while before `now` (Unix time) are overwritten. Search results do not
        change.
        """
