"""Tables beside the indexes (the embedding cache, the ledger of batch jobs), in SQLite or in PostgreSQL.

A statement serves both: it has the parts that differ in braces, and a colon before the names of values.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[tuple[Any, ...]]

# `mine` are the rows of the home or the tenant. `identity` is the value of this name, `name` the identity of the row
# `r`; `hashes` and `keys` are JSON lists (of hexadecimal bytes) as rows.
SQLITE = {
    "jobs": "jobs",
    "texts": "texts",
    "embeddings": "embeddings",
    "mine": "TRUE",
    "tenant": "",
    "in_tenant": "",
    "skip_locked": "",
    "identity": "(SELECT id FROM identities WHERE identity = :identity)",
    "name": "(SELECT i.identity FROM identities AS i WHERE i.id = r.identity)",
    "hashes": "(SELECT value FROM json_each(:hashes))",
    "keys": "(SELECT unhex(value) FROM json_each(:keys))",
    "add_identity": "INSERT INTO identities (identity) VALUES (:identity) ON CONFLICT DO NOTHING",
    "lock_identity": "INSERT INTO identities (identity) VALUES (:identity) ON CONFLICT DO NOTHING",
}
_POSTGRES = {
    "jobs": "recalld.batch_jobs",
    "texts": "recalld.batch_texts",
    "embeddings": "recalld.embeddings",
    "mine": "tenant = :tenant",
    "tenant": "tenant, ",
    "in_tenant": ":tenant, ",
    "identity": ":identity",
    "name": "r.identity",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "hashes": "(SELECT json_array_elements_text(CAST(:hashes AS json)) AS value)",
    "keys": "(SELECT decode(json_array_elements_text(CAST(:keys AS json)), 'hex'))",
    "add_identity": "",
    "lock_identity": "SELECT pg_advisory_xact_lock(hashtext(:tenant), hashtext(:identity))",
}


class Run(Protocol):
    """Function that runs a statement for some rows of values and returns its rows; none for several."""

    def __call__(self, statement: str, /, *rows: Row) -> Rows: ...


class DurableTables(Protocol):
    """Tables of a home, or a tenant's part of them. Safe for several threads and processes.

    Raises, from every method: StoreFull, StoreBusy, StoreAway, StoreUnreadable.
    """

    def read(self, statement: str, row: Row) -> Rows:
        """Return the rows of a query."""

    def transaction(self, work: Callable[[Run], T]) -> T:
        """Return the result of a function that runs statements, after the commit is on disk."""

    def lock(self, name: str) -> AbstractContextManager[bool]:
        """Hold a lock for as long as the block runs; yield False if another process holds it."""

    def tidy(self) -> bool:
        """Do the maintenance that is due; return True if there was any."""

    def close(self) -> None:
        """Close the connection, if these tables have their own."""


def in_postgres(statement: str) -> str:
    """Return a statement in psycopg's form."""
    return re.sub(r":(\w+)", r"%(\1)s", statement.format_map(_POSTGRES))
