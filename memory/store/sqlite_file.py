"""Opening of SQLite files, and reading of the embedding cache and the ledger without ever making them anew."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import apsw

T = TypeVar("T")

#: SQLite's errors when it needs a -shm file and can neither read nor make one.
_NO_SHARED_MEMORY = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.IOError, apsw.PermissionsError)


def open_read_only(path: Path, begin: Callable[[apsw.Connection], None], *, flags: int = 0) -> apsw.Connection:
    """Open a file for reading. `begin` sets the connection up and reads from it. `flags` are further ones of SQLite.

    Where SQLite cannot make the -shm file, a file that is complete without its log is opened as immutable: the file
    alone is read, since no other process of this folder writes. Raises apsw.Error, and what `begin` raises.
    """
    try:
        return opened(str(path), apsw.SQLITE_OPEN_READONLY | flags, begin)
    except _NO_SHARED_MEMORY:
        if not path.is_file() or bytes_of(path.with_name(f"{path.name}-wal")):
            raise
        uri = f"{path.absolute().as_uri()}?immutable=1"
        return opened(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | flags, begin)


def opened(name: str, flags: int, begin: Callable[[apsw.Connection], None]) -> apsw.Connection:
    """Open a file, set the connection up by `begin`, and close it if that fails.

    The -wal and -shm files stay when the last connection closes: a reader that may not write to the folder could not
    make them again, and a connection to a replaced file must not delete those of the new one.
    """
    connection, yes = apsw.Connection(name, flags=flags), ctypes.c_int(1)
    try:
        connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(yes))
        begin(connection)
    except BaseException:
        connection.close(force=True)  # a damaged file may not close in order
        raise
    return connection


def read_durable(path: Path, version: int, read: Callable[[apsw.Connection], T], default: T) -> T:
    """Return the result of `read` for a file of this version (`PRAGMA user_version`).

    Return `default` for a file that is missing, locked, damaged or of another version. It never waits for a lock.
    """
    try:
        with closing(open_read_only(path, lambda connection: connection.pragma("user_version"))) as connection:
            return read(connection) if connection.pragma("user_version") == version else default
    except apsw.Error:
        return default


def bytes_of(path: Path) -> int:
    """Return the size of a file, 0 without it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
