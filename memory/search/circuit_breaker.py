"""Circuit breaker between searches and the broker's queue."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import date

from schemas.conditions import Condition
from schemas.ports import (
    EndpointStatus,
    FleetNumbers,
    Pending,
    PendingReader,
    Usage,
    VectorProgress,
)
from schemas.status import BrokerState, ProcessState

#: Seconds for which the circuit stays open after a queue that did not answer.
OPEN_SECONDS = 2.0

#: Seconds for which the server's facts are kept.
FACTS_KEPT_SECONDS = 5.0

#: Seconds for which the processes' heartbeats are kept: they come every three.
SIGNS_KEPT_SECONDS = 1.0


class GuardedPendingReader:
    """`PendingReader` with a circuit breaker in front of another one; without another one it knows nothing.

    A request to a broker that does not answer takes a tenth of a second or more. While the circuit is open, requests
    get the answer for "unknown" at once.
    """

    def __init__(self, reader: PendingReader | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader: PendingReader = reader if reader is not None else self
        self._clock = clock
        self._lock = threading.Lock()
        self._open_until = 0.0 if reader is not None else math.inf
        self._signs: tuple[float, Sequence[ProcessState]] | None = None
        self._facts: tuple[float, BrokerState | None] | None = None

    def pending(self, agent: str) -> Pending | None:
        """Return the agent's pending documents; None while the queue does not answer."""
        if self._is_open():
            return None
        found = self._reader.pending(agent)
        if found is None:
            with self._lock:
                self._open_until = self._clock() + OPEN_SECONDS
        return found

    def vector_progress(self, agent: str) -> VectorProgress:
        """Return the progress of embeddings; an unknown one while the circuit is open."""
        return VectorProgress() if self._is_open() else self._reader.vector_progress(agent)

    def conditions(self, agent: str) -> Sequence[Condition]:
        """Return the reported conditions; none while the circuit is open."""
        return () if self._is_open() else self._reader.conditions(agent)

    def processes(self) -> Sequence[ProcessState]:
        """Return the states of the processes of the last second; none while the circuit is open."""
        if self._is_open():
            return ()
        now, kept = self._clock(), self._signs
        if kept is None or now - kept[0] >= SIGNS_KEPT_SECONDS:
            kept = self._signs = now, self._reader.processes()
        return kept[1]

    def broker(self) -> BrokerState | None:
        """Return the server's facts of the last seconds. They are read in spite of an open circuit."""
        now, kept = self._clock(), self._facts
        if self._reader is self:
            return None
        if kept is None or now - kept[0] >= FACTS_KEPT_SECONDS:
            kept = self._facts = now, self._reader.broker()
        return kept[1]

    def refusal(self) -> str | None:
        """Return the reason why an answering queue takes nothing new; None if it does, or does not answer."""
        facts = self.broker() if not self._is_open() else None
        if facts is None or facts.writable:
            return None
        return facts.warning or "the broker takes nothing new"

    def usage(self, agent: str, *, day: date | None = None) -> Sequence[Usage]:
        """Return the usage of embeddings; none while the circuit is open."""
        return () if self._is_open() else self._reader.usage(agent, day=day)

    def endpoint(self, account: str, model: str) -> EndpointStatus | None:
        """Return the state of an endpoint; None while the circuit is open."""
        return None if self._is_open() else self._reader.endpoint(account, model)

    def fleet(self) -> FleetNumbers | None:
        """Return the counts of all processes; None while the queue does not answer."""
        return None if self._is_open() else self._reader.fleet()

    def _is_open(self) -> bool:
        with self._lock:
            return self._clock() < self._open_until
