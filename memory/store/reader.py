"""Contract of every store for readers of a generation, and the values that they return."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey, FileStat
from schemas.lazy_module import LazyModule
from schemas.status import DeadLetter, IndexCounts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

#: One embedding: float32, shape (dimensions,), unit length.
Vector: TypeAlias = "npt.NDArray[np.float32]"


class VectorState(StrEnum):
    """State of a chunk's vector. `chunks_vec` holds exactly the ready ones. An unread chunk is complete without.

    A held chunk waits for the user's consent to its cost.
    """

    READY = "ready"
    PENDING = "pending"
    REFUSED = "refused"
    UNREAD = "unread"
    HELD = "held"


#: Number of unchanged readings after which a new change time alone causes no further one. On some systems change times
#: move by themselves, or a program links all files every night.
MOST_TOUCHES = 10


#: Largest number of documents of one file name that `StoreReader.named` returns.
MOST_NAMED = 100

#: Newest chunks of an index that get sentences.
MOST_WITH_SENTENCES = 20_000

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
class TranscriptPosition:
    """Place up to which a transcript has been indexed, with the state to continue from.

    `offset` (bytes) is the end of the part that was read; `lines` counts its lines, and `digest` is its hex digest.
    `state` is JSON of the transcript reader, opaque to the store.
    """

    offset: int
    lines: int
    digest: str
    state: str

    def is_of(self, position: TranscriptPosition) -> bool:
        """Return True if both positions cover the same lines."""
        return (self.offset, self.lines, self.digest) == (position.offset, position.lines, position.digest)


#: Position at the start of a file.
NOWHERE = TranscriptPosition(0, 0, "", "")


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Chunk without its text, enough to compute a difference.

    A negative `ordinal` means a stale chunk: it was at -1 - ordinal of a transcript that is being read again. Searches
    find it until the new version moves or removes it. A chunk with a `refusal` will never have a vector.
    """

    id: int
    text_hash: str
    ordinal: int
    start_line: int
    end_line: int
    vector_state: VectorState
    refusal: str | None = None


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
class Hit:
    """Candidate of a search: chunk id and score, higher is better (cosine, or BM25 made positive)."""

    id: int
    score: float


@dataclass(frozen=True, slots=True)
class Span:
    """Time from `start` to before `end`, in Unix seconds, and its first and last day (`YYYY-MM-DD`)."""

    start: float = -math.inf
    end: float = math.inf
    first_day: str = ""
    last_day: str = "9999"


@dataclass(frozen=True, slots=True)
class ChunkFilter:
    """Sources, or paths of single transcripts, which stand for their archives, too; and the time of their chunks."""

    sources: Sequence[str] = (MEMORY_SOURCE, SESSIONS_SOURCE)
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class TermCounts:
    """Number of chunks, and number of chunks that hold each term of a query, by the names of `match_terms`.

    Accurate enough to weigh terms: it may be one commit older than the search that uses it.
    """

    chunks: int
    holding: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class SentenceSigns:
    """Sentences of one text: `signs` of their vectors, packed bits, shape (sentences, dimensions / 8).

    `is_users` is True for a user's sentence and for all of a note.
    """

    signs: npt.NDArray[np.uint8]
    is_users: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, vectors: npt.NDArray[np.float32], is_users: Sequence[bool]) -> SentenceSigns:
        """Pack the vectors of sentences."""
        return cls(np.packbits(vectors > 0, axis=1), np.array(is_users, dtype=np.bool_))


class Flaw(str):
    """Sentence about a fault of a store. `rows` counts orphaned rows, and rows that lack their counterpart."""

    rows = 0


