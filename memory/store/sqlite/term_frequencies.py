"""How many chunks hold a term, remembered until the next commit.

FTS5 counts quickly (40 ns a hit), but a word that a third of 100,000 chunks hold is 1.3 ms all the same, and people
ask for the same words again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import apsw

from memory.store.sqlite.rows import fetch, meta_value

#: Terms that are remembered at most.
REMEMBERED = 8192

# FTS5's record of averages, which its bm25() reads too; it begins with the number of rows
# (https://sqlite.org/src/file/ext/fts5/fts5_index.c, FTS5_AVERAGES_ROWID). Counting them would be a scan.
SELECT_AVERAGES = "SELECT block FROM chunks_fts_data WHERE id = 1"
COUNT_MATCHES = "SELECT count(*) FROM chunks_fts WHERE chunks_fts MATCH ?"


class TermFrequencies:
    """Of one generation. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commit: str | None = None
        self._chunks: int | None = None
        self._known: dict[str, int] = {}

    def chunks(self, connection: apsw.Connection) -> int:
        """How many chunks there are."""
        commit = self._begin(connection)
        with self._lock:
            if self._commit == commit and self._chunks is not None:
                return self._chunks
        rows = fetch(connection, SELECT_AVERAGES)
        counted = _first_varint(rows[0][0]) if rows else 0
        with self._lock:
            if self._commit == commit:
                self._chunks = counted
        return counted

    def of(self, connection: apsw.Connection, expressions: Sequence[str]) -> list[int]:
        """How many chunks hold each of these quoted FTS5 expressions."""
        commit = self._begin(connection)
        with self._lock:
            known = {expression: self._known[expression] for expression in expressions if expression in self._known}
        fresh = {
            expression: int(fetch(connection, COUNT_MATCHES, (expression,))[0][0])
            for expression in dict.fromkeys(expressions)
            if expression not in known
        }
        with self._lock:
            if self._commit == commit:
                if len(self._known) + len(fresh) > REMEMBERED:
                    self._known.clear()
                self._known |= fresh
        return [known.get(expression, fresh.get(expression, 0)) for expression in expressions]

    def _begin(self, connection: apsw.Connection) -> str | None:
        """The number of the last commit that the connection sees; what was known of another one is forgotten."""
        commit = meta_value(connection, "transactions")
        with self._lock:
            if commit != self._commit:
                self._commit, self._chunks = commit, None
                self._known.clear()
        return commit


def _first_varint(record: bytes) -> int:
    """SQLite's variable-length integers: seven bits a byte, the highest one says that more follow."""
    value = 0
    for byte in record[:8]:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    return value
