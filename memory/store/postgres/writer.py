"""Write access to one generation in PostgreSQL."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memory.store.document_transaction import DocumentWriter
from memory.store.postgres.connection import Database
from memory.store.postgres.reader import PostgresReader
from memory.store.postgres.rows import run
from memory.store.postgres.transaction import WriteTransaction
from memory.store.writer import Maintained
from schemas.agents import Scope

_OF_AGENT = "tenant = :tenant AND agent = :agent"
RETIRE_NEXT = f"UPDATE recalld.generations SET state = 'old' WHERE {_OF_AGENT} AND state = 'next'"
INSERT_GENERATION = f"""
INSERT INTO recalld.generations (tenant, agent, generation, fingerprint, identity, takeover, state)
SELECT :tenant, :agent, :generation, :fingerprint, :identity, :takeover, CASE WHEN EXISTS (
    SELECT FROM recalld.generations WHERE {_OF_AGENT} AND state = 'current'
) THEN 'next' ELSE 'current' END
"""


class PostgresStore(PostgresReader, DocumentWriter):
    """Read and write access to one generation. Reads use their own connections."""

    @contextmanager
    def transaction(self) -> Iterator[WriteTransaction]:
        seconds = self._options.busy_timeout_seconds
        with self._database.transaction(self._scope, lock_seconds=seconds) as connection:
            transaction = WriteTransaction(connection, self._bindings(), keeps_vectors=self.vector_reason is None)
            yield transaction
            transaction.finish()

    def maintain(self, *, go_on: Callable[[], bool], now: float) -> Maintained:  # noqa: ARG002 - the contract's
        """Do nothing: PostgreSQL's autovacuum frees deleted rows by itself. They leave the disk with it."""
        return Maintained()


def create_generation(
    database: Database, scope: Scope, *, fingerprint: str, description: str, takeover: str | None = None
) -> str:
    """Make a new, empty generation with these facts, which never change; return its name.

    An agent's first generation answers at once. A later one is under construction, in place of an earlier such one.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{fingerprint[:8]}-{secrets.token_hex(2)}"
    facts = {"generation": name, "fingerprint": fingerprint, "identity": description, "takeover": takeover}
    bindings = {"tenant": scope.tenant, "agent": scope.agent, **facts}
    with database.transaction(scope) as connection:
        run(connection, RETIRE_NEXT, bindings)
        run(connection, INSERT_GENERATION, bindings)
    return name
