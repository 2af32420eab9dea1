"""What workers may do to one generation of one agent's index. One transaction a call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from memory.store.reader import StoreReader, TranscriptMark, Vector
from schemas.documents import DocumentKey, FileStat


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk to insert. Ready with a vector, refused with a reason, else pending.

    `said_at` is the Unix time of the last message in it, None where there is none.
    """

    ordinal: int
    start_line: int
    end_line: int
    text: str
    text_hash: str
    vector: Vector | None = None
    refused: str | None = None
    said_at: float | None = None


@dataclass(frozen=True, slots=True)
class KeptChunk:
    """A chunk that stays, at its place in the new version of the document."""

    id: int
    ordinal: int
    start_line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class DocumentWrite:
    """The whole new state of one document, as the difference from what the index holds.

    `expected_revision` is what `revision` said before the source was read. `moved` lists kept chunks
    whose ordinal or lines changed. Kept chunks that did not move are not named.
    """

    key: DocumentKey
    expected_revision: int
    stat: FileStat
    content_hash: str
    added: tuple[NewChunk, ...] = ()
    moved: tuple[KeptChunk, ...] = ()
    removed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentDelete:
    """A document that is no longer there."""

    key: DocumentKey
    expected_revision: int


@dataclass(frozen=True, slots=True)
class TranscriptWrite:
    """One slice of a transcript: what reading on from `continues` to `mark` changes.

    A long transcript is written slice after slice. First the chunks with an ordinal of `keep` or more become stale
    (None: none do), then each chunk of `added` takes over the earliest stale chunk of the document with its text
    hash, or is inserted. One that is taken over keeps its id and its vector; without one it takes that of the new
    chunk. `final` deletes what is still stale. Until then it is found by every search: a transcript that is
    read anew never answers less than before.

    `continues` is the mark that the index must hold, None when it must not know the document at all. `stat` is
    what the next look at the file is compared with: a slice that leaves something to read says
    `memory.store.dead_letters.FORGOTTEN`, or nobody would come back to it after a crash.
    """

    key: DocumentKey
    continues: TranscriptMark | None
    mark: TranscriptMark
    stat: FileStat
    keep: int | None
    added: tuple[NewChunk, ...]
    final: bool
    notes: tuple[str, ...] = ()


#: What one call may do to one document.
DocumentChange: TypeAlias = DocumentWrite | DocumentDelete | TranscriptWrite


class WriteOutcome(StrEnum):
    """What became of one document's change."""

    COMMITTED = "committed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A chunk that the provider will never embed, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Maintained:
    """What a round of maintenance did: vectors moved and merges of keywords, in steps; bytes cut from the log.

    `seconds` that it took, by "vectors", "keywords" and "log", those that had nothing to do aside.
    """

    vector_steps: int = 0
    keyword_steps: int = 0
    log_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def anything(self) -> bool:
        """Whether it did anything."""
        return bool(self.vector_steps or self.keyword_steps or self.log_bytes)


class Store(StoreReader):
    """Read and write access to one generation. Several threads and processes may write; commits are serialised.

    Raises, from every writing method:
        StoreFull: the disk is full; nothing was written.
        StoreCorrupt: the file is damaged; nothing was written.
    """

    @abstractmethod
    def write(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        """Apply all changes in their order, in as few transactions as a bounded number of chunks in each allows.

        A document is in one of them, whole, as a rule. One that alone changes more chunks than a transaction should
        takes several: until the last one it holds chunks of both versions, and says of itself that it is to be looked
        at again. Each of them leaves a sound index, and after a crash in between the next look at the file ends it.

        A change whose expected revision is no longer the document's is left out and reported as a
        conflict; the others are committed. So is a slice that continues another mark than the index holds, or
        whose document is no transcript, and a `DocumentWrite` of a document that is one: that takes a
        `DocumentDelete` first. The content hash of a transcript is the digest of its mark.

        A committed document's dead letter is removed; one that holds refused chunks, new or kept, has one that
        says so (`memory.store.dead_letters`), unless all of them are old and it was dropped.

        Raises:
            KeywordsUnavailable: every chunk has to be in the keyword index, and there is none (`text_reason`).
        """

    @abstractmethod
    def rename_document(self, old: DocumentKey, new: DocumentKey) -> bool:
        """Keep everything that the index holds of a document under another key, its dead letter too.

        Its revision changes, and `old` counts as deleted. Returns False, and nothing happens, when `old` is unknown
        or `new` is known.
        """

    @abstractmethod
    def write_vectors(self, vectors: Mapping[int, tuple[str, Vector | Refusal]]) -> int:
        """Give chunks their vectors in one transaction: chunk id -> (text hash, vector or refusal).

        A chunk that is gone, or whose text hash differs, or that is not pending any more is passed over. A
        refusal is in the document's dead letter from then on, unless that says already that it could not be read.
        Returns the number of chunks changed.
        """

    @abstractmethod
    def touch(
        self, stats: Mapping[DocumentKey, FileStat], *, content_hashes: Mapping[DocumentKey, str] | None = None
    ) -> None:
        """Remember new stats of documents whose content did not change.

        With `content_hashes`, only where the index (still) holds that content: somebody else may have
        committed an older reading in between, and a fresh stat on it would hide it for ever. A document that was
        touched could be read: a dead letter that says otherwise is removed.
        """

    @abstractmethod
    def add_dead_letter(self, key: DocumentKey, *, reason: str, error_class: str, attempts: int = 1) -> None:
        """Record that a document could not be indexed, in so many attempts; a second time adds to those."""

    @abstractmethod
    def retry_dead_letter(self, key: DocumentKey) -> int:
        """Let a document be tried again: its refused chunks are pending from now on, its dead letter is removed.

        If it could not be read, its stat is forgotten, so that the next job reads it even if the file did not
        change. What fails again goes on with the attempts and the first time of its letter; what is read does not.
        Returns the number of chunks that were refused; nothing happens to a document without a letter
        and without such chunks.
        """

    @abstractmethod
    def drop_dead_letter(self, key: DocumentKey) -> bool:
        """Remove a document's dead letter and leave everything else, refused chunks too, as it is.

        Returns whether there was one.
        """

    def maintain(self, *, go_on: Callable[[], bool]) -> Maintained:  # noqa: ARG002 - for those who have something to do
        """Clear up what writing left behind, where that is worth it, in short transactions, as long as `go_on` says so.

        Nothing that is found changes. Does nothing in a store that needs none.
        """
        return Maintained()

    @abstractmethod
    def set_meta(self, values: Mapping[str, str]) -> None:
        """Set entries of the `meta` table."""
