"""Open indexes of a process: shared by its threads, opened anew after a flip, bounded in number.

Searches share readers of answering generations, jobs of workers share indexers.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from memory.index.generations import Generations
from memory.store.reader import StoreReader


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


class OpenIndexes(Generic[T]):
    """Open indexes of a process by agent, at most a number of them. Thread-safe.

    An index that is replaced, forgotten, or the least recently used one beyond the limit is closed after its last user.
    Until then there may be more than the limit: one for each thread.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most_open() if most is None else most
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    @contextmanager
    def lease(
        self, agent: Hashable, opened: Callable[[], T], token: Callable[[], object], *, passing: bool = False
    ) -> Iterator[T]:
        """Yield an agent's index, which is not closed during the block.

        `opened` opens it, and opens it anew when its `token` has changed. None is not kept. `passing`: for a round over
        many agents; it keeps no index open that was not, and closes no other one.
        """
        current = token()
        with self._lock:
            entry = self._entries.get(agent)
            if entry is not None and entry.current == current:
                entry.users += 1
                if not passing:
                    self._entries.move_to_end(agent)
            else:
                entry = None
        if entry is None:
            # Unlocked: opening takes time. Of two threads that open one index, the later one's is kept.
            entry = _Entry(opened(), token, current)
            unused: list[_Entry[T]] = []
            with self._lock:
                if not passing and entry.index is not None:
                    unused = self._retire([agent])
                    self._entries[agent] = entry
                    unused += self._retire(list(islice(self._entries, max(0, len(self._entries) - self._most))))
            _close(unused)
        try:
            yield entry.index
        finally:
            with self._lock:
                entry.users -= 1
                is_over = entry.users == 0 and self._entries.get(agent) is not entry
            if is_over:
                _close([entry])

    def forget(self, *agents: Hashable) -> None:
        """Close the indexes of these agents after their last users; the next lease opens them anew."""
        with self._lock:
            unused = self._retire(agents)
        _close(unused)

    def forget_replaced(self) -> None:
        """Close replaced generations, whose files are gone, without waiting for their next lease."""
        with self._lock:
            entries = list(self._entries.items())
        self.forget(*(agent for agent, entry in entries if entry.token() != entry.current))

    def close(self) -> None:
        """Close all indexes after their last users."""
        with self._lock:
            unused = self._retire(list(self._entries))
        _close(unused)

    def _retire(self, agents: Iterable[Hashable]) -> list[_Entry[T]]:
        """Take indexes out of service; return those without users, to be closed without the lock."""
        entries = [self._entries.pop(agent) for agent in agents if agent in self._entries]
        return [entry for entry in entries if entry.users == 0]


@dataclass(slots=True)
class _Entry(Generic[T]):
    """Open index, with the number of its users and the value of its token when it was opened."""

    index: T
    token: Callable[[], object]
    current: object
    users: int = 1


def _close(entries: Iterable[_Entry[T]]) -> None:
    for entry in entries:
        if entry.index is not None:
            entry.index.close()


class SharedReader:
    """Reader of one agent's answering generation, shared by all its searches. It is one of the `open_indexes`."""

    def __init__(
        self, generations: Generations, *, open_indexes: OpenIndexes[StoreReader | None] | None = None
    ) -> None:
        self._generations = generations
        self._open_indexes = open_indexes if open_indexes is not None else OpenIndexes(1)
        self._closed = threading.Event()

    @contextmanager
    def lease(self, *, passing: bool = False, snapshot: bool = False) -> Iterator[StoreReader | None]:
        """Yield the current generation's reader; None without an index. `passing`: see `OpenIndexes.lease`.

        With a `snapshot`, all its calls of this thread read one state, where the store can (`StoreReader.snapshot`).

        Raises:
            StoreCorrupt, StoreUnreadable: the generation exists and cannot be opened.
            RuntimeError: this reader is closed.
        """
        if self._closed.is_set():
            raise RuntimeError("this reader is closed")
        generations = self._generations
        try:
            with (
                self._open_indexes.lease(self, generations.open_reader, generations.token, passing=passing) as reader,
                reader.snapshot() if snapshot and reader is not None else nullcontext(),
            ):
                yield reader
        finally:
            if self._closed.is_set():  # meanwhile, perhaps before the index was opened
                self.close()

    def close(self) -> None:
        """Close once the last lease is returned. Later calls to `lease` raise RuntimeError."""
        self._closed.set()
        self._open_indexes.forget(self)
