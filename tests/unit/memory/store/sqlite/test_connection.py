"""Connections that a process keeps open to its indexes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import apsw

from memory.store.options import StoreOptions
from memory.store.sqlite.connection import MAX_IDLE_CONNECTIONS, ReadConnections


def test_of_the_connections_of_an_index_a_few_are_kept(index_path: Path):
    connections = ReadConnections(index_path, StoreOptions())
    used: list[apsw.Connection] = []
    for kept in (0, MAX_IDLE_CONNECTIONS):
        with ExitStack() as stack:
            lent = [stack.enter_context(connections.borrow()) for _ in range(8)]
            assert all(connection.pragma("user_version") for connection in lent)
            assert sum(connection in used for connection in lent) == kept
        used += lent
    connections.close()
