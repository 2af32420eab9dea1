"""Due times of changed documents. Pure: time comes in as an argument.

A document is due after its agent's quiet time without an event, and at the latest `BOUND_FACTOR` quiet times after the
first event: a file that is written every second is indexed, too. All events of one window are one hand-over.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from schemas.documents import DocumentKey

#: A document that never rests is handed over after this many quiet times.
BOUND_FACTOR = 10


@dataclass(slots=True)
class _Window:
    first: float
    last: float


class Debouncer:
    """Documents that changed and are not due yet. Not thread-safe.

    `quiet_seconds` says how long an agent's documents must be quiet. All times are seconds of one monotonic clock.
    """

    def __init__(self, quiet_seconds: Callable[[str], float], *, bound_factor: int = BOUND_FACTOR) -> None:
        self._quiet_seconds = quiet_seconds
        self._bound_factor = bound_factor
        self._windows: dict[tuple[str, DocumentKey], _Window] = {}
        # One entry a window, pushed again when it turns out that its document was touched meanwhile.
        self._heap: list[tuple[float, int, str, DocumentKey, _Window]] = []
        self._order = itertools.count()
        # Agent -> number of its windows.
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def agents(self) -> set[str]:
        """Return the agents with documents that are not due yet."""
        return set(self._counts)

    def touch(self, agent: str, key: DocumentKey, *, now: float) -> None:
        """Record an event of a document."""
        window = self._windows.get((agent, key))
        if window is not None:
            window.last = now
            return
        window = self._windows[agent, key] = _Window(now, now)
        self._counts[agent] = self._counts.get(agent, 0) + 1
        self._push(agent, key, window)

    def next_due(self) -> float | None:
        """Return the time before which no document is due; None without documents."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, *, now: float) -> dict[str, list[DocumentKey]]:
        """Remove and return the documents that are due, by agent, in the order in which they became due."""
        due: dict[str, list[DocumentKey]] = {}
        while self._heap and self._heap[0][0] <= now:
            _, _, agent, key, window = heapq.heappop(self._heap)
            if self._windows.get((agent, key)) is not window:
                continue  # flushed
            if self._due_at(agent, window) > now:
                self._push(agent, key, window)
                continue
            self._remove(agent, key)
            due.setdefault(agent, []).append(key)
        return due

    def flush(self, agent: str | None = None) -> dict[str, list[DocumentKey]]:
        """Remove and return all documents of an agent, or of all, due or not."""
        taken: dict[str, list[DocumentKey]] = {}
        for owner, key in [window for window in self._windows if agent in (None, window[0])]:
            self._remove(owner, key)
            taken.setdefault(owner, []).append(key)
        if not self._windows:
            self._heap.clear()
        return taken

    def _remove(self, agent: str, key: DocumentKey) -> None:
        del self._windows[agent, key]
        self._counts[agent] -= 1
        if not self._counts[agent]:
            del self._counts[agent]

    def _due_at(self, agent: str, window: _Window) -> float:
        quiet = self._quiet_seconds(agent)
        return min(window.last + quiet, window.first + self._bound_factor * quiet)

    def _push(self, agent: str, key: DocumentKey, window: _Window) -> None:
        heapq.heappush(self._heap, (self._due_at(agent, window), next(self._order), agent, key, window))
