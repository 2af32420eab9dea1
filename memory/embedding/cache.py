"""The embedding cache: a text that was paid for once is never paid for again.

One SQLite file for all agents of a host, or rows of a fleet's tenant. Every response of a provider is one
transaction, on disk before any other use of its vectors.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import apsw
import numpy as np
import structlog

from memory.embedding.cache_reader import (
    COUNT,
    LOOK_UP,
    VERSION,
    by_text_hash,
    cache_path,
    cache_tenant,
    decoded,
    hash_key,
    looked_up,
)
from memory.embedding.table_writer import durable_tables
from memory.embedding.vectors import to_bytes16
from memory.store.durable_sqlite import Kind
from memory.store.durable_tables import DurableTables, Run
from memory.store.errors import StoreAway, StoreBusy, StoreFull
from memory.store.reader import Vector
from schemas.errors import RecalldError
from schemas.settings import Settings

log = structlog.get_logger(__name__)

KIND = Kind(
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

INSERT = """
INSERT INTO {embeddings} ({tenant}identity, hash, vector, used) {bought}
ON CONFLICT ({tenant}identity, hash) DO UPDATE SET vector = excluded.vector, used = excluded.used
"""
TOUCH = "UPDATE {embeddings} SET used = :day WHERE {mine} AND identity = {identity} AND hash {in_keys}"
DELETE_OLDEST = """
DELETE FROM {embeddings} WHERE {mine} AND (identity, hash) IN (
    SELECT identity, hash FROM {embeddings} WHERE {mine} ORDER BY used LIMIT :count {skip_locked}
) RETURNING used
"""

#: Days of last use written along with one response, at most.
_TOUCHES_A_WRITE = 2_000

#: Insertions between two looks at the number of entries, when it is bounded.
_INSERTS_BETWEEN_EVICTIONS = 1_000

#: Entries deleted in one transaction.
_DELETES_A_TRANSACTION = 1_000

#: Vectors held in memory while the tables cannot take them; beyond that nothing more is paid for.
MOST_UNSAVED = 4_096

_SECONDS_A_DAY = 86_400


class EmbeddingCache:
    """Vectors by (identity, text hash). Safe for several threads and processes.

    `max_entries` bounds the number of vectors, least recently used first (by the day); None means no bound.

    Raises, from every method that touches the tables:
        StoreFull: the disk is full; nothing was written.
        StoreBusy: another process held the write lock for too long.
        StoreAway: the server does not answer.
        StoreUnreadable: the file or its folder cannot be used.
    """

    def __init__(self, tables: DurableTables, *, max_entries: int | None = None) -> None:
        self._tables = tables
        self._max_entries = max_entries
        self._lock = threading.Lock()
        #: (identity, key) of vectors whose use is to be written.
        self._touched: set[tuple[str, bytes]] = set()
        self._inserted = 0
        #: Identity -> vectors that wait for the tables, which are full, locked or away.
        self._unsaved: dict[str, dict[str, Vector]] = {}
        self._is_away = False

    @classmethod
    def of(cls, settings: Settings, tenant: str) -> Self | None:
        """Return the cache of a home, or of a fleet's tenant; None if the settings want none."""
        if not settings.cache.enabled:
            return None
        tables = durable_tables(settings, cache_tenant(settings, tenant), cache_path(settings.home), KIND)
        return cls(tables, max_entries=settings.cache.max_entries)

    # Calls of readers and writers

    def get_many(self, identity: str, hashes: Sequence[str]) -> dict[str, Vector]:
        """Return the vectors that are there, by text hash; float32 unit vectors as they were put."""
        with self._lock:  # first: a vector leaves this memory after its commit
            waiting = self._unsaved.get(identity, {})
            unsaved = {text_hash: waiting[text_hash] for text_hash in hashes if text_hash in waiting}
        with self._reporting():
            rows, today = self._tables.read(LOOK_UP, looked_up(identity, hashes)), _today()
        with self._lock:
            self._touched.update((identity, key) for key, _, used in rows if used != today)
        return decoded(by_text_hash(rows, hashes)) | unsaved

    def put_many(self, identity: str, vectors: Mapping[str, Vector]) -> None:
        """Keep rounded vectors (`memory.embedding.vectors`); committed and on disk when this returns."""
        if not vectors:
            return
        blobs = dict(zip(vectors, to_bytes16(np.stack(list(vectors.values()))), strict=True))
        self._write(identity, blobs, _TOUCHES_A_WRITE)
        with self._lock:
            self._inserted += len(blobs)
            due = self._max_entries is not None and self._inserted >= min(
                _INSERTS_BETWEEN_EVICTIONS, max(1, self._max_entries // 10)
            )
        if due:
            self.evict()

    def keep(self, identity: str, vectors: Mapping[str, Vector]) -> None:
        """Put vectors that were just paid for. While the tables are full, locked or away they are held for later."""
        with self._lock:
            self._unsaved.setdefault(identity, {}).update(vectors)
        self.flush()

    def held(self, identity: str) -> set[str]:
        """Return the texts whose vectors wait for the tables."""
        with self._lock:
            return set(self._unsaved.get(identity, ()))

    def flush(self) -> StoreFull | StoreBusy | StoreAway | None:
        """Try to write the held vectors; return the reason why that fails."""
        with self._lock:
            unsaved = {identity: dict(vectors) for identity, vectors in self._unsaved.items() if vectors}
        for identity, vectors in unsaved.items():
            try:
                with self._reporting():
                    self.put_many(identity, vectors)
            except (StoreFull, StoreBusy, StoreAway) as error:
                return error
            with self._lock:
                for text_hash in vectors:
                    self._unsaved[identity].pop(text_hash, None)
        return None

    def ensure_room(self) -> None:
        """Refuse to pay for more when too much is held already.

        Raises:
            StoreFull: the tables have been full, locked or away for too long.
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
        self._write("", {}, len(self._touched))
        surplus = int(self._tables.read(COUNT, {})[0][0]) - bound
        # A little more than needed, so that a full cache does not evict at every turn.
        surplus += bound // 50 if surplus > 0 else 0
        deleted = 0
        while deleted < surplus:
            # Lookups get in between.
            evicted = self._delete_oldest(min(surplus - deleted, _DELETES_A_TRANSACTION))
            if not evicted:
                break
            deleted += evicted
        return deleted

    def maintain(self) -> bool:
        """Write held vectors, keep to the bound (it may be a new one), and empty a log that grew.

        Return True if there was anything to do.
        """
        self.flush()
        evicted = self.evict() > 0
        return self._tables.tidy() or evicted

    def close(self) -> None:
        """Write the remaining days of last use and close the tables."""
        with contextlib.suppress(RecalldError, apsw.Error):  # days of last use are worth no failure
            self._write("", {}, len(self._touched))
        self._tables.close()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Log an outage of the tables once, by its first failure."""
        try:
            yield
        except (StoreFull, StoreBusy, StoreAway) as error:
            if not self._is_away:
                log.warning("embedding_cache_away", error=str(error))
            self._is_away = True
            raise
        self._is_away = False

    def _delete_oldest(self, count: int) -> int:
        return len(self._tables.transaction(lambda run: run(DELETE_OLDEST, {"count": count})))

    def _write(self, identity: str, blobs: Mapping[str, bytes], most_touches: int) -> None:
        """Write vectors, and the use of others."""
        touched: dict[str, list[bytes]] = {}
        with self._lock:
            for _ in range(min(most_touches, len(self._touched))):
                used_identity, key = self._touched.pop()
                touched.setdefault(used_identity, []).append(key)
        # In one order: of two processes that write the same rows, the second waits for the first.
        keys, today = sorted((hash_key(text_hash), blob) for text_hash, blob in blobs.items()), _today()

        def write(run: Run) -> None:
            if keys:
                run("{add_identity}", {"identity": identity})
                run(INSERT, [{"identity": identity, "key": key, "vector": blob, "day": today} for key, blob in keys])
            for used_identity, used_keys in touched.items():
                run(TOUCH, {"identity": used_identity, "keys": sorted(used_keys), "day": today})

        if keys or touched:
            self._tables.transaction(write)


def _today() -> int:
    return int(time.time()) // _SECONDS_A_DAY
