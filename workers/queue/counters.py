"""Counters of all processes of a namespace, summed in the broker: metrics, freshness, and the usage of embedding.

A process adds its counts at intervals. If it is killed, the counts of its last interval are lost; a payment is never
repeated for that. A broker that lost its data starts at zero, which Prometheus takes for a restart.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import structlog

from schemas.agents import tenant_of
from schemas.errors import BrokerUnavailable
from schemas.metrics import EVENT_TO_SEARCHABLE_SECONDS, FLEET_COUNTERS, Metric
from schemas.ports import SpooledUsage, Usage, UsageRecorder
from workers.queue.connection import BrokerClient
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

#: Upper bounds in seconds of the histogram of event-to-searchable times.
FRESHNESS_BUCKETS = EVENT_TO_SEARCHABLE_SECONDS.buckets

#: Seconds for which a day's usage is kept; the sum of all days stays.
USAGE_DAY_KEPT_SECONDS = 40 * 86_400

#: Fields of `Usage` that are counted for every request.
_OF_USAGE = ("requests", "failed", "inputs", "tokens", "batched")

#: Prefix of the fields that count the requests of searches once more.
_QUERIES = "queries."


def field_of(metric: Metric, *labels: str) -> str:
    """Return the field of a counter."""
    return json.dumps([metric.name, *labels])


class FleetCounters(UsageRecorder):
    """Counters of this process, added to the broker's by `flush`. Thread-safe; `flush` never raises."""

    def __init__(self, client: BrokerClient, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys
        self._lock = threading.Lock()
        #: (Hash, field) -> number that is not in the broker yet.
        self._fresh: Counter[tuple[str, str]] = Counter()
        self._seconds = 0.0

    def add(self, metric: Metric, number: int = 1, *labels: str) -> None:
        """Count `number` more of a declared metric. `labels` are its labels' values, in their order."""
        if FLEET_COUNTERS.get(metric.name) is not metric or len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} is not counted in the broker with {len(labels)} labels")
        self._add({(self._keys.counters, field_of(metric, *labels)): number})

    def record_freshness(self, seconds: Sequence[float]) -> None:
        """Add times from event to searchable to the histogram."""
        bounds = (next((str(bound) for bound in FRESHNESS_BUCKETS if value <= bound), "inf") for value in seconds)
        self._add(
            Counter((self._keys.freshness(), bound) for bound in bounds), seconds=sum(max(s, 0.0) for s in seconds)
        )

    def record_usage(
        self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False, on: date | None = None
    ) -> None:
        """Add one request to the usage of its agents, of their tenants and of all (agent "*"), `on` a day (today).

        Requests of indexing are in the broker before their vectors are in the cache, so that a kill loses none of them.
        """
        counts: Counter[tuple[str, str]] = Counter()
        for agent, share in agents.items():
            of_tenant = self._keys.usage(tenant_of(agent), on or today_utc())
            counts[of_tenant, f"tokens|{share.provider}|{share.model}"] += share.tokens
        for agent, share in [*agents.items(), ("*", usage)]:
            for day in (None, on or today_utc()):
                for name in _OF_USAGE:
                    for prefix in ("", _QUERIES) if queries else ("",):
                        field = f"{prefix}{name}|{share.provider}|{share.model}"
                        counts[self._keys.usage(agent, day), field] += getattr(share, name)
        self._add(counts)
        if not queries:
            self.flush()

    def count_spooled(self, spooled: SpooledUsage) -> None:
        """Add the request of a command."""
        self.record_usage(spooled.usage, agents=spooled.agents, queries=spooled.queries, on=spooled.day)
        self.flush()

    def flush(self) -> None:
        """Add the new counts to the broker's; keep them if it does not answer. A single refused count is lost."""
        with self._lock:
            counted, self._fresh = self._fresh, Counter()
            seconds, self._seconds = self._seconds, 0.0
        if not counted:
            return
        try:
            with self._client.pipeline(transaction=True) as pipe:
                for (key, field), number in counted.items():
                    pipe.hincrby(key, field, number)
                if seconds:
                    pipe.hincrbyfloat(self._keys.freshness(), "sum", seconds)
                for key in {key for key, _ in counted if self._keys.is_day(key)}:
                    pipe.expire(key, USAGE_DAY_KEPT_SECONDS)
                failed = [reply for reply in pipe.execute(raise_on_error=False) if isinstance(reply, Exception)]
        except BrokerUnavailable as error:
            log.debug("counters_kept", error=str(error))
            self._add(counted, seconds=seconds)
        else:
            if failed:
                log.warning("counts_lost", commands=len(failed), error=str(failed[0]))

    def read(self) -> Mapping[str, Mapping[tuple[str, ...], int]]:
        """Return `FleetNumbers.counts`, of the metrics that this version has. Raises BrokerUnavailable."""
        counts: dict[str, dict[tuple[str, ...], int]] = {}
        for field, number in self._client.hgetall(self._keys.counters).items():
            name, *labels = json.loads(field)
            metric = FLEET_COUNTERS.get(name)
            if metric is not None and len(labels) == len(metric.labels):
                counts.setdefault(name, {})[tuple(map(str, labels))] = int(number)
        return counts

    def usage(self, agent: str, *, day: date | None = None, queries: bool = True) -> Sequence[Usage]:
        """Return the usage of an agent on one day (UTC), or ever; the provider and model with most requests first.

        Without `queries`, requests of searches are left out. Raises BrokerUnavailable.
        """
        counts: dict[tuple[str, str], Counter[str]] = {}
        for field, number in self._client.hgetall(self._keys.usage(agent, day)).items():
            name, provider, model = field.decode().split("|", 2)
            counts.setdefault((provider, model), Counter())[name] = int(number)
        usages = [
            Usage(
                provider, model, *(numbers[name] - (0 if queries else numbers[_QUERIES + name]) for name in _OF_USAGE)
            )
            for (provider, model), numbers in counts.items()
        ]
        return sorted(usages, key=lambda usage: (-usage.requests, usage.provider, usage.model))

    def _add(self, counts: Mapping[tuple[str, str], int], *, seconds: float = 0.0) -> None:
        with self._lock:
            self._fresh.update({place: number for place, number in counts.items() if number})
            self._seconds += seconds


def today_utc() -> date:
    """Return the day of usage, the same one on every host."""
    return datetime.now(UTC).date()
