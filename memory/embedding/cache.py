"""The embedding cache: a text that was paid for once is never paid for again.

One SQLite file for all agents of a host. Every response of a provider is one transaction, on disk
(synchronous FULL) before any other use of its vectors.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import apsw
import numpy as np
import structlog

from memory.embedding.cache_reader import IDENTITY, VERSION, cache_path, count_entries, decoded, hash_key, look_up
from memory.embedding.vectors import to_bytes16
from memory.store.durable_sqlite import DurableSqlite, Kind
from memory.store.errors import StoreBusy, StoreFull
from memory.store.reader import Vector
from schemas.settings import Settings

log = structlog.get_logger(__name__)

_KIND = Kind(
    "the embedding cache",
    """
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
    """,
    version=VERSION,
)

#: Days of last use written along with one response, at most.
_TOUCHES_A_WRITE = 2_000

#: Insertions between two looks at the number of entries, when it is bounded.
_INSERTS_BETWEEN_EVICTIONS = 1_000

#: Entries deleted in one transaction.
_DELETES_A_TRANSACTION = 1_000

#: Vectors held in memory while the file cannot take them; beyond that nothing more is paid for.
MOST_UNSAVED = 4_096

_SECONDS_A_DAY = 86_400


class EmbeddingCache:
    """Vectors by (identity, text hash). Safe for several threads and processes.

    `max_entries` bounds the number of vectors, least recently used first (by the day); None means no bound.

    Raises, from every method that touches the file:
        StoreFull: the disk is full; nothing was written.
        StoreBusy: another process held the write lock for too long.
        StoreUnreadable: the file or its folder cannot be used.
    """

    def __init__(self, path: Path, *, max_entries: int | None = None) -> None:
        self._file = DurableSqlite(path, _KIND, forget=self._forget)
        self._max_entries = max_entries
        self._lock = threading.Lock()
        #: Row -> day of its last use, to be written.
        self._touched: dict[int, int] = {}
        self._inserted = 0
        #: Identity -> vectors that wait for the file, which is full or locked.
        self._unsaved: dict[str, dict[str, Vector]] = {}
        with self._lock:
            self._file.guarded(self._file.connection)

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Return the cache of a home, which is made if it is missing; None if the settings want none."""
        if not settings.cache.enabled:
            return None
        path = cache_path(settings.home)
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path, max_entries=settings.cache.max_entries)

    # Calls of readers and writers

    def get_many(self, identity: str, hashes: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are there, by text hash; float32 unit vectors as they were put."""
        with self._lock:
            rows = self._file.guarded(lambda: look_up(self._file.connection(), identity, hashes))
            today = _today()
            self._touched.update((row, today) for row, _, used in rows.values() if used != today)
            waiting = self._unsaved.get(identity, {})
            unsaved = {text_hash: waiting[text_hash] for text_hash in hashes if text_hash in waiting}
        return decoded({text_hash: blob for text_hash, (_, blob, _) in rows.items()}) | unsaved

    def put_many(self, identity: str, vectors: Mapping[str, Vector]) -> None:
        """Keep rounded vectors (`memory.embedding.vectors`); committed and on disk when this returns."""
        if not vectors:
            return
        blobs = dict(zip(vectors, to_bytes16(np.stack(list(vectors.values()))), strict=True))
        with self._lock:
            self._file.guarded(lambda: self._insert(identity, blobs))
            self._inserted += len(blobs)
            due = self._max_entries is not None and self._inserted >= min(
                _INSERTS_BETWEEN_EVICTIONS, max(1, self._max_entries // 10)
            )
        if due:
            self.evict()

    def keep(self, identity: str, vectors: Mapping[str, Vector]) -> None:
        """Put vectors that were just paid for. While the file is full or locked they are held for later."""
        with self._lock:
            self._unsaved.setdefault(identity, {}).update(vectors)
        self.flush()

    def flush(self) -> StoreFull | StoreBusy | None:
        """Try to write the held vectors; return the reason why that fails."""
        with self._lock:
            unsaved = {identity: dict(vectors) for identity, vectors in self._unsaved.items() if vectors}
        for identity, vectors in unsaved.items():
            try:
                self.put_many(identity, vectors)
            except (StoreFull, StoreBusy) as error:
                log.warning("embedding_cache_cannot_keep", held=len(vectors), error=str(error))
                return error
            with self._lock:
                for text_hash in vectors:
                    self._unsaved[identity].pop(text_hash, None)
        return None

    def ensure_room(self) -> None:
        """Refuse to pay for more when too much is held already.

        Raises:
            StoreFull: the file has been without space for too long.
        """
        if sum(map(len, self._unsaved.values())) >= MOST_UNSAVED and (error := self.flush()) is not None:
            raise StoreFull(f"the embedding cache takes nothing: {error}") from error

    def evict(self) -> int:
        """Delete the least recently used entries beyond the bound; returns how many."""
        bound = self._max_entries
        if bound is None:
            return 0
        with self._lock:
            self._inserted = 0
            surplus = self._file.guarded(lambda: self._surplus(bound))
        deleted = 0
        while deleted < surplus:
            group = min(surplus - deleted, _DELETES_A_TRANSACTION)
            # Lookups get in between.
            with self._lock:
                evicted = self._file.guarded(partial(self._delete_oldest, group))
            if not evicted:
                break
            deleted += evicted
        return deleted

    def maintain(self) -> bool:
        """Keep to the bound (it may be a new one), and empty a log that grew, unless a reader holds it.

        Return True if there was anything to do.
        """
        evicted = self.evict() > 0
        with self._lock:
            return self._file.guarded(self._file.cut_the_log) or evicted

    def close(self) -> None:
        """Write the remaining days of last use and close the file."""
        with self._lock:
            with contextlib.suppress(StoreFull, StoreBusy, apsw.Error):  # days of last use are worth no failure
                if self._touched:
                    self._file.transaction(lambda writer: self._write_touches(writer, len(self._touched)))
            self._file.close()

    # Statements

    def _insert(self, identity: str, blobs: Mapping[str, bytes]) -> None:
        def insert(writer: apsw.Connection) -> None:
            writer.execute("INSERT INTO identities (identity) VALUES (?) ON CONFLICT DO NOTHING", (identity,))
            writer.executemany(
                f"INSERT INTO embeddings (identity, hash, vector, used) VALUES (({IDENTITY}), ?, ?, ?)"  # noqa: S608 - a constant
                " ON CONFLICT (identity, hash) DO UPDATE SET vector = excluded.vector, used = excluded.used",
                [(identity, hash_key(text_hash), blob, _today()) for text_hash, blob in blobs.items()],
            )
            self._write_touches(writer, _TOUCHES_A_WRITE)

        self._file.transaction(insert)

    def _write_touches(self, writer: apsw.Connection, most: int) -> None:
        """Write days of last use, in the transaction that is open."""
        touched = [self._touched.popitem() for _ in range(min(most, len(self._touched)))]
        writer.executemany("UPDATE embeddings SET used = ?2 WHERE id = ?1", touched)

    def _surplus(self, bound: int) -> int:
        """Return the number of entries above `bound`."""
        self._file.transaction(lambda writer: self._write_touches(writer, len(self._touched)))
        surplus = count_entries(self._file.connection()) - bound
        # A little more than needed, so that a full cache does not evict at every turn.
        return surplus + bound // 50 if surplus > 0 else 0

    def _delete_oldest(self, count: int) -> int:
        def delete(writer: apsw.Connection) -> int:
            writer.execute(
                "DELETE FROM embeddings WHERE id IN (SELECT id FROM embeddings ORDER BY used, id LIMIT ?)", (count,)
            )
            return writer.changes()

        return self._file.transaction(delete)

    def _forget(self) -> None:
        """Forget the rows of a file that is gone."""
        self._touched = {}


def _today() -> int:
    return int(time.time()) // _SECONDS_A_DAY
