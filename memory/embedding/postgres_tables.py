"""Tables beside the indexes in PostgreSQL: a tenant's rows of the embedding cache and of the ledger of batch jobs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from memory.store.durable_tables import Row, Rows, Run, in_postgres
from memory.store.postgres.connection import Connection, Database
from schemas.errors import RecalldError

T = TypeVar("T")

#: Seconds that a lock outlives its process: more than the time limit of a job in the queue.
LEASE_SECONDS = 660.0

# The server's clock decides: those of the workers may differ.
TAKE_LEASE = """
INSERT INTO recalld.leases AS held (name, holder, fence, expires_at)
VALUES (:name, :holder, 1, now() + make_interval(secs => :seconds))
ON CONFLICT (name) DO UPDATE
SET holder = excluded.holder, fence = held.fence + 1, expires_at = excluded.expires_at WHERE held.expires_at < now()
RETURNING fence
"""
END_LEASE = "DELETE FROM recalld.leases WHERE name = :name AND holder = :holder"


class PostgresTables:
    """The `DurableTables` of a tenant."""

    def __init__(self, database: Database, tenant: str) -> None:
        self._database = database
        self._tenant = tenant

    def read(self, statement: str, row: Row) -> Rows:
        with self._database.reading(self._tenant) as connection:
            return self._run(connection, statement, row)

    def transaction(self, work: Callable[[Run], T]) -> T:
        with self._database.transaction(self._tenant) as connection:
            # The server may be set to answer before a commit is on its disk.
            connection.execute("SET LOCAL synchronous_commit = on")
            return work(partial(self._run, connection))

    @contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        lease: Row = {"name": f"{self._tenant}: {name}", "holder": secrets.token_hex(8), "seconds": LEASE_SECONDS}
        granted = bool(self.transaction(lambda run: run(TAKE_LEASE, lease)))
        try:
            yield granted
        finally:
            if granted:
                with suppress(RecalldError):  # it expires
                    self.transaction(lambda run: run(END_LEASE, lease))

    def tidy(self) -> bool:
        """Return False: the server tidies by itself."""
        return False

    def close(self) -> None:
        """Leave the connections open: they belong to the process."""

    def _run(self, connection: Connection, statement: str, values: Row | list[Row]) -> Rows:
        query = in_postgres(statement)
        if not query:
            return []
        if isinstance(values, list):  # one array for each column
            values = {name: [row[name] for row in values] for name in values[0]}
        cursor = connection.execute(query, values | {"tenant": self._tenant}, binary=True)
        return cursor.fetchall() if cursor.description is not None else []
