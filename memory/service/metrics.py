"""Metrics of a query service: its own, those of indexes and queue, and those of all processes together.

They are declared in `schemas.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from memory.telemetry import prometheus
from schemas import metrics
from schemas.ports import FleetNumbers, Usage
from schemas.status import EndpointCondition


@dataclass(frozen=True, slots=True)
class AgentNumbers:
    """One agent's numbers at the time of a scrape; None for an unknown number.

    `usage` is the cost of all embedding so far; `endpoint` the provider in use, its model and its condition.
    """

    agent: str
    pending: int | None
    oldest_seconds: float | None
    chunks: int | None
    vectors_pending: int | None
    dead_letters: int | None
    troubles: int | None = None
    usage: tuple[Usage, ...] = ()
    endpoint: tuple[str, str, EndpointCondition] | None = None


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """Numbers that all agents of a process share, at the time of a scrape.

    `answers_kept` searches were answered from the cache of answers, `answers_searched` were not. `fleet` holds the
    counts of all processes, None when the broker does not answer; `queue_takes` is False when it answers and takes
    nothing new.
    """

    answers_kept: int
    answers_searched: int
    answers_bytes: int
    open_indexes: int
    fleet: FleetNumbers | None = None
    queue_takes: bool = True


class ServiceMetrics:
    """Registry of one service. `process` returns the numbers that its agents share."""

    def __init__(self, version: str, *, process: Callable[[], ProcessNumbers] | None = None) -> None:
        self._registry = CollectorRegistry()
        if process is not None:
            self._registry.register(_Process(process))
        prometheus.gauge(metrics.BUILD, self._registry).labels(version).set(1)
        self.search_seconds = prometheus.histogram(metrics.SEARCH_SECONDS, self._registry)
        self.searches = prometheus.counter(metrics.SEARCHES, self._registry)
        self.degradations = prometheus.counter(metrics.DEGRADATIONS, self._registry)
        self.reads = prometheus.counter(metrics.READS, self._registry)
        self.denied = prometheus.counter(metrics.DENIED, self._registry)

    def scrape(self, numbers: Callable[[], Iterable[AgentNumbers]]) -> bytes:
        """Return everything in Prometheus text format, with the agents' numbers as of now."""
        agents = CollectorRegistry()
        agents.register(_Agents(numbers))
        return generate_latest(self._registry) + generate_latest(agents)


class _Process(Collector):
    def __init__(self, numbers: Callable[[], ProcessNumbers]) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        numbers = self._numbers()
        answers: prometheus.Numbers = {("hit",): numbers.answers_kept, ("miss",): numbers.answers_searched}
        yield prometheus.family(metrics.CACHED_ANSWERS, answers)
        yield prometheus.family(metrics.CACHED_ANSWERS_BYTES, {(): numbers.answers_bytes})
        yield prometheus.family(metrics.OPEN_INDEXES, {(): numbers.open_indexes})
        yield prometheus.family(metrics.BROKER_UP, {(): float(numbers.fleet is not None and numbers.queue_takes)})
        if numbers.fleet is not None:
            yield from _fleet(numbers.fleet)


def _fleet(numbers: FleetNumbers) -> Iterator[Metric]:
    """Yield the counts that the broker keeps for all processes; they survive the restart of any process."""
    queues: prometheus.Numbers = {(queue,): messages for queue, messages in numbers.queues.items()}
    yield prometheus.family(metrics.QUEUE_MESSAGES, queues)
    yield prometheus.histogram_family(metrics.EVENT_TO_SEARCHABLE_SECONDS, numbers.freshness, numbers.freshness_sum)
    for metric in (
        metrics.CHANGES,
        metrics.JOBS,
        metrics.DOCUMENTS,
        metrics.COMMITS,
        metrics.VECTORS,
        metrics.MAINTENANCE,
        metrics.MAINTENANCE_SECONDS,
        metrics.EMBEDDING_CACHE,
    ):
        counts = {count.labels: count.number for count in numbers.counts if count.metric == metric.name}
        yield prometheus.family(metric, counts)


class _Agents(Collector):
    def __init__(self, numbers: Callable[[], Iterable[AgentNumbers]]) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        numbers: dict[metrics.Metric, Callable[[AgentNumbers], float | None]] = {
            metrics.PENDING: lambda agent: agent.pending,
            metrics.PENDING_OLDEST_SECONDS: lambda agent: agent.oldest_seconds,
            metrics.CHUNKS: lambda agent: agent.chunks,
            metrics.VECTORS_PENDING: lambda agent: agent.vectors_pending,
            metrics.DEAD_LETTERS: lambda agent: agent.dead_letters,
            metrics.TROUBLES: lambda agent: agent.troubles,
        }
        known = list(self._numbers())
        for metric, number in numbers.items():
            values = {(agent.agent,): number(agent) for agent in known}
            yield prometheus.family(metric, {labels: value for labels, value in values.items() if value is not None})
        yield from _usage(known)
        yield _endpoints(known)


def _usage(known: Iterable[AgentNumbers]) -> Iterator[Metric]:
    requests: dict[tuple[str, ...], float] = {}
    inputs: dict[tuple[str, ...], float] = {}
    tokens: dict[tuple[str, ...], float] = {}
    for agent in known:
        for usage in agent.usage:
            whose = (agent.agent, usage.provider, usage.model)
            requests[*whose, "answered"] = usage.requests - usage.failed
            requests[*whose, "failed"] = usage.failed
            inputs[whose] = usage.inputs
            tokens[whose] = usage.tokens
    yield prometheus.family(metrics.EMBEDDING_REQUESTS, requests)
    yield prometheus.family(metrics.EMBEDDING_INPUTS, inputs)
    yield prometheus.family(metrics.EMBEDDING_TOKENS, tokens)


def _endpoints(known: Iterable[AgentNumbers]) -> Metric:
    states: dict[tuple[str, ...], float] = {}
    for agent in known:
        if agent.endpoint is not None:
            provider, model, current = agent.endpoint
            for condition in EndpointCondition:
                states[agent.agent, provider, model, condition.value] = float(condition is current)
    return prometheus.family(metrics.ENDPOINT, states)
