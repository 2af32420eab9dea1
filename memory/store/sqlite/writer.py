"""Write access to one SQLite generation. Each call is one transaction over all tables, of a bounded size."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from memory.http.whole_files import sync_folder
from memory.store.document_transaction import DocumentWriter
from memory.store.durable_sqlite import committed, empty_log
from memory.store.errors import KeywordsUnavailable, StoreBusy, StoreFull
from memory.store.options import StoreOptions
from memory.store.sqlite.connection import (
    load_sqlite_vec,
    missing_keywords,
    refuse_strangers,
    set_up,
    translated,
)
from memory.store.sqlite.maintenance import (
    chunks_deleted,
    compact_vectors,
    is_due_to_erase,
    is_worth_compacting,
    is_worth_merging,
    merge_keywords,
    note_erased,
)
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.rows import schema_number
from memory.store.sqlite.schema import APPLICATION_ID, FIRST_SCHEMA_NUMBER, MIGRATIONS, PAGE_SIZE, SET_META
from memory.store.sqlite.transaction import WriteTransaction
from memory.store.sqlite_file import bytes_of, open_read_only, opened
from memory.store.writer import Maintained

#: A writer's page cache of 64 MB holds most pages of the keyword index. From 16 MB of write-ahead log on, a commit
#: copies it back. The page size has no effect on an existing file.
WRITER_PRAGMAS: dict[str, int | str] = {
    "page_size": PAGE_SIZE,
    "journal_mode": "wal",
    "synchronous": "normal",
    "cache_size": -65_536,
    "mmap_size": 0,
    "temp_store": "memory",
    "wal_autocheckpoint": 1_024,
    "journal_size_limit": 16_777_216,
    "secure_delete": 1,
}

#: Bytes of the write-ahead log from which a commit waits briefly for readers, so that the log starts over. SQLite's
#: own checkpoints never wait: with steady readers the log would grow for ever.
WAL_RESTART_BYTES = 33_554_432
WAL_RESTART_SECONDS = 1.0

#: Size from which maintenance cuts the log.
WAL_WORTH_CUTTING_BYTES = 1_048_576


class SqliteStore(SqliteReader, DocumentWriter):
    """Read and write access to one file, which must exist; `create_generation` makes one.

    Reads use their own connections. The constructor raises like `SqliteReader` and the writing methods.
    """

    def __init__(self, path: Path, options: StoreOptions) -> None:
        self._write_lock = threading.Lock()
        self._writer = open_for_writing(path, options)
        try:
            with translated(path):
                refuse_strangers(self._writer, path)
                migrate(self._writer)
            super().__init__(path, options)
            if options.vector_enabled:
                load_sqlite_vec(self._writer, options.extension_path)
        except BaseException:
            self._writer.close()
            raise

    def release_held(self, ids: Collection[int]) -> int:
        with self.transaction() as transaction:
            return transaction.release_held(ids)

    def maintain(self, *, go_on: Callable[[], bool], now: float) -> Maintained:
        vectors = keywords = deleted = 0
        while go_on() and self.text_reason is None and self.add_users_words():
            pass
        began = time.monotonic()
        with self._idle_step() as connection:
            compact = self.vector_reason is None and is_worth_compacting(connection)
            erase = self.text_reason is None and is_due_to_erase(connection, now=now)
            merge = erase or (self.text_reason is None and is_worth_merging(connection))
        while compact and go_on():
            with self._idle_step() as connection:
                compact = compact_vectors(connection)
            vectors += compact
        compacted = time.monotonic()
        while merge and go_on():
            with self._idle_step() as connection:
                merge = merge_keywords(connection)
                deleted = 0 if merge else chunks_deleted(connection)
            keywords += merge
        merged = time.monotonic()
        cut = self._cut_the_log(1 if deleted else WAL_WORTH_CUTTING_BYTES) if go_on() else 0
        if erase and deleted and (cut or not self._log_bytes()):
            with self._idle_step() as connection:
                note_erased(connection, deleted, now=now)
        seconds = {"vectors": compacted - began, "keywords": merged - compacted, "log": time.monotonic() - merged}
        steps = {"vectors": vectors, "keywords": keywords, "log": cut}
        return Maintained(vectors, keywords, cut, seconds={of: seconds[of] for of in seconds if steps[of]})

    def close(self) -> None:
        """Copy the write-ahead log back as far as readers allow, and close all connections."""
        with self._write_lock:
            with suppress(apsw.Error):  # the next process that opens the file does it
                self._copy_the_log(wait_seconds=0.0)
            self._writer.close()
        super().close()

    @contextmanager
    def transaction(self) -> Iterator[WriteTransaction]:
        """Commit the changes made in this context, or none of them after an error."""
        with self._write_lock, translated(self._path):
            with committed(self._writer):
                transaction = WriteTransaction(self._writer, keeps_vectors=self.vector_reason is None)
                yield transaction
                transaction.finish()
            if self._log_bytes() >= WAL_RESTART_BYTES:
                with suppress(apsw.Error):  # the changes are committed; the next commit tries again
                    self._copy_the_log(wait_seconds=WAL_RESTART_SECONDS)

    @contextmanager
    def _idle_step(self) -> Iterator[apsw.Connection]:
        """Transaction that changes no search result and is not counted."""
        with self._write_lock, translated(self._path), committed(self._writer):
            yield self._writer

    def _cut_the_log(self, least: int) -> int:
        """Copy the write-ahead log back and empty it, unless a reader or writer uses it; return the bytes freed.

        A log of fewer bytes than `least` stays.
        """
        size = self._log_bytes()
        if size < least:
            return 0
        with self._write_lock, suppress(StoreBusy), translated(self._path):
            self._copy_the_log(wait_seconds=0.0)
        return max(0, size - self._log_bytes())

    def _copy_the_log(self, *, wait_seconds: float) -> None:
        empty_log(self._writer, wait_seconds=wait_seconds, busy_seconds=self._options.busy_timeout_seconds)

    def _log_bytes(self) -> int:
        return bytes_of(self._path.with_name(f"{self._path.name}-wal"))


def create_generation(
    path: Path, options: StoreOptions, *, fingerprint: str, description: str, takeover: str | None = None
) -> None:
    """Make a new, empty generation with these facts, which never change. It is durable on return.

    Raises:
        FileExistsError: a file has that name.
        KeywordsUnavailable: this SQLite has no FTS5; nothing was made.
        StoreFull, StoreUnreadable
    """
    if path.exists():
        raise FileExistsError(path)
    with closing(apsw.Connection(":memory:")) as memory:
        reason = missing_keywords(memory)
    if reason is not None:
        raise KeywordsUnavailable(f"no index can be made by this process: {reason}")
    with closing(open_for_writing(path, options, create=True)) as connection, translated(path):
        migrate(connection)
        with committed(connection):
            facts = {"fingerprint": fingerprint, "identity": description, "takeover": takeover}
            connection.executemany(SET_META, [(name, text) for name, text in facts.items() if text is not None])
        # With synchronous NORMAL only a checkpoint syncs; a pointer to this file must not outlive its content.
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def open_for_writing(path: Path, options: StoreOptions, *, create: bool = False) -> apsw.Connection:
    """Open the read and write connection of a store; the caller makes the schema.

    Raises:
        StoreUnreadable, StoreCorrupt, StoreBusy, StoreFull
    """
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    with translated(path):
        return opened(str(path), flags, lambda connection: set_up(connection, options, WRITER_PRAGMAS))


def migrate(connection: apsw.Connection, migrations: tuple[tuple[str, str], ...] = MIGRATIONS) -> int:
    """Apply the missing migrations, each in its own transaction; return their number.

    Each is recorded in `meta` as "migration:<number>" with its name and time. Several processes may call this at once.
    """
    applied = 0
    for number, (name, statements) in enumerate(migrations, start=FIRST_SCHEMA_NUMBER):
        if schema_number(connection) >= number:
            continue
        with committed(connection):
            if schema_number(connection) >= number:
                continue  # another process has applied it meanwhile
            connection.execute(statements)
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            connection.execute(SET_META, (f"migration:{number}", f"{name}, {when}"))
            connection.pragma("user_version", number)
            connection.pragma("application_id", APPLICATION_ID)
            applied += 1
    return applied


def copy_whole(source: Path, target: Path, *, is_alone: bool) -> None:
    """Copy a database, its log included, as of one moment, while other processes write it.

    `target` is made or replaced as a whole or not at all, with the mode 0600. Reading a copy that `is_alone` makes no
    file beside it; any other copy stays in WAL mode, as it has to be in a home. Raises errors of `memory.store.errors`.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with translated(source), closing(open_read_only(source, lambda new: new.set_busy_timeout(10_000))) as original:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with closing(apsw.Connection(str(draft), flags=apsw.SQLITE_OPEN_READWRITE)) as copy:
                copy.execute("PRAGMA journal_mode = OFF")
                with copy.backup("main", original, "main") as backup:
                    backup.step(-1)
                if is_alone:
                    copy.pragma("journal_mode", "delete")
        draft.replace(target)
        sync_folder(target.parent)
    except (StoreFull, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no space left"
        raise StoreFull(f"{target} cannot be written ({reason}); free space, or correct its folder") from error
    finally:
        draft.unlink(missing_ok=True)
