"""Durable SQLite files beside the indexes: the embedding cache and the ledger of batch jobs.

Every commit is on disk before it returns (synchronous FULL). One process sets a damaged file aside and begins a new
one; the others notice by its inode.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw
import structlog

from memory.store.durable_tables import SQLITE, Row, Rows, Run, in_sqlite
from memory.store.errors import StoreBusy, StoreFull, StoreUnreadable
from memory.store.sqlite_file import bytes_of, opened

log = structlog.get_logger(__name__)

T = TypeVar("T")

BUSY_SECONDS = 10.0

#: Size of the write-ahead log after a checkpoint.
_LOG_BYTES = 4_000_000

#: Size from which maintenance cuts the write-ahead log.
_LOG_WORTH_CUTTING_BYTES = 1_048_576

#: Damaged files that are kept for inspection; older ones are deleted.
_DAMAGED_KEPT = 2

_PAGE_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Kind:
    """Contents of a file: its name in messages, its tables (SQL), and their version, above 0."""

    name: str
    tables: str
    version: int


class DurableSqlite:
    """The `DurableTables` in a file, which is made if it is missing: one connection for all threads.

    Raises, from every method:
        StoreFull: the disk is full; nothing was written.
        StoreBusy: another process held the write lock for too long.
        StoreUnreadable: the file or its folder cannot be used, or another version wrote it.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self._path = path
        self._kind = kind
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None
        self._inode = 0
        self._guarded(self._opened)

    def read(self, statement: str, row: Row) -> Rows:
        return self._guarded(lambda: _run(self._opened(), statement, row))

    def transaction(self, work: Callable[[Run], T]) -> T:
        def transaction() -> T:
            connection = self._opened()
            with committed(connection):
                return work(partial(_run, connection))

        return self._guarded(transaction)

    def lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """Hold a lock file. The name is safe in file names."""
        return locked(self._path.with_name(f"{self._path.name}.{name}.lock"), wait=False)

    def tidy(self) -> bool:
        """Empty a write-ahead log that grew, unless a reader uses it."""
        return self._guarded(self._cut_the_log)

    def close(self) -> None:
        """Close the file. Its log stays (see `opened`), empty."""
        with self._lock:
            with contextlib.suppress(apsw.Error):
                if self._connection is not None and self._inode == _inode(self._path):
                    self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._disconnect()

    def _guarded(self, work: Callable[[], T]) -> T:
        """Run a function that uses the file; run it again on a new file if this one is damaged."""
        with self._lock, self._translated():
            try:
                return work()
            except (apsw.CorruptError, apsw.NotADBError) as error:
                self._replace_damaged(error)
                return work()

    def _opened(self) -> apsw.Connection:
        """Return the connection to the present file."""
        if self._connection is not None and self._inode != _inode(self._path):
            self._disconnect()  # another process set the file aside and made a new one
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._inode = _inode(self._path)
                self._connection = self._made()
                self._inode = _inode(self._path)
        return self._connection

    def _cut_the_log(self) -> bool:
        if bytes_of(parts(self._path)[1]) < _LOG_WORTH_CUTTING_BYTES:
            return False
        with contextlib.suppress(apsw.BusyError, apsw.LockedError):  # the next round tries again
            empty_log(self._opened(), wait_seconds=0.0, busy_seconds=BUSY_SECONDS)
        return True

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(apsw.Error):  # a damaged file may not close in order
                self._connection.close(force=True)
        self._connection = None

    def _made(self) -> apsw.Connection:
        """Open the file, making it if it is missing. The caller holds the lock."""
        if not self._path.exists():
            # SQLite would apply a stray log to the new database.
            for stray in parts(self._path)[1:]:
                stray.unlink(missing_ok=True)
            apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE).close()
            self._path.chmod(0o600)
        return opened(str(self._path), apsw.SQLITE_OPEN_READWRITE, self._set_up)

    def _set_up(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(round(BUSY_SECONDS * 1000))
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        version = int(connection.pragma("user_version"))
        if version == self._kind.version:
            return
        if version:
            raise StoreUnreadable(
                f"{self._kind.name} {self._path} has the format of another version of recalld: move it away to start "
                "anew"
            )
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        with committed(connection):
            connection.execute(f"{self._kind.tables} PRAGMA user_version = {self._kind.version};")

    def _replace_damaged(self, error: Exception) -> None:
        damaged = self._inode
        self._disconnect()
        with self._alone():
            # If another process has replaced the file already, the present one is good.
            if damaged and damaged == _inode(self._path):
                aside = set_aside(self._path)
                log.warning("kept_file_damaged", file=str(self._path), error=str(error), set_aside=str(aside))

    def _alone(self) -> contextlib.AbstractContextManager[bool]:
        """Lock for making or replacing the file, held by one process at a time."""
        return locked(self._path.with_name(self._path.name + ".lock"))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        file = f"{self._kind.name} {self._path}"
        try:
            yield
        except apsw.FullError as error:
            raise StoreFull(f"there is no space left for {file}: free some") from error
        except apsw.BusyError as error:
            raise StoreBusy(f"another process keeps {file} locked") from error
        except apsw.SQLError as error:
            raise StoreUnreadable(
                f"{file} has the format of another version of recalld ({error}): move it away to start anew"
            ) from error
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
            raise StoreUnreadable(f"{file} cannot be used ({error}): check the folder's permissions") from error


def _run(connection: apsw.Connection, statement: str, values: Row | list[Row]) -> Rows:
    if isinstance(values, list):
        return connection.executemany(statement.format_map(SQLITE), values).fetchall()
    return connection.execute(*in_sqlite(statement, values)).fetchall()


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, which a process releases when it ends. Without `wait`, yield False if another process holds
    it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def committed(connection: apsw.Connection) -> Iterator[None]:
    """Commit the changes made in this context, or none of them after an error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk has rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def parts(path: Path) -> tuple[Path, Path, Path]:
    """Return the paths of the file, its write-ahead log and the log's index."""
    return path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def empty_log(connection: apsw.Connection, *, wait_seconds: float, busy_seconds: float) -> None:
    """Copy the write-ahead log back and empty it; wait so long for readers and writers that use it.

    `busy_seconds` is the connection's timeout afterwards.
    """
    connection.set_busy_timeout(round(wait_seconds * 1000))
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.set_busy_timeout(round(busy_seconds * 1000))


def set_aside(path: Path) -> Path:
    """Rename a damaged file with its log, and delete all but the newest of them; return the new path."""
    aside = path.with_name(f"{path.name}.corrupt-{int(time.time())}")
    while aside.exists():
        aside = aside.with_name(aside.name + "x")
    for old, new in zip(parts(path), parts(aside), strict=True):
        with contextlib.suppress(FileNotFoundError):
            old.rename(new)
    damaged = sorted(
        (p for p in path.parent.glob(f"{path.name}.corrupt-*") if not p.name.endswith(("-wal", "-shm"))),
        key=lambda p: p.stat().st_mtime_ns,
    )
    for surplus in damaged[:-_DAMAGED_KEPT]:
        for part in parts(surplus):
            part.unlink(missing_ok=True)
    return aside


def _inode(path: Path) -> int:
    """Return the file's inode, 0 without a file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
