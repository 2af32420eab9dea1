"""Values that the reader of a generation returns (`memory.store.sqlite.reader`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from schemas.documents import MEMORY_SOURCE, SESSIONS_SOURCE, DocumentKey, FileStat

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: One embedding: float32, shape (dimensions,), unit length.
Vector: TypeAlias = "npt.NDArray[np.float32]"


class VectorState(StrEnum):
    """State of a chunk's vector. `chunks_vec` holds exactly the ready ones. An unread chunk is complete without."""

    READY = "ready"
    PENDING = "pending"
    REFUSED = "refused"
    UNREAD = "unread"


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


class Flaw(str):
    """Sentence about a fault of a store. `rows` counts orphaned rows, and rows that lack their counterpart."""

    rows = 0
