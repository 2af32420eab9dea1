"""BM25 as FTS5 computes it, over the streams of an agent's words, which searching processes hold in memory.

Streams stand one after the other in segments of some megabytes, whose tokens are sorted by their first bytes: a search
looks only at tokens that begin like a term. A commit appends to the last segment.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from memory.store.postgres.connection import Connection, Database
from memory.store.reader import Hit
from schemas.agents import Scope

#: Indexes of chunks, ascending, and the number of occurrences in each.
Occurrences: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]

#: Bytes of streams from which a segment is full, and bytes of all agents' words in a process's memory.
SEGMENT_BYTES, MAX_RESIDENT_BYTES = 4 * 1024**2, 128 * 1024**2
#: Chunks that are read at once, and patterns whose occurrences a segment keeps: a search repeats them.
PAGE_ROWS, CACHED_PATTERNS = 5_000, 100

# FTS5's constants (https://sqlite.org/src/file/ext/fts5/fts5_aux.c).
_K1, _B, _LEAST_IDF = 1.2, 0.75, 1e-6
# With 4 bytes a search of 80 MB takes three times as long, with 8 the first one half as long again.
_SORTED_BYTES, _COMPARED_BYTES = 6, 8
_PADDING = b" " * 2 * _COMPARED_BYTES

# As one array: rows take ten times as long.
SELECT_IDS = """
SELECT coalesce(string_agg(int8send(id), ''::bytea ORDER BY id), '')
FROM recalld.chunks WHERE tenant = %s AND agent = %s AND generation = %s
"""
SELECT_STREAMS = """
SELECT id, convert_to(words, 'UTF8'), convert_to(users_words, 'UTF8') FROM recalld.chunks
WHERE tenant = %s AND agent = %s AND generation = %s AND id > %s ORDER BY id LIMIT %s
"""


class Segment:
    """Streams of chunks by ascending ids. Thread-safe."""

    def __init__(self, streams: Sequence[tuple[int, bytes]]) -> None:
        self.ids = np.array([id_ for id_, _ in streams], dtype=np.int64)
        self.data = b"".join((*(stream for _, stream in streams), _PADDING))
        self._ends = np.cumsum([len(stream) for _, stream in streams], dtype=np.int64)
        is_space = np.frombuffer(self.data, dtype=np.uint8) == ord(" ")
        places = (np.flatnonzero(is_space[:-1] & ~is_space[1:]) + 1).astype(np.int32)
        self.sizes = np.diff(np.searchsorted(places, self._ends), prepend=0)
        # The last bytes come first, two at a time: numpy sorts numbers of 16 bits by radix, in a fifth of the time.
        for at in range(_SORTED_BYTES - 2, -1, -2):
            places = places[np.argsort(self._read(">u2", places, at).astype(np.uint16), kind="stable")]
        self._places = places
        self.nbytes = len(self.data) + places.nbytes + self.ids.nbytes + self.sizes.nbytes + self._ends.nbytes
        self._cached: dict[bytes, Occurrences] = {}

    def streams(self) -> Iterator[tuple[int, bytes]]:
        """Yield ids and streams."""
        ends = self._ends.tolist()
        for id_, start, end in zip(self.ids.tolist(), [0, *ends], ends, strict=False):
            yield id_, self.data[start:end]

    def occurrences(self, pattern: bytes) -> Occurrences:
        """Return the occurrences of a pattern."""
        if (occurrences := self._cached.get(pattern)) is None:
            counts = np.bincount(np.searchsorted(self._ends, self._matches(pattern), side="right"))
            chunks = np.flatnonzero(counts)
            occurrences = chunks.astype(np.int32), counts[chunks].astype(np.int32)
            self._cached = {**(self._cached if len(self._cached) < CACHED_PATTERNS else {}), pattern: occurrences}
        return occurrences

    def _matches(self, pattern: bytes) -> npt.NDArray[np.int32]:
        """Return the places of the tokens at which the pattern begins."""
        first = pattern[:_SORTED_BYTES]
        beginning: Callable[[int], bytes] = lambda place: self.data[place : place + len(first)]  # noqa: E731
        low = bisect_left(self._places, first, key=beginning)
        places = self._places[low : bisect_right(self._places, first, low, key=beginning)]
        for at in range(_SORTED_BYTES, len(pattern), _COMPARED_BYTES):
            piece = pattern[at : at + _COMPARED_BYTES]
            mask = np.uint64((1 << 8 * len(piece)) - 1)
            places = places[self._read("<u8", places, at) & mask == np.uint64(int.from_bytes(piece, "little"))]
        return places

    def _read(self, number_type: str, places: npt.NDArray[np.int32], at: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the numbers that begin so many bytes behind these places."""
        dtype = np.dtype(number_type)
        all_numbers = np.ndarray((len(self.data) - dtype.itemsize + 1,), dtype, self.data, strides=(1,))
        numbers: npt.NDArray[np.unsignedinteger] = all_numbers[places + np.int32(at)]
        return numbers


