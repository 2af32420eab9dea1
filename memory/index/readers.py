"""Open indexes of a process: shared by its threads, opened anew after a flip, bounded in number.

Searches share readers of answering generations, jobs of workers share indexers.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from memory.index.generations import Generations
from memory.store.sqlite.reader import StoreReader


class Closable(Protocol):
    """Resource that is closed after its last user."""

    def close(self) -> None:
        """Close it."""


T = TypeVar("T", bound=Closable | None)

#: Largest number of open indexes.
MOST_OPEN = 128

#: Number of indexes that may be open even with few descriptors.
FEWEST_OPEN = 8

#: Descriptors for everything else: files, connections of clients and to providers.
RESERVED_DESCRIPTORS = 138

#: Descriptors of an open index with two connections: the database, its log and the log's index.
DESCRIPTORS_PER_INDEX = 6


def most_open() -> int:
    """Return the number of indexes that this process may keep open under its limit of open files (`ulimit -n`)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MOST_OPEN
    return max(FEWEST_OPEN, min(MOST_OPEN, (limit - RESERVED_DESCRIPTORS) // DESCRIPTORS_PER_INDEX))


class OpenIndexes:
    """Open indexes of a process, the least recently used first. Thread-safe.

    An index in use is closed after its last user. Until then there may be more than the limit: one for each thread.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most_open() if most is None else most
        self._lock = threading.Lock()
        self._open: OrderedDict[SharedIndex[Any], None] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def used(self, index: SharedIndex[Any]) -> list[SharedIndex[Any]]:
        """Record the use of an open index; return the indexes beyond the limit, which should rest."""
        with self._lock:
            self._open[index] = None
            self._open.move_to_end(index)
            return list(islice(self._open, max(0, len(self._open) - self._most)))

    def let_go(self) -> None:
        """Close replaced generations, whose files are gone, without waiting for their next lease."""
        with self._lock:
            indexes = list(self._open)
        for index in indexes:
            index.let_go()

    def closed(self, index: SharedIndex[Any]) -> None:
        """Record that an index is closed."""
        with self._lock:
            self._open.pop(index, None)


class SharedIndex(Generic[T]):
    """One agent's index, shared by the threads of a process.

    `opened` opens it; None is not kept. Each lease compares the `token`: a changed one has the index opened anew, and
    the earlier one is closed after its last user. `open_indexes` bounds the number of open indexes: the least recently
    used one rests until its next lease.
    """

    def __init__(
        self, opened: Callable[[], T], *, token: Callable[[], object], open_indexes: OpenIndexes | None = None
    ) -> None:
        self._opened = opened
        self._token_now = token
        self._open_indexes = open_indexes
        self._lock = threading.Lock()
        self._token: object = None
        self._open: _Open[T] | None = None
        self._closed = False

    def visit(self) -> AbstractContextManager[T]:
        """Lease for a round over many agents: a resting index rests again afterwards, and makes no other one rest."""
        return self.lease(passing=True)

    @contextmanager
    def lease(self, *, passing: bool = False) -> Iterator[T]:
        """Yield the index, which is not closed during the block.

        Raises:
            StoreCorrupt, StoreUnreadable: the generation exists and cannot be opened.
            RuntimeError: this index is closed.
        """
        entry = self._take(passing=passing)
        try:
            yield entry.index
        finally:
            with self._lock:
                _release(entry)

    def close(self) -> None:
        """Close once the last lease is returned. Later calls to `lease` raise RuntimeError."""
        with self._lock:
            self._closed = True
            self._retire()

    def rest(self) -> None:
        """Close once the last lease is returned; the next lease opens the index anew."""
        with self._lock:
            self._retire()

    def let_go(self) -> None:
        """Rest if the generation was replaced."""
        with self._lock:
            if self._open is not None and self._token_now() != self._token:
                self._retire()

    def _take(self, *, passing: bool) -> _Open[T]:
        resting: list[SharedIndex[Any]] = []
        with self._lock:
            if self._closed:
                raise RuntimeError("this index is closed")
            token = self._token_now()
            entry = self._open
            # Without an index, the next call looks for the pointer again.
            if entry is None or token != self._token:
                entry = _Open(self._opened())
                self._retire()
                if not passing and entry.index is not None:
                    self._open, self._token = entry, token
                    entry.users += 1
            entry.users += 1
            if self._open_indexes is not None and self._open is not None and not passing:
                resting = self._open_indexes.used(self)
        # This index's lock is free by now: each of the others has its own.
        for other_index in resting:
            other_index.rest()
        return entry

    def _retire(self) -> None:
        """Take the index out of service; its last user closes it."""
        if self._open_indexes is not None:
            self._open_indexes.closed(self)
        if self._open is not None:
            _release(self._open)
        self._open = None


class SharedReader(SharedIndex[StoreReader | None]):
    """Reader of one agent's answering generation, shared by all its searches; None without an index."""

    def __init__(self, generations: Generations, *, open_indexes: OpenIndexes | None = None) -> None:
        super().__init__(generations.open_reader, token=generations.token, open_indexes=open_indexes)


@dataclass(slots=True)
class _Open(Generic[T]):
    """Open index and the number of its users, with the `SharedIndex` that lends it."""

    index: T
    users: int = 0


def _release(entry: _Open[T]) -> None:
    """Take one user away; the last one closes the index."""
    entry.users -= 1
    if entry.users == 0 and entry.index is not None:
        entry.index.close()
