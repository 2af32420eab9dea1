"""Metrics of a query service: its own, those of indexes and queue, and those of all processes together.

They are declared in `schemas.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from memory.service.agents import ServedAgents
from memory.service.overview import queue_view
from memory.telemetry import prometheus
from schemas import metrics
from schemas.conditions import ConditionCode
from schemas.ports import FleetNumbers
from schemas.service import AgentQueue
from schemas.status import EndpointCondition, FleetState
from schemas.version import recalld_version

#: Troubles that have metrics of their own.
_WITH_OWN_METRICS = {ConditionCode.VECTORS_UNAVAILABLE, ConditionCode.PROVIDER_SILENT}


class ServiceMetrics:
    """Counters of one service, and its metrics as text."""

    def __init__(self, agents: ServedAgents) -> None:
        self._agents = agents
        self._registry = CollectorRegistry()
        prometheus.gauge(metrics.BUILD, self._registry).labels(recalld_version()).set(1)
        self.search_seconds = prometheus.histogram(metrics.SEARCH_SECONDS, self._registry)
        self.searches = prometheus.counter(metrics.SEARCHES, self._registry)
        self.degradations = prometheus.counter(metrics.DEGRADATIONS, self._registry)
        self.reads = prometheus.counter(metrics.READS, self._registry)
        self.denied = prometheus.counter(metrics.DENIED, self._registry)

    def scrape(self, visible_agents: Sequence[str], fleet: FleetState | None = None) -> bytes:
        """Return everything in Prometheus text format, with the present numbers of the visible agents, and the sums."""
        queues = queue_view(self._agents, visible_agents).agents
        usage = self._usage(visible_agents)
        now = _Collected([*_of_process(self._agents), *_of_agents(queues), *_of_fleet(fleet), *usage])
        return generate_latest(self._registry) + generate_latest(now)

    def _usage(self, visible_agents: Sequence[str]) -> Iterator[Metric]:
        requests: dict[tuple[str, ...], float] = {}
        inputs: dict[tuple[str, ...], float] = {}
        tokens: dict[tuple[str, ...], float] = {}
        for agent in visible_agents:
            for usage in self._agents.queue.usage(agent):
                labels = (agent, usage.provider, usage.model)
                requests[*labels, "answered"] = usage.requests - usage.failed
                requests[*labels, "failed"] = usage.failed
                inputs[labels] = usage.inputs
                tokens[labels] = usage.tokens
        yield prometheus.family(metrics.EMBEDDING_REQUESTS, requests)
        yield prometheus.family(metrics.EMBEDDING_INPUTS, inputs)
        yield prometheus.family(metrics.EMBEDDING_TOKENS, tokens)


@dataclass(frozen=True, eq=False)
class _Collected(Collector):
    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.families


def _of_process(agents: ServedAgents) -> Iterator[Metric]:
    answers, fleet = agents.resources.answers, agents.queue.fleet()
    yield prometheus.family(metrics.CACHED_ANSWERS, {("hit",): answers.hits, ("miss",): answers.misses})
    yield prometheus.family(metrics.CACHED_ANSWERS_BYTES, {(): answers.kept_bytes})
    yield prometheus.family(metrics.OPEN_INDEXES, {(): len(agents.resources.open_indexes)})
    is_writable = fleet is not None and agents.queue.broker().refusal is None
    yield prometheus.family(metrics.BROKER_UP, {(): float(is_writable)})
    if fleet is not None:
        yield from _fleet(fleet)


def _fleet(numbers: FleetNumbers) -> Iterator[Metric]:
    """Yield the counts that the broker keeps for all processes; they survive the restart of any process."""
    queues: prometheus.Numbers = {(queue,): messages for queue, messages in numbers.queues.items()}
    yield prometheus.family(metrics.QUEUE_MESSAGES, queues)
    yield prometheus.histogram_family(metrics.EVENT_TO_SEARCHABLE_SECONDS, numbers.freshness, numbers.freshness_sum)
    for metric in metrics.FLEET_COUNTERS.values():
        yield prometheus.family(metric, numbers.counts.get(metric.name, {}))


def _of_agents(queues: Sequence[AgentQueue]) -> Iterator[Metric]:
    def family(metric: metrics.Metric, agents: Iterable[AgentQueue], number: Callable[[AgentQueue], float]) -> Metric:
        return prometheus.family(metric, {(agent.agent,): number(agent) for agent in agents})

    reachable = [agent for agent in queues if agent.queue.reachable]
    counted = [agent for agent in queues if agent.counts is not None]
    yield family(metrics.PENDING, reachable, lambda agent: agent.queue.pending)
    yield family(metrics.PENDING_OLDEST_SECONDS, reachable, lambda agent: agent.queue.oldest_seconds or 0.0)
    yield family(metrics.CHUNKS, counted, lambda agent: agent.counts.chunks if agent.counts else 0)
    yield family(metrics.VECTORS_PENDING, counted, lambda agent: agent.counts.vectors_pending if agent.counts else 0)
    yield family(metrics.DEAD_LETTERS, counted, lambda agent: agent.dead_letters)
    yield family(metrics.TROUBLES, reachable, _troubles)
    states: prometheus.Numbers = {
        (queue.agent, queue.provider or "", queue.model or "", state.value): float(state is queue.endpoint.condition)
        for queue in queues
        if queue.endpoint is not None
        for state in EndpointCondition
    }
    yield prometheus.family(metrics.ENDPOINT, states)


def _of_fleet(fleet: FleetState | None) -> Iterator[Metric]:
    sums: prometheus.Numbers = {}
    if fleet is not None:
        left_out = {"troubled", "more_troubled", "spent_tenants", "troubles"}
        numbers = fleet.model_dump(exclude=left_out, exclude_none=True)
        sums = {(of,): number for of, number in numbers.items()}
        sums["troubled",] = len(fleet.troubled) + fleet.more_troubled
    yield prometheus.family(metrics.FLEET, sums)


def _troubles(queue: AgentQueue) -> int:
    return sum(trouble.code not in _WITH_OWN_METRICS for trouble in queue.troubles)
