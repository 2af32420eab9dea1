"""A queue that does not answer is not asked again by every search."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import date

from schemas.conditions import Condition
from schemas.ports import (
    BrokerFacts,
    EndpointStatus,
    FleetNumbers,
    Pending,
    PendingReader,
    ProcessSign,
    Usage,
    VectorProgress,
)

#: Seconds during which a queue that did not answer is taken to be still away.
REST_SECONDS = 2.0

#: Seconds for which what the server said of itself is good enough.
FACTS_KEPT_SECONDS = 5.0

#: Seconds for which what processes said of themselves is good enough: they say it every three.
SIGNS_KEPT_SECONDS = 1.0


class RestingPendingReader:
    """A `PendingReader` in front of another.

    Finding out that a broker is away takes a tenth of a second or more, which no search should pay twice.
    """

    def __init__(self, reader: PendingReader, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._lock = threading.Lock()
        self._away_until = 0.0
        self._signs: tuple[float, Sequence[ProcessSign]] | None = None
        self._facts: tuple[float, BrokerFacts | None] | None = None

    def pending(self, agent: str) -> Pending | None:
        """How far the agent is behind; None when the queue does not answer, or did not a moment ago."""
        if self._is_away():
            return None
        found = self._reader.pending(agent)
        if found is None:
            with self._lock:
                self._away_until = self._clock() + REST_SECONDS
        return found

    def vector_progress(self, agent: str) -> VectorProgress:
        """How fast vectors come in; nothing is known while the queue is away."""
        return VectorProgress() if self._is_away() else self._reader.vector_progress(agent)

    def conditions(self, agent: str) -> Sequence[Condition]:
        """Return what was reported; nothing is known while the queue is away."""
        return () if self._is_away() else self._reader.conditions(agent)

    def processes(self) -> Sequence[ProcessSign]:
        """Who should be there, as of a second ago; nothing is known while the queue is away."""
        if self._is_away():
            return ()
        now, kept = self._clock(), self._signs
        if kept is None or now - kept[0] >= SIGNS_KEPT_SECONDS:
            kept = self._signs = now, self._reader.processes()
        return kept[1]

    def broker(self) -> BrokerFacts | None:
        """Which server holds the queue, or that it refuses us, as of some seconds ago; also asked while it is away."""
        now, kept = self._clock(), self._facts
        if kept is None or now - kept[0] >= FACTS_KEPT_SECONDS:
            kept = self._facts = now, self._reader.broker()
        return kept[1]

    def refusal(self) -> str | None:
        """Why the queue takes nothing new, though it answers; None when it does, or is away."""
        facts = self.broker() if not self._is_away() else None
        if facts is None or facts.writable:
            return None
        return facts.warning or "the broker takes nothing new"

    def usage(self, agent: str, *, day: date | None = None) -> Sequence[Usage]:
        """What embedding cost; nothing is known while the queue is away."""
        return () if self._is_away() else self._reader.usage(agent, day=day)

    def endpoint(self, account: str, model: str) -> EndpointStatus | None:
        """Whether requests may leave; not known while the queue is away."""
        return None if self._is_away() else self._reader.endpoint(account, model)

    def fleet(self) -> FleetNumbers | None:
        """What all processes counted; None when the queue does not answer, or did not a moment ago."""
        return None if self._is_away() else self._reader.fleet()

    def _is_away(self) -> bool:
        with self._lock:
            return self._clock() < self._away_until
