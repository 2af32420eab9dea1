"""The SQLite file of the batch jobs: how it is opened, made and set aside."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import structlog

from memory.embedding import cache_file
from memory.embedding.batch_ledger_sql import TABLES
from memory.store.errors import StoreBusy, StoreFull, StoreUnreadable

log = structlog.get_logger(__name__)

_VERSION = 1


def open_ledger(path: Path) -> tuple[apsw.Connection, int]:
    """Open the file, making it when it is not there; a damaged one is set aside. Returns its inode, too.

    Raises:
        StoreUnreadable, StoreFull, StoreBusy
    """
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _making(path):
            try:
                connection = _opened(path)
            except (apsw.CorruptError, apsw.NotADBError) as error:
                _set_aside(path, error)
                connection = _opened(path)
            return connection, path.stat().st_ino


def set_aside(path: Path, error: Exception, *, inode: int) -> None:
    """Rename a damaged file, unless another process did already. Its jobs are forgotten, and paid for again."""
    with _making(path):
        if path.exists() and path.stat().st_ino == inode:
            _set_aside(path, error)


def _set_aside(path: Path, error: Exception) -> None:
    aside = cache_file.set_aside(path)
    log.warning("batch_ledger_damaged", error=str(error), set_aside=str(aside))


def _making(path: Path) -> contextlib.AbstractContextManager[bool]:
    return alone(path.with_name(path.name + ".lock"))


@contextlib.contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file; it ends with the process. Without `wait`, False when somebody else holds it."""
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
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into the store's; damage passes through for the caller to repair."""
    try:
        yield
    except apsw.FullError as error:
        raise StoreFull(f"there is no space left for {path}: free some") from error
    except apsw.BusyError as error:
        raise StoreBusy(f"another process keeps {path} locked") from error
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
        raise StoreUnreadable(f"{path} cannot be used ({error}): check the folder's permissions") from error


def _opened(path: Path) -> apsw.Connection:
    if not path.exists():
        # A log without its database would be taken for the new one's.
        for stray in cache_file.parts(path)[1:]:
            stray.unlink(missing_ok=True)
        apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE).close()
        path.chmod(0o600)
    connection = cache_file.connect(path)
    try:
        _make_tables(connection, path)
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def _make_tables(connection: apsw.Connection, path: Path) -> None:
    row = connection.execute("PRAGMA user_version").fetchone()
    version = int(row[0]) if row is not None else 0
    if version == _VERSION:
        return
    if version:
        raise StoreUnreadable(f"another version of recalld wrote {path}: move it away to start anew")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {_VERSION}; COMMIT")
