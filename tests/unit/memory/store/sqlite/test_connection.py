"""Connections that a process keeps open to its indexes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from memory.store.options import StoreOptions
from memory.store.sqlite.connection import MAX_IDLE_CONNECTIONS, ReadConnections


def descriptors(path: Path) -> int:
    """The open descriptors of a file of this process."""
    links = list(Path("/proc/self/fd").iterdir())
    return sum(link.exists() and link.readlink() == path for link in links)


def test_of_the_connections_of_an_index_a_few_are_kept(index_path: Path):
    connections = ReadConnections(index_path, StoreOptions())
    for _ in range(2):
        with ExitStack() as stack:
            lent = [stack.enter_context(connections.borrow()) for _ in range(8)]
            assert len(set(map(id, lent))) == 8
            assert all(connection.pragma("user_version") for connection in lent)
        assert descriptors(index_path) == MAX_IDLE_CONNECTIONS
    connections.close()
    assert descriptors(index_path) == 0
