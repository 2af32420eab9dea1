"""Due times of changed documents, and the thread that hands over what is due.

A document is due after its agent's quiet time without an event, and at the latest `BOUND_FACTOR` quiet times after the
first event: a file that is written every second is indexed, too. All events of one window are one hand-over.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from memory.status.pulses import Pulse
from schemas.documents import DocumentKey

_Value = TypeVar("_Value")

#: A document that never rests is handed over after this many quiet times.
BOUND_FACTOR = 10


@dataclass(slots=True)
class _Window:
    first: float
    last: float


class Debouncer:
    """Documents that changed and are not due yet. Pure: time comes in as an argument. Not thread-safe.

    `quiet_seconds` says how long an agent's documents must be quiet. All times are seconds of one monotonic clock.
    """

    def __init__(self, quiet_seconds: Callable[[str], float], *, bound_factor: int = BOUND_FACTOR) -> None:
        self._quiet_seconds = quiet_seconds
        self._bound_factor = bound_factor
        self._windows: dict[str, dict[DocumentKey, _Window]] = {}
        # One entry a window, pushed again when it turns out that its document was touched meanwhile.
        self._heap: list[tuple[float, int, str, DocumentKey, _Window]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._windows.values()))

    def agents(self) -> set[str]:
        """Return the agents with documents that are not due yet."""
        return set(self._windows)

    def touch(self, agent: str, key: DocumentKey, *, now: float) -> None:
        """Record an event of a document."""
        windows = self._windows.setdefault(agent, {})
        if key in windows:
            windows[key].last = now
        else:
            windows[key] = _Window(now, now)
            self._push(agent, key, windows[key])

    def next_due(self) -> float | None:
        """Return the time before which no document is due; None without documents."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, *, now: float) -> dict[str, list[DocumentKey]]:
        """Remove and return the documents that are due, by agent, in the order in which they became due."""
        due: dict[str, list[DocumentKey]] = {}
        while self._heap and self._heap[0][0] <= now:
            _, _, agent, key, window = heapq.heappop(self._heap)
            if self._windows.get(agent, {}).get(key) is not window:
                continue  # flushed
            if self._due_at(agent, window) > now:
                self._push(agent, key, window)
                continue
            due.setdefault(agent, []).append(key)
            del self._windows[agent][key]
            if not self._windows[agent]:
                del self._windows[agent]
        return due

    def flush(self, agent: str | None = None) -> dict[str, list[DocumentKey]]:
        """Remove and return all documents of an agent, or of all, due or not."""
        owners = [owner for owner in self._windows if agent in (None, owner)]
        taken = {owner: list(self._windows.pop(owner)) for owner in owners}
        if not self._windows:
            self._heap.clear()
        return taken

    def _due_at(self, agent: str, window: _Window) -> float:
        quiet = self._quiet_seconds(agent)
        return min(window.last + quiet, window.first + self._bound_factor * quiet)

    def _push(self, agent: str, key: DocumentKey, window: _Window) -> None:
        heapq.heappush(self._heap, (self._due_at(agent, window), next(self._order), agent, key, window))


class DebouncedThread(ABC, Generic[_Value]):
    """Thread that hands over documents that were quiet for long enough. All methods are thread-safe.

    `held_back` gets the agents whose documents wait, whenever they change. `_deliver` gets what is due, by agent; a
    document whose quiet time is over comes with `_DUE`.
    """

    _DUE: _Value

    def __init__(
        self,
        name: str,
        *,
        quiet_seconds: Callable[[str], float],
        held_back: Callable[[set[str]], None],
        pause_seconds: float,
        bound_factor: int = BOUND_FACTOR,
        clock: Callable[[], float] = time.monotonic,
        pulse: Pulse | None = None,
    ) -> None:
        self._pulse = pulse or Pulse(name)
        self._held_back = held_back
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._changed = threading.Condition()
        self._debouncer = Debouncer(quiet_seconds, bound_factor=bound_factor)
        self._waiting: dict[str, dict[DocumentKey, _Value]] = {}
        #: Nothing is delivered before this time.
        self._retry_at: float | None = None
        self._delivering = self._urgent = self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._pulse.belongs_to(self._thread)

    def touch(self, agent: str, key: DocumentKey) -> None:
        """Record an event of a document: hand it over when it has been quiet for long enough."""
        with self._changed:
            before = self._debouncer.next_due(), self._debouncer.agents()
            self._debouncer.touch(agent, key, now=self._clock())
            if (self._debouncer.next_due(), self._debouncer.agents()) != before:
                self._changed.notify_all()

    def flush(self, agent: str | None = None) -> None:
        """Hand over at once the documents of one agent, or of all, that wait for their quiet time."""
        with self._changed:
            for owner, keys in self._debouncer.flush(agent).items():
                self._waiting.setdefault(owner, {}).update(dict.fromkeys(keys, self._DUE))
            self._urgent = True
            self._changed.notify_all()

    def settle(self, timeout_seconds: float) -> bool:
        """Wait until every due document is delivered. Return False after the timeout, or while deliveries fail."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._retry_at is not None or not (self._waiting or self._delivering), timeout_seconds
            )
            return not (self._waiting or self._delivering)

    def waiting(self) -> int:
        """Return the number of documents that are not delivered yet."""
        with self._changed:
            return len(self._debouncer) + sum(map(len, self._waiting.values()))

    def stop(self) -> None:
        """Try once to deliver everything, and end the thread. Events are hints and may be lost."""
        self.flush()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    @abstractmethod
    def _deliver(self, batches: Mapping[str, Mapping[DocumentKey, _Value]]) -> None:
        """Hand over these documents. What fails goes back into `_waiting`, and `_retry_at` is set."""

    def _put(self, agent: str, values: Mapping[DocumentKey, _Value], *, urgent: bool = False) -> None:
        with self._changed:
            self._waiting.setdefault(agent, {}).update(values)
            self._urgent = self._urgent or urgent
            self._changed.notify_all()

    def _run(self) -> None:
        told: set[str] = set()
        while True:
            with self._changed:
                stopping, now = self._stopping, self._clock()
                for agent, keys in self._debouncer.take_due(now=now).items():
                    self._waiting.setdefault(agent, {}).update(dict.fromkeys(keys, self._DUE))
                held = self._debouncer.agents() | {agent for agent, keys in self._waiting.items() if keys}
                batches: dict[str, dict[DocumentKey, _Value]] = {}
                if stopping or self._retry_at is None or now >= self._retry_at:
                    batches, self._waiting = self._waiting, {}
                self._urgent, self._delivering = False, bool(batches)
                if not batches and not stopping and held == told:
                    times = [at for at in (self._debouncer.next_due(), self._retry_at) if at is not None]
                    # The pause is real time even when the clock is a test's.
                    self._changed.wait(max(0.001, min(times) - now) if times else None)
                    continue
            with self._pulse.at("hands over what is due"):
                self._held_back(set() if stopping else held)
                told = held
                self._deliver(batches)
            with self._changed:
                self._delivering = False
                self._changed.notify_all()
                if stopping:
                    return
                if self._retry_at is None:
                    self._changed.wait_for(lambda: self._stopping or self._urgent, self._pause_seconds)
