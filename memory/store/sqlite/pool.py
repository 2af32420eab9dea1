"""Read-only connections to one index file, shared by the threads of a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from memory.store.errors import StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.sqlite.connection import (
    in_our_words,
    missing_keywords,
    open_for_reading,
    translated,
)

#: Connections of one index that are kept open between uses; an idle one holds two descriptors and about 100 KB.
MAX_IDLE_CONNECTIONS = 4

#: Connections that a process keeps beside the first one of each index, over all indexes.
MAX_FURTHER_CONNECTIONS = 64

#: What is left of them. Descriptors are the process's, so this is, too.
_further = threading.BoundedSemaphore(MAX_FURTHER_CONNECTIONS)

#: What SQLite says when it needs a -shm file and can neither read nor make one.
_NO_SHARED_MEMORY = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError, apsw.PermissionsError)


class ReadConnections:
    """Lends connections, each to one thread at a time. Opens one at once, so that errors come at the start.

    `text_reason` says why there are no keywords.

    Raises:
        StoreUnreadable, StoreCorrupt: from the constructor, and from `borrow` when the file changed.
    """

    def __init__(self, path: Path, options: StoreOptions) -> None:
        self._path = path
        self._options = options
        self._idle: list[apsw.Connection] = []
        #: Number of the state of the file that idle connections were opened in.
        self._state = 0
        self._lent = 0
        self._closed = False
        self._changed = threading.Condition()
        # Of a file that is read as immutable: what it looked like. None in the normal way.
        self._frozen: tuple[int, ...] | None = None
        self.text_reason: str | None = None
        self._idle.append(self._open())

    @contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        """Lend a connection; apsw's errors come out as the store's."""
        with translated(self._path):
            connection, state = self._take()
            try:
                yield connection
            finally:
                self._give_back(connection, state)

    def close(self) -> None:
        """Wait for the connections that are lent, then close all."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._lent == 0)
            self._close_idle()

    def _take(self) -> tuple[apsw.Connection, int]:
        with self._changed:
            if self._closed:
                raise StoreUnreadable(f"{self._path} was closed")
            if self._frozen is not None and self._frozen != self._looks():
                self._close_idle()
                self._frozen = None
                self._state += 1
            self._lent += 1
            state = self._state
            if self._idle:
                return self._pop_idle(), self._state
        try:
            return self._open(), state
        except BaseException:
            self._forget_lent()
            raise

    def _give_back(self, connection: apsw.Connection, state: int) -> None:
        with self._changed:
            if state == self._state and self._has_room():
                self._idle.append(connection)
            else:
                connection.close()
        self._forget_lent()

    def _forget_lent(self) -> None:
        with self._changed:
            self._lent -= 1
            self._changed.notify_all()

    def _close_idle(self) -> None:
        while self._idle:
            self._pop_idle().close()

    def _has_room(self) -> bool:
        """Whether one more may be kept; it has its place then."""
        if not self._idle:
            return True
        return len(self._idle) < MAX_IDLE_CONNECTIONS and _further.acquire(blocking=False)

    def _pop_idle(self) -> apsw.Connection:
        connection = self._idle.pop()
        if self._idle:
            _further.release()
        return connection

    def _open(self) -> apsw.Connection:
        with translated(self._path):
            try:
                connection = open_for_reading(self._path, self._options)
            except _NO_SHARED_MEMORY as error:
                connection = self._open_immutable(error)
        self.text_reason = missing_keywords(connection)
        return connection

    def _open_immutable(self, error: apsw.Error) -> apsw.Connection:
        """Open a database without its -wal and -shm files, if it is whole without them."""
        if not self._path.is_file() or self._wal_size() > 0:
            raise in_our_words(error, self._path) or error
        self._frozen = self._looks()
        return open_for_reading(self._path, self._options, immutable=True)

    def _looks(self) -> tuple[int, ...]:
        try:
            stat = self._path.stat()
        except OSError:
            return ()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, self._wal_size()

    def _wal_size(self) -> int:
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except OSError:
            return 0
