"""Between the batcher and the cache: a vector that was paid for is kept, even while the disk is full."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import structlog

from memory.embedding.cache import EmbeddingCache
from memory.store.errors import StoreBusy, StoreFull
from memory.store.reader import Vector

log = structlog.get_logger(__name__)

#: Vectors held in memory while the cache cannot take them; beyond that nothing more is paid for.
MOST_UNSAVED = 4_096


class VectorKeeper:
    """Writes vectors of one identity into the cache, holding those that it cannot take just now. Thread-safe.

    Without a cache it keeps nothing.
    """

    def __init__(self, cache: EmbeddingCache | None, identity: str) -> None:
        self._cache = cache
        self._identity = identity
        self._lock = threading.Lock()
        self._unsaved: dict[str, Vector] = {}

    def known(self, hashes: Sequence[str]) -> dict[str, Vector]:
        """Vectors that somebody paid for already."""
        if self._cache is None:
            return {}
        with self._lock:
            held = {text_hash: self._unsaved[text_hash] for text_hash in hashes if text_hash in self._unsaved}
        return self._cache.get_many(self._identity, [h for h in hashes if h not in held]) | held

    def keep(self, vectors: Mapping[str, Vector]) -> None:
        """Commit the vectors of one response. When the cache is full or locked they are held for later."""
        if self._cache is None:
            return
        with self._lock:
            self._unsaved.update(vectors)
        self.flush()

    def flush(self) -> None:
        """Try to commit what is held."""
        try:
            self._flush()
        except (StoreFull, StoreBusy) as error:
            log.warning("embedding_cache_cannot_keep", held=len(self._unsaved), error=str(error))

    def ensure_room(self) -> None:
        """Refuse to pay for more when too much is held already.

        Raises:
            StoreFull: the cache has been without space for too long.
        """
        if len(self._unsaved) < MOST_UNSAVED:
            return
        try:
            self._flush()
        except StoreBusy as error:
            raise StoreFull(f"the embedding cache takes nothing: {error}") from error

    def _flush(self) -> None:
        if self._cache is None:
            return
        with self._lock:
            batch = dict(self._unsaved)
        if not batch:
            return
        self._cache.put_many(self._identity, batch)
        with self._lock:
            for text_hash in batch:
                self._unsaved.pop(text_hash, None)
