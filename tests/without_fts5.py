"""An SQLite without FTS5: connections that are opened meanwhile have lost the module, as if it was never built in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw


@contextmanager
def without_fts5() -> Iterator[None]:
    """Open connections that know of no FTS5; those that are open already keep it."""

    def take_away(connection: apsw.Connection) -> None:
        connection.drop_modules(["json_each", "json_tree"])

    apsw.connection_hooks.append(take_away)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(take_away)