class WordIndex:
    """One kind of words of an agent's chunks as of one commit. Thread-safe."""

    def __init__(self, segments: Iterable[Segment], present_ids: npt.ArrayLike) -> None:
        self.segments = tuple(segments)
        self.nbytes = sum(segment.nbytes for segment in self.segments)
        empty = np.empty(0, dtype=np.int64)
        self.ids = np.concatenate([empty, *(segment.ids for segment in self.segments)])
        sizes = np.concatenate([empty, *(segment.sizes for segment in self.segments)])
        self._is_present = np.isin(self.ids, present_ids, assume_unique=True)
        #: Number of chunks.
        self.chunks = int(np.count_nonzero(self._is_present))
        average = max(int(sizes[self._is_present].sum()), 1) / max(self.chunks, 1)
        self._norms = _K1 * (1 - _B + _B * sizes / average)

    def renewed(self, present_ids: npt.NDArray[np.int64], added: Sequence[tuple[int, bytes]]) -> WordIndex:
        """Return the index as of a later commit, with its new chunks, and without those that are not present."""
        segments, streams = list(self.segments), list(added)
        while streams and segments and (len(segments[-1].data) < SEGMENT_BYTES or 2 * self.chunks < self.ids.size):
            present = set(np.intersect1d(segments[-1].ids, present_ids).tolist())
            streams = [pair for pair in segments.pop().streams() if pair[0] in present] + streams
        return WordIndex([*segments, *([Segment(streams)] if streams else ())], present_ids)

    def counts(self, patterns: Iterable[bytes]) -> list[int]:
        """Return the number of chunks with each of these patterns."""
        return [int(np.count_nonzero(self._is_present[self._occurrences(pattern)[0]])) for pattern in patterns]

    def best(self, patterns: Iterable[bytes], k: int, passing: Callable[[list[int]], set[int]] = set) -> list[Hit]:
        """Return the k best chunks by BM25, equal ones by id. `passing`, which gets the best ids first, is a filter."""
        scores = self._scores(patterns)
        chunks = np.flatnonzero(scores)
        ranked = chunks[np.argsort(-scores[chunks], kind="stable")]
        hits, start, end = list[Hit](), 0, k
        while len(hits) < k and start < ranked.size:
            ids = self.ids[ranked[start:end]].tolist()
            passing_ids = passing(ids)
            pairs = zip(ids, scores[ranked[start:end]].tolist(), strict=True)
            hits += [Hit(*pair) for pair in pairs if pair[0] in passing_ids]
            start, end = end, 4 * end
        return hits[:k]

    def scores(self, patterns: Iterable[bytes], ids: Sequence[int]) -> dict[int, float]:
        """Return the BM25 of these chunks, without chunks that hold none of the patterns."""
        scores = self._scores(patterns)
        chunks = np.flatnonzero(np.isin(self.ids, ids) & (scores > 0))
        return dict(zip(self.ids[chunks].tolist(), scores[chunks].tolist(), strict=True))

    def _scores(self, patterns: Iterable[bytes]) -> npt.NDArray[np.float64]:
        """Return the score of each chunk, by FTS5's operations in their order: equal scores are equal here, too."""
        scores = np.zeros(self.ids.size)
        for pattern in patterns:
            chunks, counts = self._occurrences(pattern)
            holding = int(np.count_nonzero(self._is_present[chunks]))
            idf = math.log((self.chunks - holding + 0.5) / (holding + 0.5))
            saturated = (counts * (_K1 + 1.0)) / (counts + self._norms[chunks])
            scores[chunks] += (idf if idf > 0 else _LEAST_IDF) * saturated
        scores[~self._is_present] = 0.0
        return scores

    def _occurrences(self, pattern: bytes) -> Occurrences:
        """Return the occurrences of a pattern, also in chunks that are gone."""
        occurrences = [(np.empty(0, dtype=np.int32),) * 2]
        first = 0
        for segment in self.segments if pattern else ():
            chunks, counts = segment.occurrences(pattern)
            occurrences.append((chunks + np.int32(first), counts))
            first += segment.ids.size
        chunks, counts = map(np.concatenate, zip(*occurrences, strict=True))
        return chunks, counts


