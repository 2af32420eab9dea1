"""Readers of answering generations: shared by concurrent searches, replaced after a flip, bounded in number."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice

from memory.index.generations import Generations
from memory.store.sqlite.reader import StoreReader

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


class OpenReaders:
    """Open indexes of a process, the least recently used first. Thread-safe.

    An index in use is closed after its last user. Until then there may be more than the limit: one for each reading
    thread.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most_open() if most is None else most
        self._lock = threading.Lock()
        self._open: OrderedDict[SharedReader, None] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def used(self, reader: SharedReader) -> list[SharedReader]:
        """Record the use of an open reader; return the readers beyond the limit, which should rest."""
        with self._lock:
            self._open[reader] = None
            self._open.move_to_end(reader)
            return list(islice(self._open, max(0, len(self._open) - self._most)))

    def let_go(self) -> None:
        """Close the readers of replaced generations, whose files are gone, without waiting for their next lease."""
        with self._lock:
            readers = list(self._open)
        for reader in readers:
            reader.let_go()

    def closed(self, reader: SharedReader) -> None:
        """Record that a reader is closed."""
        with self._lock:
            self._open.pop(reader, None)


class SharedReader:
    """Reader of one agent's index, shared by all its searches.

    Each lease notices a flip by one `stat`. The reader of the replaced generation is closed after its last user.
    `open_readers` bounds the number of open indexes: the least recently used one rests until its next lease.
    """

    def __init__(self, generations: Generations, *, open_readers: OpenReaders | None = None) -> None:
        self._generations = generations
        self._open_readers = open_readers
        self._lock = threading.Lock()
        self._token: object = None
        self._open: _Open | None = None
        self._closed = False

    def visit(self) -> AbstractContextManager[StoreReader | None]:
        """Lease for a round over many agents: a resting reader rests again afterwards, and makes no other one rest."""
        return self.lease(passing=True)

    @contextmanager
    def lease(self, *, passing: bool = False) -> Iterator[StoreReader | None]:
        """Yield the current generation's reader; None without an index.

        Raises:
            StoreCorrupt, StoreUnreadable: the generation exists and cannot be opened.
            RuntimeError: this reader is closed.
        """
        opened = self._take(passing=passing)
        try:
            yield opened.reader if opened is not None else None
        finally:
            with self._lock:
                _release(opened)

    def close(self) -> None:
        """Close once the last lease is returned. Later calls to `lease` raise RuntimeError."""
        with self._lock:
            self._closed = True
            self._retire()

    def rest(self) -> None:
        """Close once the last lease is returned; the next lease opens a new reader."""
        with self._lock:
            self._retire()

    def let_go(self) -> None:
        """Rest if the generation was replaced."""
        with self._lock:
            if self._open is not None and self._generations.token() != self._token:
                self._retire()

    def _take(self, *, passing: bool) -> _Open | None:
        resting: list[SharedReader] = []
        with self._lock:
            if self._closed:
                raise RuntimeError("this search manager is closed")
            token = self._generations.token()
            opened = self._open
            # Without an index, the next call looks for the pointer again.
            if opened is None or token != self._token:
                reader = self._generations.open_reader()
                self._retire()
                if reader is None:
                    return None
                opened = _Open(reader)
                if not passing:
                    self._open, self._token = opened, token
                    opened.users += 1
            opened.users += 1
            if self._open_readers is not None and not passing:
                resting = self._open_readers.used(self)
        # This reader's lock is free by now: each of the others has its own.
        for other_reader in resting:
            other_reader.rest()
        return opened

    def _retire(self) -> None:
        """Take the reader out of service; its last user closes it."""
        if self._open_readers is not None:
            self._open_readers.closed(self)
        _release(self._open)
        self._open = None


@dataclass(slots=True)
class _Open:
    """Open reader and the number of its users, with the `SharedReader` that lends it."""

    reader: StoreReader
    users: int = 0


def _release(opened: _Open | None) -> None:
    """Take one user away; the last one closes the reader."""
    if opened is not None:
        opened.users -= 1
        if opened.users == 0:
            opened.reader.close()