class StoreReader(Protocol):
    """Read access to one generation of an agent's index, for several threads. Reads committed transactions only.

    It works during writes, and never waits for them.

    Raises, from every method:
        StoreUnreadable: the store cannot be read.
        StoreCorrupt: its contents are damaged.
    """

    @property
    def name(self) -> str:
        """Return the generation's name."""

    @property
    def vector_reason(self) -> str | None:
        """Return the reason why vectors are neither searched nor stored; None if they are. Chunks stay pending."""

    @property
    def text_reason(self) -> str | None:
        """Return the reason why this process can neither search nor write keywords, None if it can."""

    def meta(self, name: str) -> str | None:
        """Return one of the facts by its name, None without it. "fingerprint" and "dimensions" are among them."""

    def revision(self, key: DocumentKey) -> int:
        """Return the document's revision, to be read before the source and handed back with the commit.

        The revision of a known document is positive and grows with each of its commits. For an unknown document it is
        minus the number of all deletions (0 or less): a document that was added and deleted in between is noticed, too.
        """

    def file(self, key: DocumentKey) -> IndexedFile | None:
        """Return the facts about one document's source, None if it is unknown."""

    def changes(
        self,
        source: str | None = None,
        *,
        under: str = "",
        since: float = 0.0,
        until: float = math.inf,
        limit: int = -1,
    ) -> list[tuple[DocumentKey, float]]:
        """Return documents and the Unix times of their last changes, newest first: of a source, below a folder."""

    def beginnings(self, keys: Collection[DocumentKey]) -> list[tuple[IndexedFile, str]]:
        """Return those of these documents that the index has, with the beginnings of their texts."""

    def files(self) -> Iterator[IndexedFile]:
        """Yield all documents, page by page, in any order.

        A document that exists all the while comes at least once, in its state at the time its page is read.
        """

    def chunks_by_path(self, source: str) -> dict[str, int]:
        """Return the number of chunks of every document of a source, by path."""

    def transcript(self, key: DocumentKey) -> TranscriptPosition | None:
        """Return the position of a transcript, None for another or an unknown document."""

    def chunks_of(self, key: DocumentKey, *, first: int = 0) -> list[StoredChunk]:
        """Return the document's chunks by ordinal from the `first` one on, then the stale ones by former ordinals."""

    def named(self, folder: str, name: str) -> list[DocumentKey]:
        """Return the documents of a file name as it is and with any ending, at most `MOST_NAMED` of each, newest first.

        ASCII letters match in any case. `folder` is the end of the document's folders, with a slash at both ends. The
        name of a Codex rollout is the part after its time.
        """

    def begun_by(self, text_hash: str) -> list[DocumentKey]:
        """Return the transcripts whose first chunk has this text hash, at most `MOST_BEGUN` of them."""

    def times_of(self, ids: Sequence[int]) -> dict[int, float]:
        """Return the Unix times of the messages in chunks, without chunks of notes and chunks without a time."""

    def chunk_rows(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        """Return chunks by id, without the ids that are gone."""

    def texts_holding(
        self, words: Sequence[str], keys: Collection[DocumentKey]
    ) -> list[tuple[DocumentKey, int, str | None]]:
        """Return each of these documents, its inode, and the text of a chunk that holds one of the words.

        A document comes once for each such chunk, and with None if it has none. The inode of a forgotten one is 0.
        """

    def pending_hashes(self, limit: int | None = None, *, among: Collection[str] | None = None) -> dict[int, str]:
        """Return the text hash of every chunk that waits for a vector, by chunk id, oldest first. Reads no text.

        `limit` is the largest number of chunks, and `among` has the text hashes that count.
        """

    def held_hashes(self, limit: int | None = None, *, after: int = 0) -> dict[int, str]:  # noqa: ARG002 - see below
        """Return the text hashes of held chunks by chunk id, of those with ids above `after`, oldest first.

        A fleet's store holds none: a tenant's budget is its consent.
        """
        return {}

    def refused_chunks(self, key: DocumentKey) -> list[StoredChunk]:
        """Return the document's refused chunks, in the order of `chunks_of`."""
        return [chunk for chunk in self.chunks_of(key) if chunk.vector_state is VectorState.REFUSED]

    def vectors_by_hash(self, text_hashes: Sequence[str]) -> dict[str, Vector]:
        """Return the stored vectors of these texts."""

    def vectors_of(self, ids: Sequence[int]) -> dict[int, Vector]:
        """Return vectors by chunk id, without chunks that have none."""

    def search_vectors(self, vector: Vector, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        """Return the k nearest chunks by cosine, best first; none if the index holds no vectors.

        Raises:
            VectorSearchUnavailable: the index holds vectors that cannot be searched.
        """

    def vector_scores(self, vector: Vector, ids: Sequence[int]) -> dict[int, float]:
        """Return the cosine of these chunks, without chunks that have no vector."""

    def search_text(self, query: str, k: int, within: ChunkFilter | None = None) -> list[Hit]:
        """Return the k best chunks by BM25 for any of the query's terms, best first.

        `query` is plain text of a user: it is segmented and quoted here, never read as operators.

        Raises:
            KeywordsUnavailable: see `text_reason`.
        """

    def text_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        """Return the BM25 of these chunks for the query, without chunks that hold none of its terms."""

    def user_scores(self, query: str, ids: Sequence[int]) -> dict[int, float]:
        """Return the BM25 of the users' words in these chunks of transcripts, without chunks whose users use no term.

        It is empty until a writer has added the words to an index of an older version.
        """

    def sentence_signs(self, ids: Sequence[int]) -> dict[int, SentenceSigns]:
        """Return the sentences of these chunks, without chunks that have none (yet)."""

    def lacking_sentences(self, limit: int) -> dict[int, str]:
        """Return the text hash of each chunk whose sentences are to be embedded, by chunk id, newest first."""

    def lacks_users_words(self) -> bool:
        """Return True if an older version left out the users' words of some chunks."""

    def sentence_counts(self) -> tuple[int, int]:
        """Return the numbers of chunks whose sentences are embedded, and of those whose sentences should be."""

    def all_sentences(self) -> Iterator[dict[str, SentenceSigns]]:
        """Yield the sentences of all texts by text hash, page by page."""

    def term_counts(self, query: str) -> TermCounts:
        """Return the number of chunks that hold each of the query's terms, in all sources."""

    def dead_letters(self) -> list[DeadLetter]:
        """Return the documents that could not be indexed, or only in part, newest first."""

    def counts(self) -> IndexCounts:
        """Return row counts and sizes."""

    def vectors_pending(self) -> int:
        """Return the number of chunks that wait for a vector. Cheaper than `counts`."""

    def unread_scripts(self) -> dict[str, int]:
        """Return the scripts that the model does not read, and how many documents have chunks in each, most first."""

    def unread_among(self, ids: Sequence[int]) -> set[int]:
        """Return the chunks among some that the model does not read."""

    def snapshot(self) -> AbstractContextManager[object]:
        """Let this thread's calls within the context read one state, where that is cheaper than one for each call."""

    def look_up(self, keys: Collection[DocumentKey]) -> None:  # noqa: ARG002 - a file is quick
        """Read the facts of documents at once, where that is cheaper than one by one."""
        return

    def change_token(self) -> object:
        """Return a value that differs after any commit of any process. Cheap."""
        return self.name, self.meta("transactions")

    def check(self) -> list[Flaw]:
        """Check the consistency of the store; return one sentence per finding.

        Every chunk has its keywords, exactly the ready ones have a vector, every chunk and every position has its
        document, only transcripts have stale chunks, and the database's own check passes.
        """

    def close(self) -> None:
        """Release all resources; calls in other threads finish first."""
