"""What all processes of a namespace count together: numbers in the broker.

A process that dies takes at most what it counted since its last `flush` with it; processes on other machines, and
those that nobody can reach, are counted like all others. A broker that lost its data starts at nothing, which
Prometheus takes for a restart.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import redis
import structlog

from schemas.metrics import EVENT_TO_SEARCHABLE_SECONDS, METRICS, Kind, Metric, Told
from schemas.ports import Count
from workers.names import Keys

log = structlog.get_logger(__name__)

_COUNTED = {metric.name: metric for metric in METRICS if metric.told is Told.FLEET and metric.kind is Kind.COUNTER}

#: Upper bounds in seconds of the histogram of event-to-searchable times.
FRESHNESS_BUCKETS = EVENT_TO_SEARCHABLE_SECONDS.buckets


class FleetCounters:
    """Counts in this process, and adds it to everybody's with `flush`. Thread-safe; never raises."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys
        self._lock = threading.Lock()
        self._fresh: Counter[str] = Counter()

    def add(self, metric: Metric, number: int = 1, *labels: str) -> None:
        """Count `number` more of a declared metric. `labels` are its labels' values, in their order."""
        if _COUNTED.get(metric.name) is not metric or len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} is not counted in the broker with {len(labels)} labels")
        if number:
            with self._lock:
                self._fresh[json.dumps([metric.name, *labels])] += number

    def flush(self) -> None:
        """Add what was counted since; kept for the next time when the broker does not answer."""
        with self._lock:
            counted, self._fresh = self._fresh, Counter()
        if not counted:
            return
        try:
            with self._client.pipeline(transaction=True) as pipe:
                for field, number in counted.items():
                    pipe.hincrby(self._keys.counters, field, number)
                pipe.execute()
        except redis.RedisError as error:
            log.debug("counters_kept", error=str(error))
            with self._lock:
                self._fresh.update(counted)

    def read(self) -> Sequence[Count]:
        """Everybody's numbers, without what only another version counts. Raises `redis.RedisError`."""
        found = []
        for field, number in self._client.hgetall(self._keys.counters).items():
            name, *labels = json.loads(field)
            metric = _COUNTED.get(name)
            if metric is not None and len(labels) == len(metric.labels):
                found.append(Count(metric=name, labels=tuple(map(str, labels)), number=int(number)))
        return found
