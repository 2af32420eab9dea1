"""Cheap facts about an index that every request needs: its counts and its size, read once after each change."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s

import structlog

from memory.index.generations import Generations, Looks
from memory.index.readers import SharedReader
from memory.store.reader import IndexCounts, StoreReader
from schemas.errors import RecalldError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Figures:
    """Row counts of an index. `revision` differs after every commit."""

    counts: IndexCounts
    dead_letters: int
    revision: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe: `problem` is the reason why the index cannot be opened; without an index `figures` is None."""

    problem: str | None = None
    figures: Figures | None = None


class IndexProbe:
    """Probe of one agent's index. Thread-safe: two threads may read the same."""

    def __init__(self, agent: str, generations: Generations, reader: SharedReader) -> None:
        self._agent = agent
        self._generations = generations
        self._reader = reader
        self._last: tuple[Looks, ProbeResult] | None = None
        self._problem: str | None = None

    def last(self) -> ProbeResult | None:
        """Return the result of the last probe; None without one, or if the index may have changed since."""
        try:
            looks = self._generations.looks()
        except RecalldError as error:
            return ProbeResult(problem=str(error))
        last = self._last
        return last[1] if last is not None and last[0] == looks and looks.settled else None

    def read(self) -> ProbeResult:
        """Open the index, if it is not open, and read its figures."""
        try:
            # First, so that a commit during the probe is in its result, or makes the next one read again.
            looks = self._generations.looks()
            with self._reader.visit() as reader:
                figures = None
                if reader is not None:
                    revision = blake2s(repr(reader.change_token()).encode(), digest_size=8).hexdigest()
                    figures = Figures(reader.counts(), len(reader.dead_letters()), revision)
        except RecalldError as error:
            # Log it once: a client may probe every two seconds.
            if str(error) != self._problem:
                _log.warning("index_probe_failed", agent=self._agent, exc_info=True)
            self._problem = str(error)
            return ProbeResult(problem=str(error))
        self._problem = None
        result = ProbeResult(figures=figures)
        self._last = (looks, result)
        return result


#: Bytes of an index (10,000 chunks with vectors of 384 dimensions) from which the keyword side gets its own thread. In
#: a smaller index both sides together are quicker than the switch of threads.
PARALLEL_FROM_BYTES = 40_000_000


@dataclass(frozen=True, slots=True)
class IndexSize:
    """Size of an index: large from `PARALLEL_FROM_BYTES` on, and the number of chunks without their vector."""

    is_large: bool
    vectors_pending: int


class IndexSizeCache:
    """Size of one agent's index at its last revision. Thread-safe: two threads may read the same."""

    def __init__(self) -> None:
        self._known: tuple[object, IndexSize] | None = None

    def get(self, reader: StoreReader, revision: object) -> IndexSize:
        """Return the size of the open index, which is at this revision (`StoreReader.change_token`)."""
        known = self._known
        if known is None or known[0] != revision:
            # `counts` reads hundreds of pages of an index that is not in memory.
            size = IndexSize(is_large=reader.size() >= PARALLEL_FROM_BYTES, vectors_pending=reader.vectors_pending())
            self._known = known = (revision, size)
        return known[1]
