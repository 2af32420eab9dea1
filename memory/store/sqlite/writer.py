"""Write access to one SQLite generation, and its maintenance. Each call is one transaction over all tables.

Replaced texts leave traces. With 30,000 chunks of 384 dimensions, half of them replaced, they cost:

* Vectors go into the last block only, so deleted vectors leave holes that every search reads: half as much time again,
a third more of the file. `compact_vectors` moves the rest of the emptiest blocks to the end. * FTS5 gathers segments
and merges them during writes; searches by several words take a third longer over many of them. `merge_keywords` merges
the rest.

Maintenance works in interruptible steps of a few milliseconds. It changes no search result and counts no commit, so
that cached answers and vectors stay valid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw

from memory.store.errors import KeywordsUnavailable, StoreBusy
from memory.store.options import StoreOptions
from memory.store.reader import Vector
from memory.store.sqlite import large_changes, vec0_tables
from memory.store.sqlite.connection import (
    load_sqlite_vec,
    missing_keywords,
    open_for_writing,
    refuse_strangers,
    translated,
)
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.rows import fetch, meta_value
from memory.store.sqlite.schema import SET_META, migrate
from memory.store.sqlite.transaction import WriteTransaction
from memory.store.writer import DocumentChange, Maintained, Refusal, Store, WriteOutcome
from schemas.documents import DocumentKey, FileStat

#: Bytes of the write-ahead log from which a commit waits briefly for readers, so that the log starts over. SQLite's
#: own checkpoints never wait: with steady readers the log would grow for ever.
WAL_RESTART_BYTES = 33_554_432
WAL_RESTART_SECONDS = 1.0

#: Size from which maintenance cuts the log.
WAL_WORTH_CUTTING_BYTES = 1_048_576


class SqliteStore(SqliteReader, Store):
    """Read and write access to one generation. The file must exist; `create_generation` makes one.

    Reads use their own connections and see committed data.

    Raises:
        StoreUnreadable, StoreCorrupt, StoreBusy, StoreFull: from the constructor, too.
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
            if self.text_reason is None:
                with translated(path), suppress(apsw.BusyError):  # the next store does it
                    leave_deletions(self._writer)
        except BaseException:
            self._writer.close()
            raise

    def write(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        if self.text_reason is not None:
            raise KeywordsUnavailable(f"nothing is indexed by this process: {self.text_reason}")
        outcomes: list[WriteOutcome] = []
        together: list[DocumentChange] = []
        size = large_changes.Size()
        for change in changes:
            more = self._size_of(change, after_others=change.key in {other.key for other in together})
            if together and (size + more).too_large:
                outcomes += self._write_together(together)
                together, size = [], large_changes.Size()
                more = self._size_of(change, after_others=False)
            if more.too_large:
                together = [large_changes.thinned(self._flushed_transaction, change)]
                size = large_changes.Size(changed=large_changes.MOST_CHANGED)
            else:
                together.append(change)
                size += more
        return outcomes + self._write_together(together)

    def _size_of(self, change: DocumentChange, *, after_others: bool) -> large_changes.Size:
        with self._readers.borrow() as connection:
            return large_changes.size_of(connection, change, after_others=after_others)

    def _write_together(self, changes: Sequence[DocumentChange]) -> list[WriteOutcome]:
        if not changes:
            return []
        with self._flushed_transaction() as transaction:
            return [transaction.apply(change) for change in changes]

    def rename_document(self, old: DocumentKey, new: DocumentKey) -> bool:
        with self._transaction() as transaction:
            return transaction.rename(old, new)

    def write_vectors(self, vectors: Mapping[int, tuple[str, Vector | Refusal]]) -> int:
        with self._transaction() as transaction:
            changed = transaction.join_vectors(vectors)
            transaction.flush()
        return changed

    def touch(
        self, stats: Mapping[DocumentKey, FileStat], *, content_hashes: Mapping[DocumentKey, str] | None = None
    ) -> None:
        with self._transaction() as transaction:
            transaction.touch(stats, content_hashes)
            transaction.flush()

    def add_dead_letter(self, key: DocumentKey, *, reason: str, error_class: str, attempts: int = 1) -> None:
        with self._transaction() as transaction:
            transaction.add_dead_letter(key, reason, error_class, attempts)

    def retry_dead_letter(self, key: DocumentKey) -> int:
        with self._transaction() as transaction:
            return transaction.retry(key)

    def drop_dead_letter(self, key: DocumentKey) -> bool:
        with self._transaction() as transaction:
            return transaction.drop_letter(key)

    def set_meta(self, values: Mapping[str, str]) -> None:
        with self._transaction() as transaction:
            transaction.set_meta(values)

    def maintain(self, *, go_on: Callable[[], bool]) -> Maintained:
        vectors = keywords = 0
        begun = time.monotonic()
        with self._idle_step() as connection:
            compact = self.vector_reason is None and is_worth_compacting(connection)
            merge = self.text_reason is None and is_worth_merging(connection)
        while compact and go_on():
            with self._idle_step() as connection:
                compact = compact_vectors(connection)
            vectors += compact
        compacted = time.monotonic()
        while merge and go_on():
            with self._idle_step() as connection:
                merge = merge_keywords(connection)
            keywords += merge
        merged = time.monotonic()
        cut = self._cut_the_log() if go_on() else 0
        took = {"vectors": compacted - begun, "keywords": merged - compacted, "log": time.monotonic() - merged}
        did = {"vectors": vectors, "keywords": keywords, "log": cut}
        return Maintained(vectors, keywords, cut, seconds={of: took[of] for of in took if did[of]})

    def close(self) -> None:
        """Copy the write-ahead log back as far as readers allow, and close all connections."""
        with self._write_lock:
            with suppress(apsw.Error):  # the next process that opens the file does it
                self._writer.set_busy_timeout(0)
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._writer.close()
        super().close()

    @contextmanager
    def _flushed_transaction(self) -> Iterator[WriteTransaction]:
        with self._transaction() as transaction:
            yield transaction
            transaction.flush()

    @contextmanager
    def _transaction(self) -> Iterator[WriteTransaction]:
        with self._write_lock, translated(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                transaction = WriteTransaction(self._writer, keeps_vectors=self.vector_reason is None)
                yield transaction
                transaction.finish()
                self._writer.execute("COMMIT" if transaction.changed else "ROLLBACK")
            except BaseException:
                # A full disk has rolled back already.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            self._bound_the_log()

    @contextmanager
    def _idle_step(self) -> Iterator[apsw.Connection]:
        """Transaction that changes no search result and is not counted."""
        with self._write_lock, translated(self._path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def _cut_the_log(self) -> int:
        """Copy the write-ahead log back and empty it, unless a reader or writer uses it; return the bytes freed."""
        size = self._log_bytes()
        if size < WAL_WORTH_CUTTING_BYTES:
            return 0
        with self._write_lock, suppress(StoreBusy), translated(self._path):
            self._writer.set_busy_timeout(0)
            try:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                self._writer.set_busy_timeout(round(self._options.busy_timeout_seconds * 1000))
        return max(0, size - self._log_bytes())

    def _log_bytes(self) -> int:
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except OSError:
            return 0

    def _bound_the_log(self) -> None:
        if self._log_bytes() < WAL_RESTART_BYTES:
            return
        with suppress(apsw.Error):  # the changes are committed; the next commit tries again
            self._writer.set_busy_timeout(round(WAL_RESTART_SECONDS * 1000))
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._writer.set_busy_timeout(round(self._options.busy_timeout_seconds * 1000))


def create_generation(path: Path, options: StoreOptions, *, fingerprint: str, description: str) -> None:
    """Make a new, empty generation, durable on return.

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
    connection = open_for_writing(path, options, create=True)
    try:
        with translated(path):
            migrate(connection)
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(SET_META, [("fingerprint", fingerprint), ("identity", description)])
            connection.execute("COMMIT")
            # With synchronous NORMAL only a checkpoint syncs; a pointer to this file must not outlive its content.
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()


#: Vectors moved in one transaction, about 20 ms.
MOVED_A_STEP = 128

#: Smallest share of empty places for a compaction.
WORTH_COMPACTING = 0.25

#: Largest share of places in use of a block that is moved.
FULL_ENOUGH = 0.75

#: Pages of the keyword index written in one transaction, about 4 kB each.
MERGED_PAGES_A_STEP = 64

#: Smallest share and number of chunks added and deleted since the last merge for another one.
WORTH_MERGING = 0.1
WORTH_MERGING_CHUNKS = 1_000

#: Entry of `meta`: number of all chunks ever added and deleted at the last merge of the keywords.
MERGED_AT = "keywords_merged_at"

# FTS5 merges a segment inside the transaction that deletes a tenth of it. For 200,000 chunks in transactions of 1,000
# that took 56 s, up to 5 s in one of them, instead of 4 s and 0.2 s. Maintenance merges without a hurry.
SELECT_MERGES_DELETIONS = "SELECT 1 FROM chunks_fts_config WHERE k = 'deletemerge' AND v = 0"
LEAVE_DELETIONS = "INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('deletemerge', 0)"

SELECT_CHUNKS_EVER = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunks'), 0)"
COUNT_CHUNKS = "SELECT count(*) FROM chunks"

# A negative number merges segments of different sizes, too (https://sqlite.org/fts5.html#the_merge_command).
MERGE = "INSERT INTO chunks_fts (chunks_fts, rank) VALUES ('merge', ?)"

#: SQLite counts fewer changes than this for a merge that had nothing to do.
_NOTHING_MERGED = 2


def is_worth_compacting(connection: apsw.Connection) -> bool:
    """Return True if enough vectors are deleted to slow down searches."""
    blocks = vec0_tables.fillings(connection)
    places = sum(block.places for block in blocks)
    used = sum(block.used for block in blocks)
    return len(blocks) > 1 and places - used >= WORTH_COMPACTING * places and _emptiest(blocks) is not None


def compact_vectors(connection: apsw.Connection) -> bool:
    """Move some vectors in the open transaction; return False if there is nothing left to move."""
    emptiest = _emptiest(vec0_tables.fillings(connection))
    dimensions = meta_value(connection, "dimensions")
    if emptiest is None or dimensions is None:
        return False
    ids = vec0_tables.ids_in(connection, emptiest)[:MOVED_A_STEP]
    vectors = vec0_tables.vectors_of(connection, ids, int(dimensions))
    vec0_tables.delete_vectors(connection, ids)
    vec0_tables.insert_vectors(connection, [(id_, vectors[id_]) for id_ in ids])
    return True


def is_worth_merging(connection: apsw.Connection) -> bool:
    """Return True if enough chunks were added and deleted since the last merge to slow down searches."""
    [(now,)] = fetch(connection, COUNT_CHUNKS)
    changed = _changes_ever(connection) - int(meta_value(connection, MERGED_AT) or 0)
    return changed >= max(WORTH_MERGING_CHUNKS, int(WORTH_MERGING * int(now)))


def leave_deletions(connection: apsw.Connection) -> None:
    """Make FTS5 merge deletions on request only."""
    if not fetch(connection, SELECT_MERGES_DELETIONS):
        connection.execute(LEAVE_DELETIONS)


def merge_keywords(connection: apsw.Connection) -> bool:
    """Merge some pages in the open transaction; return False, and record the merge, if nothing is left to merge."""
    before = connection.total_changes()
    connection.execute(MERGE, (-MERGED_PAGES_A_STEP,))
    if connection.total_changes() - before >= _NOTHING_MERGED:
        return True
    connection.execute(SET_META, (MERGED_AT, str(_changes_ever(connection))))
    return False


def _changes_ever(connection: apsw.Connection) -> int:
    """Return the number of chunks ever added plus the number ever deleted."""
    [(ever,)] = fetch(connection, SELECT_CHUNKS_EVER)
    [(now,)] = fetch(connection, COUNT_CHUNKS)
    return 2 * int(ever) - int(now)


def _emptiest(blocks: Sequence[vec0_tables.Filling]) -> int | None:
    """Return the number of the block to move next, None without one. Moved vectors go to the last block, which
    stays."""
    movable = [block for block in blocks[:-1] if block.used <= FULL_ENOUGH * block.places]
    return min(movable, key=lambda block: block.used).number if movable else None