class AgentWords(NamedTuple):
    """Words of a generation's chunks as of one commit: all of them, and the users' in transcripts."""

    commit: int
    all: WordIndex
    users: WordIndex

    @property
    def nbytes(self) -> int:
        """Return the bytes that they take in memory."""
        return self.all.nbytes + self.users.nbytes


class ResidentWords:
    """Words of the generations that a process searches, the least recently searched ones evicted first. Thread-safe."""

    def __init__(self, *, max_bytes: int = MAX_RESIDENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._resident: OrderedDict[tuple[Database, Scope, str], AgentWords] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()
        self._renewing = [threading.Lock() for _ in range(1024)]

    def of(self, connection: Connection, database: Database, scope: Scope, generation: str, commit: int) -> AgentWords:
        """Return the words as of the commit that the connection's transaction sees; read new chunks only."""
        key, bindings = (database, scope, generation), (scope.tenant, scope.agent, generation)
        none = AgentWords(-1, WordIndex((), ()), WordIndex((), ()))
        with self._renewing[hash(key) % len(self._renewing)]:
            words = self._resident.get(key, none)
            if words.commit != commit:
                words = _renewed(connection, bindings, words, commit)
            with self._lock:
                self._nbytes += words.nbytes - self._resident.pop(key, none).nbytes
                self._resident[key] = words
                while self._nbytes > self._max_bytes and len(self._resident) > 1:
                    self._nbytes -= self._resident.popitem(last=False)[1].nbytes
        return words


def _renewed(connection: Connection, bindings: tuple[str, ...], words: AgentWords, commit: int) -> AgentWords:
    _, every, users = words
    last, is_whole = int(every.ids.max(initial=0)), False
    ids = _present_ids(connection, bindings) if last else every.ids
    while not is_whole:
        rows = connection.execute(SELECT_STREAMS, (*bindings, last, PAGE_ROWS), binary=True).fetchall()
        if not words.all.ids.size:  # all chunks are new
            ids = np.append(ids, [row[0] for row in rows]).astype(np.int64)
        every = every.renewed(ids, [(id_, stream) for id_, stream, _ in rows])
        users = users.renewed(ids, [(id_, stream) for id_, _, stream in rows if stream])
        last, is_whole = rows[-1][0] if rows else last, len(rows) < PAGE_ROWS
    return AgentWords(commit, every, users)


def _present_ids(connection: Connection, bindings: tuple[str, ...]) -> npt.NDArray[np.int64]:
    [(raw_ids,)] = connection.execute(SELECT_IDS, bindings, binary=True)
    return np.frombuffer(raw_ids, dtype=">i8").astype(np.int64)
