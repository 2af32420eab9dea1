"""What anybody may ask of one generation of one agent's index. Reading only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from schemas.documents import DocumentKey, FileStat
from schemas.ports import IndexFigures

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: One embedding: float32, shape (dimensions,), unit length.
Vector: TypeAlias = "npt.NDArray[np.float32]"


class VectorState(StrEnum):
    """Whether a chunk has its vector. `chunks_vec` holds exactly the ready ones."""

    READY = "ready"
    PENDING = "pending"
    REFUSED = "refused"


#: A document that was found to be the same this often is not looked at again for its change time alone: where change
#: times move by themselves, or somebody links all files every night, reading has an end.
MOST_TOUCHES = 10


#: Documents with the same file name of which `StoreReader.named` tells.
MOST_NAMED = 100

#: Transcripts that begin alike of which `StoreReader.begun_by` tells.
MOST_BEGUN = 100


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """What the index knows of a document's source, as it was when it was read.

    `content_hash` is the SHA-256 hex digest of the bytes. `notes` are remarks for status, such as
    "invalid UTF-8 was replaced". `touches` counts how often the same content was found again under another stat.
    """

    key: DocumentKey
    stat: FileStat
    content_hash: str
    revision: int
    indexed_at: float
    notes: tuple[str, ...] = ()
    touches: int = 0

    def stat_when_the_same(self, stat: FileStat) -> FileStat:
        """What to remember of a file in which the same content was found again."""
        return stat if self.touches < MOST_TOUCHES else stat.without_ctime()


@dataclass(frozen=True, slots=True)
class TranscriptMark:
    """How far a transcript has been indexed: what it takes to go on there.

    `offset` (bytes) and `lines` count what was read from its beginning, `digest` is the hex digest of exactly that.
    `state` is JSON that the reading of transcripts understands; a store only keeps it.
    """

    offset: int
    lines: int
    digest: str
    state: str

    def is_of(self, other: TranscriptMark) -> bool:
        """Whether both say that the same lines were read."""
        return (self.offset, self.lines, self.digest) == (other.offset, other.lines, other.digest)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One chunk without its text: enough to tell what an edit keeps.

    A negative `ordinal` says that the chunk is stale: it was at -1 - ordinal of a transcript that is being read anew.
    It is found like every other one until the last slice of the new version takes it over or deletes it.
    """

    id: int
    text_hash: str
    ordinal: int
    start_line: int
    end_line: int
    vector_state: VectorState


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """One chunk with its text, for an answer. `ordinal` is its place, of a stale chunk the one that it had."""

    id: int
    key: DocumentKey
    ordinal: int
    start_line: int
    end_line: int
    text: str


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A chunk that waits for its vector."""

    id: int
    text_hash: str
    text: str


@dataclass(frozen=True, slots=True)
class RefusedChunk:
    """A chunk that has no vector for good, and why; keywords find it."""

    id: int
    start_line: int
    end_line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One candidate: chunk id and score, higher is better (cosine, or BM25 made positive)."""

    id: int
    score: float


@dataclass(frozen=True, slots=True)
class TermCounts:
    """How common the terms of a query are: `holding` says for each `QueryTerm.text` how many of `chunks` hold it.

    Good for weighing terms: it may be of one commit before the search that uses it.
    """

    chunks: int
    holding: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IndexCounts:
    """Row counts and sizes, for status. `last_commit_at` is Unix time, None before the first commit."""

    files: int = 0
    chunks: int = 0
    vectors_ready: int = 0
    vectors_pending: int = 0
    vectors_refused: int = 0
    last_commit_at: float | None = None
    disk_bytes: int = 0

    def figures(self, *, dead_letters: int) -> IndexFigures:
        """Return the counts that processes publish."""
        return IndexFigures(self.files, self.vectors_ready, self.vectors_pending, dead_letters, self.last_commit_at)


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """One document that could not be indexed, or not all of it, with the reason in words.

    `error_class` is `memory.store.dead_letters.EMBEDDING_REFUSED` when only some of its vectors are missing.
    """

    key: DocumentKey
    reason: str
    error_class: str
    attempts: int
    first_at: float
    last_at: float


