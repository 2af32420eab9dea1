"""Connections to an index in SQLite, and translation of SQLite's errors into the store's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw

from memory.store.errors import KeywordsUnavailable, OtherFormat, StoreBusy, StoreCorrupt, StoreFull, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.sqlite.rows import schema_number
from memory.store.sqlite.schema import APPLICATION_ID, FIRST_SCHEMA_NUMBER, SCHEMA_NUMBER
from memory.store.sqlite_file import open_read_only
from schemas.errors import OutOfMemory

#: Readers map the first 2 GB of an index into memory: address space, not resident memory.
READER_PRAGMAS: dict[str, int | str] = {"cache_size": -4_096, "mmap_size": 2_147_483_648, "temp_store": "memory"}

#: SQLite's codes of failed writes, including quotas and broken disks. All of them are worth another attempt.
_WRITE_FAILURES = frozenset(
    {
        apsw.SQLITE_IOERR_WRITE,
        apsw.SQLITE_IOERR_SHMSIZE,
        apsw.SQLITE_IOERR_SHMOPEN,
        apsw.SQLITE_IOERR_TRUNCATE,
        apsw.SQLITE_IOERR_FSYNC,
        apsw.SQLITE_IOERR_DIR_FSYNC,
    }
)

#: SQLite's codes of memory that the system refuses; mapped memory has no other reason to fail.
_NO_MEMORY = frozenset({apsw.SQLITE_IOERR_NOMEM, apsw.SQLITE_IOERR_SHMMAP})

#: Message about an SQLite without full-text search.
NO_FTS5 = "this SQLite has no FTS5; install the apsw package from PyPI, which includes it"

_MISSING_PARTS = ("no such table", "no such column", "vtable constructor failed")


def set_up(connection: apsw.Connection, options: StoreOptions, pragmas: Mapping[str, int | str]) -> None:
    """Set the busy timeout and pragmas of a connection."""
    connection.set_busy_timeout(round(options.busy_timeout_seconds * 1000))
    for pragma, value in pragmas.items():
        connection.pragma(pragma, value)


def refuse_strangers(connection: apsw.Connection, path: Path, *, any_format: bool = False) -> bool:
    """Check the header of the file. Return True if the index has another format.

    Raises:
        StoreCorrupt: the file is not an index.
        OtherFormat: the index has another format, unless `any_format` is asked for.
    """
    number = schema_number(connection)
    if int(connection.pragma("application_id")) != APPLICATION_ID or number < 1:
        raise StoreCorrupt(f"{path} holds no index", generation=path.name)
    is_foreign = not FIRST_SCHEMA_NUMBER <= number <= SCHEMA_NUMBER
    if is_foreign and not any_format:
        raise OtherFormat(
            f"{path} has the format of another version of recalld; `recalld up` or `recalld index` builds it anew from "
            "the files, and takes over its vectors and the transcripts that only it holds"
        )
    return is_foreign


def load_sqlite_vec(connection: apsw.Connection, extension_path: Path | None) -> str | None:
    """Load sqlite-vec, the installed one or the library at a path. Return the reason if that fails, else None."""
    try:
        if extension_path is None:
            import sqlite_vec

            library = sqlite_vec.loadable_path()
        else:
            library = str(extension_path)
        connection.enable_load_extension(True)  # noqa: FBT003 - apsw's signature
        try:
            connection.load_extension(library)
        finally:
            connection.enable_load_extension(False)  # noqa: FBT003 - apsw's signature
    except (apsw.Error, ImportError, OSError) as error:
        return f"sqlite-vec cannot be loaded: {error}"
    return None


def missing_keywords(connection: apsw.Connection) -> str | None:
    """Return the reason why this connection has no keywords, None if it has them."""
    modules = {str(row[0]).lower() for row in connection.execute("PRAGMA module_list")}
    return None if "fts5" in modules else NO_FTS5


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise the store's errors instead of apsw's."""
    try:
        yield
    except apsw.Error as error:
        ours = in_our_words(error, path)
        if ours is None:
            raise
        raise ours from error


