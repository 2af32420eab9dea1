"""The reader of an agent's answering generation, shared by concurrent searches and exchanged after a flip."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from memory.index.generations import Generations
from memory.store.reader import StoreReader

#: Indexes that are open at most, where a process may open any number of files.
MOST_OPEN = 128

#: And at least, however few that are.
FEWEST_OPEN = 8

#: Descriptors that a process needs for all the rest: its own files, connections of clients and to providers, and the
#: connections to indexes that are kept beside each one's first (`memory.store.sqlite.connection`).
RESERVED_DESCRIPTORS = 330

#: Descriptors of an open index with one connection: the database, its log and the log's index.
DESCRIPTORS_PER_INDEX = 3


def most_open() -> int:
    """How many indexes this process may keep open, by its limit of open files (`ulimit -n`)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return MOST_OPEN
    return max(FEWEST_OPEN, min(MOST_OPEN, (limit - RESERVED_DESCRIPTORS) // DESCRIPTORS_PER_INDEX))


class OpenReaders:
    """The open indexes of a process, the one that was used longest ago first. Thread-safe.

    An index in use is closed only when its last user is done, so that there may be more for a moment: one for every
    thread that reads.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most_open() if most is None else most
        self._lock = threading.Lock()
        self._open: OrderedDict[SharedReader, None] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._open)

    def used(self, reader: SharedReader) -> list[SharedReader]:
        """Note that a reader is open and was used just now; returns those that are too many, and should rest."""
        with self._lock:
            self._open[reader] = None
            self._open.move_to_end(reader)
            return list(islice(self._open, max(0, len(self._open) - self._most)))

    def closed(self, reader: SharedReader) -> None:
        """Note that a reader is closed."""
        with self._lock:
            self._open.pop(reader, None)


class SharedReader:
    """Hands one open reader to all searches of an agent.

    A flip of the generation is noticed by one `stat` a call; the reader of the replaced generation is
    closed when its last user is done, so that nobody ever has it closed under them. `open_readers` bounds how many
    agents have theirs open: who was not asked for longest rests, until it is asked again.
    """

    def __init__(self, generations: Generations, *, open_readers: OpenReaders | None = None) -> None:
        self._generations = generations
        self._open_readers = open_readers
        self._lock = threading.Lock()
        self._token: object = None
        self._lease: _Lease | None = None
        self._closed = False

    @contextmanager
    def lease(self) -> Iterator[StoreReader | None]:
        """The current generation's reader for the time of the block; None when there is no index yet.

        Raises:
            StoreCorrupt, StoreUnreadable: the generation is there and cannot be opened.
        """
        lease = self._take(passing=False)
        try:
            yield lease.reader if lease is not None else None
        finally:
            if lease is not None:
                self._give_back(lease)

    @contextmanager
    def visit(self) -> Iterator[StoreReader | None]:
        """Like `lease`, for who looks at every agent: what was not open is not open afterwards, and nobody else rests
        for it.

        Raises:
            StoreCorrupt, StoreUnreadable: like `lease`.
        """
        lease = self._take(passing=True)
        try:
            yield lease.reader if lease is not None else None
        finally:
            if lease is not None:
                self._give_back(lease)

    def close(self) -> None:
        """Close as soon as nobody reads. Later leases open anew, privately to nobody's harm, and fail."""
        with self._lock:
            self._closed = True
            retired = self._retire()
        _close(retired)

    def rest(self) -> None:
        """Close the reader as soon as nobody uses it; the next lease opens anew."""
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
            # Without an index the next call looks again: the pointer may be there by then.
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
        # With no lock held: each of them has its own.
        for other in resting:
            other.rest()
        return lease

    def _give_back(self, lease: _Lease) -> None:
        with self._lock:
            lease.users -= 1
            done = lease.retired and lease.users == 0
        _close(lease.reader if done else None)

    def _retire(self) -> StoreReader | None:
        """Take the reader out of service; returned when nobody uses it, else closed by its last user."""
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
