"""What a search has to know of an index's size, found out once for every revision of it."""

from __future__ import annotations

from dataclasses import dataclass

from memory.store.reader import StoreReader

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
