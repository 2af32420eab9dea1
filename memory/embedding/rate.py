"""How fast a provider turns chunks into vectors."""

from __future__ import annotations

import math
import time

#: Busy seconds after which a measurement counts half.
_HALF_LIFE_SECONDS = 20.0

#: The expected rate counts like a measurement of this many busy seconds, until real ones outweigh it.
_PRIOR_SECONDS = 0.5


class BusyRate:
    """Chunks a second while requests are in flight, recent ones counting more. The caller locks.

    Idle time does not count, and neither do requests too small to tell: a lone live chunk says how long
    a request takes, not how many chunks a second there can be.
    """

    def __init__(self, expected: float, *, telling: int) -> None:
        self._chunks = expected * _PRIOR_SECONDS
        self._seconds = _PRIOR_SECONDS
        self._telling = telling
        self._in_flight = 0
        self._since = 0.0

    @property
    def chunks_per_second(self) -> float:
        """The estimate; always positive."""
        return max(self._chunks / self._seconds, 1e-3)

    def started(self, inputs: int) -> None:
        """A request left."""
        if inputs < self._telling:
            return
        self._advance()
        self._in_flight += 1

    def ended(self, inputs: int, embedded: int) -> None:
        """A request of so many inputs is over; so many of them got their vectors."""
        if inputs < self._telling:
            return
        self._advance()
        self._in_flight -= 1
        self._chunks += embedded

    def _advance(self) -> None:
        now = time.monotonic()
        if self._in_flight:
            busy = now - self._since
            fade = math.exp2(-busy / _HALF_LIFE_SECONDS)
            self._chunks *= fade
            self._seconds = self._seconds * fade + busy
        self._since = now
