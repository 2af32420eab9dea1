"""What is asked of every agent again and again: can its index be opened, how much is in it. Opened after a change."""

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
class Glance:
    """What a look into an index showed; `problem` is why there was none. `figures` is None without an index, too."""

    problem: str | None = None
    figures: Figures | None = None


class Glances:
    """One agent's. Thread-safe: two threads may look at the same."""

    def __init__(self, agent: str, generations: Generations, reader: SharedReader) -> None:
        self._agent = agent
        self._generations = generations
        self._reader = reader
        self._last: tuple[Looks, Glance] | None = None
        self._problem: str | None = None

    def last(self) -> Glance | None:
        """What the last look showed; None when there was none, or when it may show something else now."""
        try:
            looks = self._generations.looks()
        except RecalldError as error:
            return Glance(problem=str(error))
        last = self._last
        return last[1] if last is not None and last[0] == looks and looks.settled else None

    def look(self) -> Glance:
        """Open the index, if it is not open, and look."""
        try:
            # Before: what is committed while we look is seen, or found to be new by the next one.
            looks = self._generations.looks()
            with self._reader.visit() as reader:
                figures = None
                if reader is not None:
                    revision = _word_for(reader.change_token())
                    figures = Figures(reader.counts(), len(reader.dead_letters()), revision)
        except RecalldError as error:
            # Once: somebody may look every two seconds.
            if str(error) != self._problem:
                _log.warning("index_cannot_be_looked_at", agent=self._agent, exc_info=True)
            self._problem = str(error)
            return Glance(problem=str(error))
        self._problem = None
        glance = Glance(figures=figures)
        self._last = (looks, glance)
        return glance


def _word_for(token: object) -> str:
    """A word that stands for a state of the index and says nothing else."""
    return blake2s(repr(token).encode(), digest_size=8).hexdigest()


#: In a smaller index (10,000 chunks with vectors of 384 dimensions) both sides take less time than handing one of them
#: to another thread.
PARALLEL_FROM_BYTES = 40_000_000


@dataclass(frozen=True, slots=True)
class Extent:
    """Whether its size is `PARALLEL_FROM_BYTES` or more, and how many chunks wait for their vector."""

    is_large: bool
    vectors_pending: int


class KnownExtent:
    """One agent's. Thread-safe: two threads may find out the same."""

    def __init__(self) -> None:
        self._known: tuple[object, Extent] | None = None

    def of(self, reader: StoreReader, revision: object) -> Extent:
        """The extent of the index that is open, which is at this revision (`StoreReader.change_token`)."""
        known = self._known
        if known is None or known[0] != revision:
            # Not by `counts`: of an index that is on the disk it reads hundreds of pages.
            extent = Extent(is_large=reader.size() >= PARALLEL_FROM_BYTES, vectors_pending=reader.vectors_pending())
            self._known = known = (revision, extent)
        return known[1]
