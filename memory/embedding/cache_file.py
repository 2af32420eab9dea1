"""The cache's SQLite file: how it is opened, made and set aside."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from memory.store.errors import StoreBusy, StoreFull, StoreUnreadable

BUSY_SECONDS = 10.0

#: What the write-ahead log is cut back to after a checkpoint.
_LOG_BYTES = 4_000_000

#: Damaged files that are kept for a look; older ones are deleted.
_DAMAGED_KEPT = 2

_VERSION = 1

_TABLES = """
CREATE TABLE identities (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE embeddings (
    id INTEGER PRIMARY KEY,
    identity INTEGER NOT NULL,
    hash BLOB NOT NULL,
    vector BLOB NOT NULL, -- little-endian float16
    used INTEGER NOT NULL, -- day of the last use, in days since 1970
    UNIQUE (identity, hash)
) STRICT;
-- Eviction order without reading the vectors.
CREATE INDEX embeddings_used ON embeddings (used);
"""


def parts(path: Path) -> tuple[Path, Path, Path]:
    """The file, its write-ahead log and the log's index."""
    return path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def connect(path: Path) -> apsw.Connection:
    """Open an existing file."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
    # A connection to a file that was set aside must not delete, by its name, the log of the new one when it closes.
    keep = ctypes.c_int(1)
    connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    return connection


def create(path: Path) -> apsw.Connection:
    """Open the file, making it when it is not there. The caller holds the lock against other processes."""
    if not path.exists():
        # A log without its database would be taken for the new one's.
        for stray in parts(path)[1:]:
            stray.unlink(missing_ok=True)
        apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE).close()
        path.chmod(0o600)
    connection = connect(path)
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
        raise StoreUnreadable(
            f"another version of recalld wrote the embedding cache {path}: move it away to start anew"
        )
    connection.execute("PRAGMA page_size = 16384")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT")


def set_aside(path: Path) -> Path:
    """Rename a damaged file (with its log) and delete all but the newest of such; returns its new name."""
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


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into the store's; damage passes through for the caller to repair."""
    try:
        yield
    except apsw.FullError as error:
        raise StoreFull(f"there is no space left for the embedding cache {path}: free some") from error
    except apsw.BusyError as error:
        raise StoreBusy(f"another process keeps the embedding cache {path} locked") from error
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, OSError) as error:
        raise StoreUnreadable(
            f"the embedding cache {path} cannot be used ({error}): check the folder's permissions"
        ) from error
