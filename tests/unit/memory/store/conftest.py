"""Stores to test: every implementation for what all promise, SQLite alone for what is its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.store.options import StoreOptions
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.stub import InMemoryStore
from memory.store.writer import Store


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    """An empty generation."""
    path = tmp_path / "index.sqlite"
    create_generation(path, StoreOptions(), fingerprint="f", description="{}")
    return path


#: How vectors are written: through sqlite-vec, or without it.
WRITING = {"with sqlite-vec": StoreOptions(), "without": StoreOptions(extension_path=Path("/nowhere/vec0.so"))}


@pytest.fixture(params=WRITING)
def sqlite_store(request: pytest.FixtureRequest, index_path: Path) -> Iterator[SqliteStore]:
    """A store of that generation, with sqlite-vec and without."""
    store = SqliteStore(index_path, WRITING[request.param])
    yield store
    store.close()


@pytest.fixture(params=[*WRITING, "in memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each implementation in turn."""
    made: Store
    if request.param in WRITING:
        path = tmp_path / "store.sqlite"
        create_generation(path, StoreOptions(), fingerprint="f", description="{}")
        made = SqliteStore(path, WRITING[request.param])
    else:
        made = InMemoryStore(fingerprint="f", description="{}")
    yield made
    made.close()
