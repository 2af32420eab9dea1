"""Reading of tables beside the indexes by processes that never write them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from memory.store.durable_tables import Row, Rows, in_sqlite
from memory.store.errors import StoreAway, StoreBusy
from memory.store.sqlite_file import read_durable
from schemas.settings import Settings

#: Function that returns the rows of a query; none from tables that cannot be read right now.
ReadTables: TypeAlias = Callable[[str, Row], Rows]


def table_reader(settings: Settings, tenant: str, path: Path, version: int) -> ReadTables:
    """Return the function that reads a home's file of this version, or the tables of a fleet's tenant."""
    if settings.store.url is None:
        return file_reader(path, version)
    from memory.embedding.postgres_tables import PostgresTables
    from memory.store.postgres.connection import Database

    tables = PostgresTables(Database.of(settings.store), tenant)

    def read(statement: str, row: Row) -> Rows:
        with suppress(StoreAway, StoreBusy):
            return tables.read(statement, row)
        return []

    return read


def file_reader(path: Path, version: int) -> ReadTables:
    """Return the function that reads a file of this version."""

    def read(statement: str, row: Row) -> Rows:
        no_rows = list[tuple[Any, ...]]()
        return read_durable(path, version, lambda file: file.execute(*in_sqlite(statement, row)).fetchall(), no_rows)

    return read
