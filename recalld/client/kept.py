"""Open connections that nobody uses just now. Safe to use from several threads."""

from __future__ import annotations

import time
from typing import Generic, Protocol, TypeVar

#: Seconds that a connection is kept unused. The service closes one after five.
KEPT_SECONDS = 4.0

#: Unused connections that are kept at most.
MAX_KEPT = 8


class Connection(Protocol):
    """What can be kept."""

    def usable(self) -> bool:
        """Whether it may be used from here and now, as far as can be told without sending anything."""
        ...

    def close(self) -> None:
        """Let it go at once."""
        ...


C = TypeVar("C", bound=Connection)


class KeptConnections(Generic[C]):
    """The most recently used one is handed out first."""

    def __init__(self) -> None:
        self._kept: list[tuple[C, float]] = []

    def __del__(self) -> None:
        self.close()

    def take(self) -> C | None:
        """One that may be used, None when there is none."""
        # A list's own methods are atomic, so two threads never get the same one.
        while self._kept:
            try:
                connection, since = self._kept.pop()
            except IndexError:
                break
            if time.monotonic() - since < KEPT_SECONDS and connection.usable():
                return connection
            connection.close()
        return None

    def give(self, connection: C) -> None:
        """Keep one for the next who asks."""
        if len(self._kept) < MAX_KEPT:
            self._kept.append((connection, time.monotonic()))
        else:
            connection.close()

    def close(self) -> None:
        """Let all of them go."""
        while self._kept:
            try:
                connection, _ = self._kept.pop()
            except IndexError:
                return
            connection.close()


class Stale(Exception):
    """The other side closed the connection before it said a word: it was too old, or nobody is there."""
