"""Readers of answering generations: shared by concurrent searches, replaced after a flip, bounded in number."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice

from memory.index.generations import Generations
from memory.store.reader import StoreReader

#: Largest number of open indexes.
MOST_OPEN = 128

#: Number of indexes that may be open even with few descriptors.
FEWEST_OPEN = 8

#: Descriptors for everything else: files, connections of clients and to providers, and further connections to the
#: same index (`memory.store.sqlite.connection`).
RESERVED_DESCRIPTORS = 330

#: Descriptors of an open index with one connection: the database, its log and the log's index.
DESCRIPTORS_PER_INDEX = 3


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
        self._lease: _Lease | None = None
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
        lease = self._take(passing=passing)
        try:
            yield lease.reader if lease is not None else None
        finally:
            if lease is not None:
                self._give_back(lease)

    def close(self) -> None:
        """Close once the last lease is returned. Later calls to `lease` raise RuntimeError."""
        with self._lock:
            self._closed = True
            retired = self._retire()
        _close(retired)

    def rest(self) -> None:
        """Close once the last lease is returned; the next lease opens a new reader."""
        with self._lock:
            retired = self._retire()
        _close(retired)

    def _take(self, *, passing: bool) -> _Lease | None:
        retired: StoreReader | None = None
        resting: list[SharedReader] = []
        with self._lock:
            if self._closed:
                raise RuntimeError("this search manager is closed")
            token = self._generations.pointer_token()
            lease = self._lease
            # Without an index, the next call looks for the pointer again.
            if lease is None or token != self._token:
                reader = self._generations.open_reader()
                retired = self._retire()
                lease = _Lease(reader) if reader is not None else None
                if lease is not None and passing:
                    lease.retired = True
                else:
                    self._lease, self._token = lease, token
            if lease is not None:
                lease.users += 1
                if self._open_readers is not None and not passing:
                    resting = self._open_readers.used(self)
        _close(retired)
        # This reader's lock is free by now: each of the others has its own.
        for other in resting:
            other.rest()
        return lease

    def _give_back(self, lease: _Lease) -> None:
        with self._lock:
            lease.users -= 1
            done = lease.retired and lease.users == 0
        _close(lease.reader if done else None)

    def _retire(self) -> StoreReader | None:
        """Take the reader out of service; return it if it has no users, else its last user closes it."""
        lease, self._lease = self._lease, None
        if self._open_readers is not None:
            self._open_readers.closed(self)
        if lease is None:
            return None
        lease.retired = True
        return lease.reader if lease.users == 0 else None


class _Lease:
    __slots__ = ("reader", "retired", "users")

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self.users = 0
        self.retired = False


def _close(reader: StoreReader | None) -> None:
    if reader is not None:
        reader.close()
