"""Stores to test: every implementation for what all promise, SQLite alone for what is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from memory.store.options import StoreOptions
from memory.store.postgres.connection import Database
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import Store
from tests.postgres_server import PostgresServer, Urls
from tests.postgres_store import postgres_store


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    """An empty generation."""
    path = tmp_path / "index.sqlite"
    create_generation(path, StoreOptions(), fingerprint="f", description="{}")
    return path


#: How vectors are written: through sqlite-vec, or without it.
WRITING = {"with sqlite-vec": StoreOptions(), "without": StoreOptions(extension_path=Path("/nowhere/vec0.so"))}


def _sqlite(folder: Path, *, options: StoreOptions) -> SqliteStore:
    path = folder / "store.sqlite"
    create_generation(path, StoreOptions(), fingerprint="f", description="{}")
    return SqliteStore(path, options)


@pytest.fixture(params=WRITING)
def sqlite_store(request: pytest.FixtureRequest, index_path: Path) -> Iterator[SqliteStore]:
    """A store of that generation, with sqlite-vec and without."""
    store = SqliteStore(index_path, WRITING[request.param])
    yield store
    store.close()


#: A new implementation joins by a function that makes an empty index in a folder.
IMPLEMENTATIONS: dict[str, Callable[[Path], Store]] = {
    f"SQLite {how}": partial(_sqlite, options=options) for how, options in WRITING.items()
}


@pytest.fixture(scope="session")
def shared_urls(postgres_server: PostgresServer) -> Urls:
    """One database for the tests of a process. Each store in it has an agent of its own."""
    return postgres_server.database()


@pytest.fixture(scope="session")
def fleet_database(shared_urls: Urls) -> Iterator[Database]:
    """That database, for a worker."""
    database = Database(shared_urls.writer)
    yield database
    database.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the server before the first test that needs it, which ends the processes that it leaves."""
    for item in items:
        # The hook gets the tests of all folders.
        is_here = item.path.is_relative_to(Path(__file__).parent)
        if is_here and isinstance(item, pytest.Function) and "[PostgreSQL" in item.name:
            item.fixturenames.insert(0, "fleet_database")


@pytest.fixture(params=[*IMPLEMENTATIONS, "PostgreSQL"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each implementation in turn."""
    if request.param == "PostgreSQL":
        made: Store = postgres_store(request.getfixturevalue("fleet_database"))
    else:
        made = IMPLEMENTATIONS[request.param](tmp_path)
    yield made
    made.close()
