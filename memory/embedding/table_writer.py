"""Writing of tables beside the indexes."""

from __future__ import annotations

from pathlib import Path

from memory.store.durable_sqlite import DurableSqlite, Kind
from memory.store.durable_tables import DurableTables
from schemas.settings import Settings


def durable_tables(settings: Settings, tenant: str, path: Path, kind: Kind) -> DurableTables:
    """Return the tables in a home's file, which is made if it is missing, or those of a fleet's tenant."""
    if settings.store.url is None:
        return DurableSqlite(path, kind)
    from memory.embedding.postgres_tables import PostgresTables
    from memory.store.postgres.connection import Database

    return PostgresTables(Database.of(settings.store), tenant)
