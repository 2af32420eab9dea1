"""Tables beside the indexes (the embedding cache, the ledger of batch jobs), in SQLite or in PostgreSQL.

A statement serves both: it has the parts that differ in braces, and a colon before the names of values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[tuple[Any, ...]]

# `mine` are the rows of the home or the tenant. `identity` is the value of this name, `name` the identity of the row
# `r`. `hashes` and `keys` are lists, of text and of bytes. `bought` are rows of embeddings.
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
    "in_hashes": "IN (SELECT value FROM json_each(:hashes))",
    "in_keys": "IN (SELECT unhex(value) FROM json_each(:keys))",
    "bought": "VALUES ((SELECT id FROM identities WHERE identity = :identity), :key, :vector, :day)",
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
    "hashes": "(SELECT unnest(CAST(:hashes AS text[])) AS value)",
    "in_hashes": "= ANY (CAST(:hashes AS text[]))",
    "in_keys": "= ANY (CAST(:keys AS bytea[]))",
    "bought": "SELECT :tenant, * FROM unnest(CAST(:identity AS text[]), CAST(:key AS bytea[]), "
    "CAST(:vector AS bytea[]), CAST(:day AS int[]))",
    "add_identity": "",
    "lock_identity": "SELECT pg_advisory_xact_lock(hashtext(:tenant), hashtext(:identity))",
}


class Run(Protocol):
    """Function that runs a statement with values, for each row of a list, and returns its rows."""

    def __call__(self, statement: str, values: Row | list[Row], /) -> Rows: ...


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


def in_sqlite(statement: str, row: Row) -> tuple[str, Row]:
    """Return a statement and its values in the form of SQLite: lists in JSON, bytes in them hexadecimal."""
    lists = {name: values for name, values in row.items() if isinstance(values, list)}
    texts = {name: [value.hex() if isinstance(value, bytes) else value for value in lists[name]] for name in lists}
    return statement.format_map(SQLITE), row | {name: json.dumps(values) for name, values in texts.items()}


def in_postgres(statement: str) -> str:
    """Return a statement in psycopg's form."""
    return re.sub(r":(\w+)", r"%(\1)s", statement.format_map(_POSTGRES))
