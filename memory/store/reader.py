"""Read access to one generation of one agent's index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from schemas.documents import DocumentKey, FileStat

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: One embedding: float32, shape (dimensions,), unit length.
Vector: TypeAlias = "npt.NDArray[np.float32]"


class VectorState(StrEnum):
    """State of a chunk's vector. `chunks_vec` holds exactly the ready ones."""

    READY = "ready"
    PENDING = "pending"
    REFUSED = "refused"


#: Number of unchanged readings after which a new change time alone causes no further one. On some systems change times
#: move by themselves, or a program links all files every night.
MOST_TOUCHES = 10


#: Largest number of documents of one file name that `StoreReader.named` returns.
MOST_NAMED = 100

#: Largest number of transcripts with the same beginning that `StoreReader.begun_by` returns.
MOST_BEGUN = 100


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """Facts about a document's source at the time when it was read.

    `content_hash` is the SHA-256 hex digest of the bytes. `notes` are remarks for status, such as "invalid UTF-8 was
    replaced". `touches` counts how often the same content was found under another stat.
    """

    key: DocumentKey
    stat: FileStat
    content_hash: str
    revision: int
    indexed_at: float
    notes: tuple[str, ...] = ()
    touches: int = 0

    def stat_when_the_same(self, stat: FileStat) -> FileStat:
        """Return the stat to store after the same content was found again."""
        return stat if self.touches < MOST_TOUCHES else stat.without_ctime()


@dataclass(frozen=True, slots=True)
class TranscriptMark:
    """Place up to which a transcript has been indexed, with the state to continue from.

    `offset` (bytes) and `lines` count the part that was read; `digest` is its hex digest. `state` is JSON of the
    transcript reader, opaque to the store.
    """

    offset: int
    lines: int
    digest: str
    state: str

    def is_of(self, other: TranscriptMark) -> bool:
        """Return True if both marks cover the same lines."""
        return (self.offset, self.lines, self.digest) == (other.offset, other.lines, other.digest)


