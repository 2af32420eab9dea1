"""Counters of all processes of a namespace, summed in the broker.

A process that dies loses at most its counts since the last `flush`. Processes on other machines are counted, too. A
broker that lost its data starts at zero, which Prometheus takes for a restart.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import redis
import structlog

from schemas.metrics import EVENT_TO_SEARCHABLE_SECONDS, METRICS, Kind, Metric, Told
from schemas.ports import Count
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

_COUNTED = {metric.name: metric for metric in METRICS if metric.told is Told.FLEET and metric.kind is Kind.COUNTER}

#: Upper bounds in seconds of the histogram of event-to-searchable times.
FRESHNESS_BUCKETS = EVENT_TO_SEARCHABLE_SECONDS.buckets


def field_of(metric: Metric, *labels: str) -> str:
    """Return the field of a counter."""
    return json.dumps([metric.name, *labels])


def add_once(client: Any, fill: Callable[[Any], None]) -> None:
    """Run the commands that `fill` puts into a pipeline in one transaction. Log single commands that are refused.

    Raises:
        redis.RedisError: no command ran.
    """
    with client.pipeline(transaction=True) as pipe:
        fill(pipe)
        failed = [one for one in pipe.execute(raise_on_error=False) if isinstance(one, Exception)]
    if failed:
        log.warning("counts_lost", commands=len(failed), error=str(failed[0]))


class FleetCounters:
    """Counters of this process, added to the broker's by `flush`. Thread-safe; `flush` never raises."""

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
                self._fresh[field_of(metric, *labels)] += number

    def flush(self) -> None:
        """Add the new counts to the broker's; keep them if it does not answer."""
        with self._lock:
            counted, self._fresh = self._fresh, Counter()
        if not counted:
            return

        def fill(pipe: Any) -> None:
            for field, number in counted.items():
                pipe.hincrby(self._keys.counters, field, number)

        try:
            add_once(self._client, fill)
        except redis.RedisError as error:
            log.debug("counters_kept", error=str(error))
            with self._lock:
                self._fresh.update(counted)

    def read(self) -> Sequence[Count]:
        """Return the counts of all processes, of the metrics that this version has. Raises `redis.RedisError`."""
        found = []
        for field, number in self._client.hgetall(self._keys.counters).items():
            name, *labels = json.loads(field)
            metric = _COUNTED.get(name)
            if metric is not None and len(labels) == len(metric.labels):
                found.append(Count(metric=name, labels=tuple(map(str, labels)), number=int(number)))
        return found
