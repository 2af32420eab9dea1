"""Which generations' vectors a process holds in memory: those that are searched again and again, within one bound."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from memory.store.sqlite.held_vectors import HeldVectors, VectorView

#: Bytes of all vectors that a process holds, over all agents: 300,000 of 384 dimensions.
MAX_HELD_BYTES = 512 * 1024 * 1024

#: The search that makes an index a hot one, when none came later than so many seconds after the one before.
HOT_AT_SEARCH = 3
HOT_WITHIN_SECONDS = 300.0

#: Vectors that were searched within so many seconds make room for nobody: reading two in turn costs more than it saves.
KEPT_SECONDS = 10.0

#: Seconds after which vectors that found no room may look for some again.
REFUSED_SECONDS = 30.0


@dataclass(slots=True)
class _Heat:
    """Searches in a row, the time of the last one, and until when there is no room."""

    searches: int
    last: float
    refused_until: float = -math.inf


class VectorShelf:
    """Gives out the memory; the vectors that were searched longest ago make room. Thread-safe."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_HELD_BYTES,
        hot_at_search: int = HOT_AT_SEARCH,
        kept_seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._hot_at_search = hot_at_search
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._heat: WeakKeyDictionary[HeldVectors, _Heat] = WeakKeyDictionary()
        # Least recently searched first.
        self._held: OrderedDict[HeldVectors, int] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Bytes that are given out."""
        with self._lock:
            return sum(self._held.values())

    def is_hot(self, vectors: HeldVectors) -> bool:
        """Count a search; whether there were enough of them to hold what they read."""
        now = self._clock()
        with self._lock:
            heat = self._heat.get(vectors)
            if heat is None or now - heat.last > HOT_WITHIN_SECONDS:
                heat = self._heat[vectors] = _Heat(0, now)
            heat.searches, heat.last = heat.searches + 1, now
            if vectors in self._held:
                self._held.move_to_end(vectors)
                return True
            return heat.searches >= self._hot_at_search and now >= heat.refused_until

    def reserve(self, vectors: HeldVectors, size: int) -> bool:
        """Take so many bytes for an index that holds none yet; False when there is no room for them."""
        now = self._clock()
        with self._lock:
            free = self._max_bytes - sum(self._held.values())
            resting = []
            for other, held in self._held.items():
                if free >= size or now - self._heat[other].last < self._kept_seconds:
                    break
                resting.append(other)
                free += held
            if free < size:
                self._heat[vectors].refused_until = now + REFUSED_SECONDS
                return False
            for other in resting:
                self._drop(other)
            self._held[vectors] = size
            return True

    def replace(self, vectors: HeldVectors, view: VectorView) -> VectorView:
        """Put the view where other searches find it, unless its memory was taken back meanwhile."""
        with self._lock:
            if vectors in self._held:
                vectors.view = view
        return view

    def drop(self, vectors: HeldVectors) -> None:
        """Take back an index's memory. Searches that are using it finish with it."""
        with self._lock:
            self._drop(vectors)

    def _drop(self, vectors: HeldVectors) -> None:
        self._held.pop(vectors, None)
        vectors.view = None
