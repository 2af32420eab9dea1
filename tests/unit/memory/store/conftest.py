"""Stores to test: every implementation for what all promise, SQLite alone for what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.store.options import StoreOptions
from memory.store.sqlite_writer import SqliteStore, create_generation
from memory.store.stub import InMemoryStore
from memory.store.writer import Store


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    """An empty generation."""
    path = tmp_path / "index.sqlite"
    create_generation(path, StoreOptions(), fingerprint="f", description="{}")
    return path


@pytest.fixture
def sqlite_store(index_path: Path) -> Iterator[SqliteStore]:
    """A store of that generation."""
    store = SqliteStore(index_path, StoreOptions())
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "in memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each implementation in turn."""
    made: Store
    if request.param == "sqlite":
        path = tmp_path / "store.sqlite"
        create_generation(path, StoreOptions(), fingerprint="f", description="{}")
        made = SqliteStore(path, StoreOptions())
    else:
        made = InMemoryStore(fingerprint="f", description="{}")
    yield made
    made.close()
