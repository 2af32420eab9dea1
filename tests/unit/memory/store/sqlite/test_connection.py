"""Connections that a process keeps open to its indexes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from memory.store.options import StoreOptions
from memory.store.sqlite import connection as sqlite_pool
from memory.store.sqlite.connection import MAX_IDLE_CONNECTIONS, ReadConnections
from memory.store.sqlite.writer import create_generation


@pytest.fixture
def further(monkeypatch: pytest.MonkeyPatch) -> threading.BoundedSemaphore:
    """A process that keeps five connections beside the first ones."""
    made = threading.BoundedSemaphore(5)
    monkeypatch.setattr(sqlite_pool, "_further", made)
    return made


def pool(folder: Path, name: str) -> ReadConnections:
    path = folder / f"{name}.sqlite"
    create_generation(path, StoreOptions(), fingerprint="f", description="{}")
    return ReadConnections(path, StoreOptions())


def use_at_once(connections: ReadConnections, number: int) -> None:
    with ExitStack() as stack:
        lent = [stack.enter_context(connections.borrow()) for _ in range(number)]
        assert len(set(map(id, lent))) == number
        assert all(connection.pragma("user_version") for connection in lent)


def test_a_few_connections_of_each_index_are_kept_and_a_bounded_number_of_all(
    tmp_path: Path, further: threading.BoundedSemaphore
):
    pools = [pool(tmp_path, str(number)) for number in range(4)]
    for connections in pools:
        use_at_once(connections, 8)
    assert [len(connections._idle) for connections in pools] == [MAX_IDLE_CONNECTIONS, 3, 1, 1]
    for _ in range(3):
        use_at_once(pools[3], 3)
    assert len(pools[3]._idle) == 1

    pools[0].close()
    use_at_once(pools[3], 8)
    assert len(pools[3]._idle) == MAX_IDLE_CONNECTIONS
    for connections in pools:
        connections.close()
    # All places were given back, none twice.
    assert all(further.acquire(blocking=False) for _ in range(5))
    assert not further.acquire(blocking=False)
