"""Tables of the embedding cache and the ledger of batch jobs: in a file, and of a tenant of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from memory.embedding.postgres_tables import PostgresTables
from memory.store.durable_sqlite import DurableSqlite, Kind
from memory.store.durable_tables import DurableTables
from memory.store.postgres.connection import Database

#: Opens the same tables anew at each call, as another process would.
OpenTables: TypeAlias = Callable[[Kind], DurableTables]


@pytest.fixture(params=["sqlite", "postgres"])
def open_tables(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> OpenTables:
    if request.param == "sqlite":
        return lambda kind: DurableSqlite(tmp_path / "tables.sqlite", kind)
    return lambda _kind: PostgresTables(database, "acme")