class StoreReader(ABC):
    """Read access to one generation. Safe to use from several threads. Sees only committed transactions."""

    @property
    def vector_reason(self) -> str | None:
        """Why vectors are neither searched nor kept (their chunks stay pending), in words; None when they are."""
        return None

    @property
    def text_reason(self) -> str | None:
        """Why keywords can be neither searched nor written in this process, in words; None when they can."""
        return None

    @abstractmethod
    def meta(self, name: str) -> str | None:
        """One entry of the `meta` table, None when absent. "fingerprint" and "dimensions" are always asked so."""

    @abstractmethod
    def revision(self, key: DocumentKey) -> int:
        """The document's revision, taken before its source is read and handed back with the commit.

        Positive and growing with every commit of the document while the index knows it. For an unknown
        document: minus the number of deletions the index ever made (0 or less), so that a document that
        was added and deleted in between is noticed, too.
        """

    @abstractmethod
    def file(self, key: DocumentKey) -> IndexedFile | None:
        """What the index knows of one document."""

    @abstractmethod
    def files(self) -> Iterator[IndexedFile]:
        """All documents, in no promised order, a page at a time: what is there all the while comes at least once, as it
        is when its page is read."""

    @abstractmethod
    def chunks_by_path(self, source: str) -> dict[str, int]:
        """Path -> number of chunks, of every document of a source."""

    @abstractmethod
    def transcript(self, key: DocumentKey) -> TranscriptMark | None:
        """How far a transcript has been indexed; None for a document that is none, or that is unknown."""

    @abstractmethod
    def chunks_of(self, key: DocumentKey) -> list[StoredChunk]:
        """The document's chunks by ordinal; after them the stale ones, by the ordinals that they had."""

    @abstractmethod
    def named(self, folder: str, name: str) -> list[DocumentKey]:
        """Return the documents of a file name as it is and with any ending, at most `MOST_NAMED` of each, newest first.

        ASCII letters are of any case. `folder` is the end of the document's folders, with a slash at both ends. The
        name of a Codex rollout is what follows its time. An index that no writer has opened since version 3 has none.
        """

    @abstractmethod
    def begun_by(self, text_hash: str) -> list[DocumentKey]:
        """Return the transcripts whose first chunk has this text hash, at most `MOST_BEGUN` of them."""

    @abstractmethod
    def chunk_rows(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        """Chunks by id; ids that are gone are left out."""

    @abstractmethod
    def times_of(self, ids: Sequence[int]) -> dict[int, float]:
        """When what is in chunks was said, in Unix seconds; chunks of notes, and such without a time, are left out."""

    @abstractmethod
    def pending_chunks(self, limit: int, *, among: Collection[str] | None = None) -> list[PendingChunk]:
        """The next chunks that wait for a vector, oldest id first; only those with a text hash `among` these."""

    @abstractmethod
    def pending_hashes(self) -> dict[int, str]:
        """Chunk id -> text hash of every chunk that waits for a vector, oldest id first. Reads no text."""

    @abstractmethod
    def refused_chunks(self, key: DocumentKey) -> list[RefusedChunk]:
        """The document's chunks that a provider refused, in the order of `chunks_of`."""

    @abstractmethod
    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        """Vectors that the index already holds for these texts."""

    @abstractmethod
    def vectors_of(self, ids: Sequence[int]) -> dict[int, Vector]:
        """Vectors by chunk id; chunks without one are left out."""

    @abstractmethod
    def search_vectors(self, vector: Vector, k: int, sources: Sequence[str] | None = None) -> list[Hit]:
        """The k nearest chunks by cosine, best first. Empty when the index holds no vectors.

        Raises:
            VectorSearchUnavailable: vectors are there and cannot be searched.
        """

    @abstractmethod
    def vector_scores(self, vector: Vector, ids: Sequence[int]) -> dict[int, float]:
        """Cosine of these chunks; chunks without a vector are left out."""

    @abstractmethod
    def search_text(self, query: str, k: int, sources: Sequence[str] | None = None) -> list[Hit]:
        """The k best chunks by BM25 for any of the query's terms, best first.

        `query` is what a person typed: it is segmented and quoted here, never read as operators.

        Raises:
            KeywordsUnavailable: see `text_reason`.
        """

    @abstractmethod
    def text_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        """BM25 of these chunks for the query; chunks that hold none of its terms are left out."""

    @abstractmethod
    def term_counts(self, query: str) -> TermCounts:
        """How many chunks hold each of the query's terms, whatever their source."""

    @abstractmethod
    def dead_letters(self) -> list[DeadLetterRow]:
        """Documents that could not be indexed, or not all of them, newest first."""

    @abstractmethod
    def counts(self) -> IndexCounts:
        """Row counts and sizes."""

    @abstractmethod
    def vectors_pending(self) -> int:
        """How many chunks wait for a vector: one of the counts, without the cost of the others."""

    @abstractmethod
    def size(self) -> int:
        """Bytes of the index, about; 0 for one that is in memory. Looks at nothing in it."""

    @abstractmethod
    def change_token(self) -> object:
        """A value that differs after any commit by anybody. Cheap."""

    @abstractmethod
    def check(self) -> list[str]:
        """Look whether the store holds together; one sentence per finding, empty when sound.

        chunks_fts has exactly the chunks' rows, chunks_vec exactly the ready ones', every chunk and every
        mark has its file, only transcripts have stale chunks, and the database's own integrity check passes.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of all resources; calls in other threads finish first."""
