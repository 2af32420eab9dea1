"""Ledger of paid texts: by agent, and those that were paid for although their vectors were kept."""

from __future__ import annotations

import time
from pathlib import Path

import apsw

from memory.chunking.chunker import text_hash
from tests.embedding_server import EmbeddingServer


class Payments:
    """Compares what an embedding server was asked with what the cache held before."""

    def __init__(self, server: EmbeddingServer, cache: Path) -> None:
        self._server = server
        self._cache = cache
        self._kept: dict[str, float] = {}  # hash of a text, when it was first seen in the cache

    def look(self) -> None:
        """See what is kept by now."""
        if not self._cache.exists():
            return
        connection = apsw.Connection(str(self._cache), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            connection.set_busy_timeout(5_000)
            assert connection.pragma("integrity_check") == "ok"
            hashes = [bytes(key).hex() for (key,) in connection.execute("SELECT hash FROM embeddings")]
        finally:
            connection.close()
        now = time.monotonic()
        for digest in hashes:
            self._kept.setdefault(digest, now)

    @property
    def double(self) -> list[str]:
        """Texts that a request asked for which arrived when they had been kept."""
        return [
            text
            for request in list(self._server.log)
            for text in request.inputs
            if request.started > self._kept.get(text_hash(text), float("inf"))
        ]

    @property
    def paid(self) -> int:
        """Texts of documents that were paid for, as often as they were."""
        return sum(times for text, times in self._server.paid.items() if text_hash(text) in self._kept)

    @property
    def in_flight_again(self) -> int:
        """Payments beyond the first for a text."""
        return sum(times - 1 for text, times in self._server.paid.items() if text_hash(text) in self._kept)