def in_our_words(error: apsw.Error, path: Path) -> Exception | None:
    """Return the store's error for an error of SQLite; None for a defect of this program."""
    extended = getattr(error, "extendedresult", 0)
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"{path} is being written by another process; trying again")
        case apsw.NoMemError() | apsw.IOError() if extended in _NO_MEMORY or isinstance(error, apsw.NoMemError):
            return OutOfMemory(f"no memory left for {path} ({error})")
        case apsw.FullError():
            return StoreFull(f"no space left for {path}; free some and indexing goes on")
        case apsw.IOError() if extended in _WRITE_FAILURES:
            return StoreFull(f"{path} cannot be written ({error}); free space or check the disk and indexing goes on")
        case apsw.ConstraintError() if "chunks.id" in str(error):
            # The id after the highest one ever used is taken: the table that counts them is damaged.
            return StoreCorrupt(f"{path} contradicts itself ({error})", generation=path.name)
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreCorrupt(f"{path} is damaged ({error})", generation=path.name)
        case apsw.IOError() if extended == apsw.SQLITE_IOERR_SHORT_READ:
            # Processes share their view of the log in memory, so the error lasts until the last of them ends.
            return StoreCorrupt(f"{path} or its write-ahead log was cut short ({error})", generation=path.name)
        case apsw.IOError():
            return StoreUnreadable(f"{path} cannot be read ({error}); check the disk")
        case apsw.CantOpenError() | apsw.PermissionsError() | apsw.ReadOnlyError():
            return StoreUnreadable(f"{path} cannot be opened ({error}); check that it exists and its permissions")
        case apsw.SQLError() if "no such module: fts5" in str(error):
            return KeywordsUnavailable(NO_FTS5)
        case apsw.SQLError() if any(part in str(error) for part in _MISSING_PARTS):
            return StoreCorrupt(f"{path} is incomplete ({error})", generation=path.name)
    return None


#: Idle connections of one index; each holds up to three descriptors and about 100 KB. A search uses two at once.
MAX_IDLE_CONNECTIONS = 2


class ReadConnections:
    """Pool of connections, each lent to one thread at a time. It opens the first one at once, to raise errors early.

    `text_reason` is the reason why there are no keywords. `any_format`: see `SqliteReader`.

    Raises:
        StoreUnreadable, StoreCorrupt: from the constructor, and from `borrow` after the file has changed.
        OtherFormat: the same, also if the contents of another format cannot be read.
    """

    def __init__(self, path: Path, options: StoreOptions, *, any_format: bool = False) -> None:
        self._path = path
        self._options = options
        self._any_format = any_format
        self._is_foreign = False
        self._idle: list[apsw.Connection] = []
        self._lent = 0
        self._closed = False
        self._changed = threading.Condition()
        self.text_reason: str | None = None
        with self.borrow():
            pass

    @contextmanager
    def borrow(self) -> Iterator[apsw.Connection]:
        """Lend a connection and translate apsw's errors."""
        with self._changed:
            if self._closed:
                raise StoreUnreadable(f"{self._path} was closed")
            self._lent += 1
            connection = self._idle.pop() if self._idle else None
        try:
            with translated(self._path):
                if connection is None:
                    connection = self._open()
                yield connection
        except StoreCorrupt as error:
            if not self._is_foreign:
                raise
            # What only this file holds is lost if it is set aside: a person decides.
            raise OtherFormat(
                f"{self._path} has a format that this version of recalld cannot take over ({error}); move it away to "
                "have the index built from the files alone"
            ) from error
        finally:
            with self._changed:
                self._lent -= 1
                # A file that is read as immutable may change at any time: its connection serves one call.
                if connection is not None:
                    if len(self._idle) < MAX_IDLE_CONNECTIONS and not connection.open_flags & apsw.SQLITE_OPEN_URI:
                        self._idle.append(connection)
                    else:
                        connection.close()
                self._changed.notify_all()

    def close(self) -> None:
        """Wait for the return of all connections, then close them."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._lent == 0)
            while self._idle:
                self._idle.pop().close()

    def _open(self) -> apsw.Connection:
        """Open a connection. If the file is gone, as of a replaced generation, wait for a connection to it."""
        try:
            return open_read_only(self._path, self._begin)
        except apsw.CantOpenError:
            with self._changed:
                seconds = self._options.busy_timeout_seconds
                if not self._changed.wait_for(lambda: self._idle or self._lent == 1, seconds) or not self._idle:
                    raise
                return self._idle.pop()

    def _begin(self, connection: apsw.Connection) -> None:
        set_up(connection, self._options, READER_PRAGMAS)
        self._is_foreign = refuse_strangers(connection, self._path, any_format=self._any_format)
        self.text_reason = missing_keywords(connection)
