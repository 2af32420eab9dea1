"""Every metric of the query service, each answering a question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SEARCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


@dataclass(frozen=True, slots=True)
class AgentNumbers:
    """One agent's numbers at the time of a scrape; None where they are not known."""

    agent: str
    pending: int | None
    oldest_seconds: float | None
    chunks: int | None
    vectors_pending: int | None
    dead_letters: int | None


class ServiceMetrics:
    """The registry of one service."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        build = Gauge("recalld_build_info", "Which version answers?", ["version"], registry=self._registry)
        build.labels(version).set(1)
        self.search_seconds = Histogram(
            "recalld_search_seconds",
            "How long did searches take, by how they were answered?",
            ["mode"],
            buckets=_SEARCH_BUCKETS,
            registry=self._registry,
        )
        self.searches = Counter(
            "recalld_searches",
            "How many searches ended how (found, empty, degraded, unavailable)?",
            ["outcome"],
            registry=self._registry,
        )
        self.reads = Counter(
            "recalld_reads", "How many reads ended how (ok, missing, refused)?", ["outcome"], registry=self._registry
        )
        self.denied = Counter(
            "recalld_denied", "How many requests were refused, by HTTP status?", ["status"], registry=self._registry
        )

    def scrape(self, numbers: Callable[[], Iterable[AgentNumbers]]) -> bytes:
        """Everything in Prometheus text format, with the agents' numbers as of now."""
        agents = CollectorRegistry()
        agents.register(_Agents(numbers))
        return generate_latest(self._registry) + generate_latest(agents)


class _Agents(Collector):
    def __init__(self, numbers: Callable[[], Iterable[AgentNumbers]]) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        questions = {
            "pending": ("recalld_pending_documents", "How many changed documents are not yet searchable?"),
            "oldest_seconds": ("recalld_pending_oldest_seconds", "For how long has the oldest of them been waiting?"),
            "chunks": ("recalld_chunks", "How many chunks does the answering index hold?"),
            "vectors_pending": ("recalld_vectors_pending", "How many chunks wait for their vector?"),
            "dead_letters": ("recalld_dead_letters", "How many documents could not be indexed?"),
        }
        known = list(self._numbers())
        for field, (name, question) in questions.items():
            family = GaugeMetricFamily(name, question, labels=["agent"])
            for agent in known:
                value = getattr(agent, field)
                if value is not None:
                    family.add_metric([agent.agent], value)
            yield family
