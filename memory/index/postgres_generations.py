"""Generations of an agent's index as rows of PostgreSQL. The reading half.

The state of a row stands for the pointers: `current`, `next`, or `old` for a generation that neither names.
`memory.index.postgres_generation_writer` is the other half.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from memory.index.fingerprint import embedding_of
from memory.index.generations import CURRENT, GenerationFacts, Generations
from memory.store.options import StoreOptions
from memory.store.postgres.connection import Connection, Database, Rows
from memory.store.postgres.reader import PostgresReader
from memory.store.reader import StoreReader
from schemas.agents import Scope
from schemas.errors import RecalldError, Transient
from schemas.settings.service import StoreSettings

#: Seconds for which a reader believes in the rows that it read: a search reads them once.
MEMORY_SECONDS = 0.25

SELECT_GENERATIONS = """
SELECT upper(state), generation, fingerprint, identity, takeover, transactions, coalesce(last_commit_at, made_at),
    extract(epoch FROM clock_timestamp())::float8 - coalesce((meta ->> 'retired_at')::float8, made_at)
FROM recalld.generations WHERE tenant = %s AND agent = %s
"""


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """Row of a generation. An old one has no pointer and was retired `retired` seconds ago."""

    pointer: str
    name: str
    fingerprint: str
    identity: str
    takeover: str | None
    transactions: int
    changed_at: float
    retired: float


class PostgresGenerations(Generations):
    """Generations of one agent in PostgreSQL."""

    _memory_seconds = MEMORY_SECONDS

    def __init__(self, store: StoreSettings, agent_id: str) -> None:
        self._database = Database.of(store)
        self._scope = Scope.of(agent_id)
        self._options = StoreOptions.of(store)
        self._read_at = -math.inf  # monotonic
        self._last_rows: Sequence[GenerationRow] = ()

    def pointer(self, pointer: str) -> str | None:
        return next((row.name for row in self._rows() if row.pointer == pointer), None)

    def facts(self, pointer: str) -> GenerationFacts | None:
        with suppress(RecalldError):
            for row in self._rows():
                if row.pointer == pointer:
                    return GenerationFacts(embedding_of(row.identity), row.takeover)
        return None

    def token(self, pointer: str = CURRENT) -> object:
        # While the server is away, the open reader stays in use: its answers say so.
        with suppress(Transient):
            self._rows()
        return next((row.name for row in self._last_rows if row.pointer == pointer), None)

    def looks(self) -> object:
        return [(row.name, row.transactions) for row in self._rows() if row.pointer == CURRENT]

    def used_at(self) -> float:
        with suppress(RecalldError):
            return max((row.changed_at for row in self._rows()), default=0.0)
        return 0.0

    def leftovers(self) -> tuple[list[str], list[str]]:
        return [row.name for row in self._rows() if row.pointer == "OLD"], []

    def open_named(self, name: str, *, any_format: bool = False) -> StoreReader | None:  # noqa: ARG002 - of files
        exists = any(row.name == name for row in self._rows())
        return PostgresReader(self._database, self._scope, name, options=self._options) if exists else None

    def _rows(self) -> Sequence[GenerationRow]:
        """Return the rows of the agent's generations."""
        now = time.monotonic()
        # The first generation counts at once: a run that made it looks for its documents.
        if not self._last_rows or now - self._read_at > self._memory_seconds:
            with self._database.reading(self._scope) as connection:
                self._read(connection)
            self._read_at = now
        return self._last_rows

    def _read(self, connection: Connection) -> None:
        def read() -> Rows:
            return connection.execute(SELECT_GENERATIONS, (self._scope.tenant, self._scope.agent)).fetchall()

        rows = self._database.once(connection, ("generations", self._scope), read)
        self._last_rows = [GenerationRow(*row) for row in rows]