#: Mark at the start of a file.
NOWHERE = TranscriptMark(0, 0, "", "")


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Chunk without its text, enough to compute a difference.

    A negative `ordinal` marks a stale chunk: it was at -1 - ordinal of a transcript that is being read again. Searches
    find it until the new version moves or removes it.
    """

    id: int
    text_hash: str
    ordinal: int
    start_line: int
    end_line: int
    vector_state: VectorState


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """Chunk with its text, for an answer. The `ordinal` of a stale chunk is its former one."""

    id: int
    key: DocumentKey
    ordinal: int
    start_line: int
    end_line: int
    text: str


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """Chunk that waits for its vector."""

    id: int
    text_hash: str
    text: str


@dataclass(frozen=True, slots=True)
class RefusedChunk:
    """Chunk that will never have a vector, with the reason. Keyword search finds it."""

    id: int
    start_line: int
    end_line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Hit:
    """Candidate of a search: chunk id and score, higher is better (cosine, or BM25 made positive)."""

    id: int
    score: float


@dataclass(frozen=True, slots=True)
class TermCounts:
    """Number of chunks, and number of chunks that hold each term of a query, by `QueryTerm.text`.

    Accurate enough to weigh terms: it may be one commit older than the search that uses it.
    """

    chunks: int
    holding: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IndexCounts:
    """Row counts and sizes, for status. `last_commit_at` is Unix time, None before the first commit.

    `deleted_on_disk` counts deleted chunks whose words may still be in the file, the first one since `deleted_since`.
    """

    files: int = 0
    chunks: int = 0
    vectors_ready: int = 0
    vectors_pending: int = 0
    vectors_refused: int = 0
    last_commit_at: float | None = None
    disk_bytes: int = 0
    deleted_on_disk: int = 0
    deleted_since: float | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """Document that could not be indexed, or only in part, with the reason in words.

    `error_class` is `memory.store.dead_letters.EMBEDDING_REFUSED` if only some of its vectors are missing.
    """

    key: DocumentKey
    reason: str
    error_class: str
    attempts: int
    first_at: float
    last_at: float


class Flaw(str):
    """Sentence about a fault of a store. `rows` counts rows that belong to nothing, or lack what belongs to them."""

    rows = 0


class StoreReader(ABC):
    """Read access to one generation. Thread-safe. Sees committed transactions only."""

    @property
    def vector_reason(self) -> str | None:
        """Return the reason why vectors are neither searched nor stored, None if they are. Chunks stay pending
        meanwhile."""
        return None

    @property
    def text_reason(self) -> str | None:
        """Return the reason why this process can neither search nor write keywords, None if it can."""
        return None

    @abstractmethod
    def meta(self, name: str) -> str | None:
        """Return one entry of the `meta` table, None without it. "fingerprint" and "dimensions" are read with it."""

    @abstractmethod
    def revision(self, key: DocumentKey) -> int:
        """Return the document's revision, to be read before the source and handed back with the commit.

        The revision of a known document is positive and grows with each of its commits. For an unknown document it is
        minus the number of all deletions (0 or less): a document that was added and deleted in between is noticed, too.
        """

    @abstractmethod
    def file(self, key: DocumentKey) -> IndexedFile | None:
        """Return the facts about one document's source, None if it is unknown."""

    @abstractmethod
    def files(self) -> Iterator[IndexedFile]:
        """Yield all documents, page by page, in any order.

        A document that exists all the while comes at least once, in its state at the time its page is read.
        """

    @abstractmethod
    def chunks_by_path(self, source: str) -> dict[str, int]:
        """Return the number of chunks of every document of a source, by path."""

    @abstractmethod
    def transcript(self, key: DocumentKey) -> TranscriptMark | None:
        """Return the mark of a transcript, None for another or an unknown document."""

    @abstractmethod
    def chunks_of(self, key: DocumentKey, *, first: int = 0) -> list[StoredChunk]:
        """Return the document's chunks by ordinal from the `first` one on, then the stale ones by former ordinals."""

    @abstractmethod
    def named(self, folder: str, name: str) -> list[DocumentKey]:
        """Return the documents of a file name as it is and with any ending, at most `MOST_NAMED` of each, newest first.

        ASCII letters match in any case. `folder` is the end of the document's folders, with a slash at both ends. The
        name of a Codex rollout is the part after its time. An index that no writer has opened since version 3 finds
        none.
        """

    @abstractmethod
    def begun_by(self, text_hash: str) -> list[DocumentKey]:
        """Return the transcripts whose first chunk has this text hash, at most `MOST_BEGUN` of them."""

    @abstractmethod
    def chunk_rows(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        """Return chunks by id, without the ids that are gone."""

    @abstractmethod
    def texts_holding(
        self, words: Sequence[str], keys: Collection[DocumentKey]
    ) -> list[tuple[DocumentKey, int, str | None]]:
        """Return each of these documents, its inode, and the text of a chunk that holds one of the words.

        A document comes once for each such chunk, and with None if it has none. The inode of a forgotten one is 0.
        """

    @abstractmethod
    def times_of(self, ids: Sequence[int]) -> dict[int, float]:
        """Return the Unix times of the messages in chunks, without chunks of notes and chunks without a time."""

    @abstractmethod
    def pending_chunks(self, limit: int, *, among: Collection[str] | None = None) -> list[PendingChunk]:
        """Return the next chunks that wait for a vector, oldest id first, limited to text hashes `among` these."""

    @abstractmethod
    def pending_hashes(self) -> dict[int, str]:
        """Return the text hash of every chunk that waits for a vector, by chunk id, oldest first. Reads no text."""

    @abstractmethod
    def refused_chunks(self, key: DocumentKey) -> list[RefusedChunk]:
        """Return the document's refused chunks, in the order of `chunks_of`."""

    @abstractmethod
    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        """Return the stored vectors of these texts."""

    @abstractmethod
    def vectors_of(self, ids: Sequence[int]) -> dict[int, Vector]:
        """Return vectors by chunk id, without chunks that have none."""

    @abstractmethod
    def search_vectors(self, vector: Vector, k: int, sources: Sequence[str] | None = None) -> list[Hit]:
        """Return the k nearest chunks by cosine, best first; none if the index holds no vectors.

        `sources` may hold paths of single transcripts in place of "sessions", which stand for their archives, too.

        Raises:
            VectorSearchUnavailable: the index holds vectors that cannot be searched.
        """

    @abstractmethod
    def vector_scores(self, vector: Vector, ids: Sequence[int]) -> dict[int, float]:
        """Return the cosine of these chunks, without chunks that have no vector."""

    @abstractmethod
    def search_text(self, query: str, k: int, sources: Sequence[str] | None = None) -> list[Hit]:
        """Return the k best chunks by BM25 for any of the query's terms, best first.

        `query` is plain text of a user: it is segmented and quoted here, never read as operators. `sources` as in
        `search_vectors`.

        Raises:
            KeywordsUnavailable: see `text_reason`.
        """

    @abstractmethod
    def text_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        """Return the BM25 of these chunks for the query, without chunks that hold none of its terms."""

    @abstractmethod
    def term_counts(self, query: str) -> TermCounts:
        """Return the number of chunks that hold each of the query's terms, in all sources."""

    @abstractmethod
    def dead_letters(self) -> list[DeadLetterRow]:
        """Return the documents that could not be indexed, or only in part, newest first."""

    @abstractmethod
    def counts(self) -> IndexCounts:
        """Return row counts and sizes."""

    @abstractmethod
    def vectors_pending(self) -> int:
        """Return the number of chunks that wait for a vector. Cheaper than `counts`."""

    @abstractmethod
    def size(self) -> int:
        """Return the approximate bytes of the index, 0 for one in memory. Reads none of it."""

    @abstractmethod
    def change_token(self) -> object:
        """Return a value that differs after any commit of any process. Cheap."""

    @abstractmethod
    def check(self) -> list[Flaw]:
        """Check the consistency of the store; return one sentence per finding.

        chunks_fts has exactly the chunks' rows, chunks_vec exactly the ready ones'. Every chunk and every mark has its
        file, only transcripts have stale chunks, and the database's own integrity check passes.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources; calls in other threads finish first."""
