"""Which indexes a process has open: those that were searched last, as many as its open files allow."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memory.search.readers import SharedReader

#: Indexes that are open at most, where a process may open any number of files.
MOST_OPEN = 128

#: And at least, however few that are.
FEWEST_OPEN = 8

#: Descriptors that a process needs for all the rest: its own files, connections of clients and to providers, and the
#: connections to indexes that are kept beside each one's first (`memory.store.sqlite.pool`).
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
