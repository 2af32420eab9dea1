"""Every metric of the query service, each answering a question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.ports import EndpointCondition, Usage

_SEARCH_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


@dataclass(frozen=True, slots=True)
class AgentNumbers:
    """One agent's numbers at the time of a scrape; None where they are not known.

    `usage` is what embedding cost ever; `endpoint` the provider in use, its model and its condition.
    """

    agent: str
    pending: int | None
    oldest_seconds: float | None
    chunks: int | None
    vectors_pending: int | None
    dead_letters: int | None
    usage: tuple[Usage, ...] = ()
    endpoint: tuple[str, str, EndpointCondition] | None = None


@dataclass(frozen=True, slots=True)
class ProcessNumbers:
    """What all agents of a process share, at the time of a scrape.

    `answers_kept` searches were answered from the cache of answers, `answers_searched` looked there in vain.
    """

    answers_kept: int
    answers_searched: int
    answers_bytes: int
    open_indexes: int


class ServiceMetrics:
    """The registry of one service. `process` tells what its agents share."""

    def __init__(self, version: str, *, process: Callable[[], ProcessNumbers] | None = None) -> None:
        self._registry = CollectorRegistry()
        if process is not None:
            self._registry.register(_Process(process))
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


class _Process(Collector):
    def __init__(self, numbers: Callable[[], ProcessNumbers]) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        numbers = self._numbers()
        answers = CounterMetricFamily(
            "recalld_cached_answers",
            "How many searches were answered from the cache (hit), and how many looked there in vain (miss)?",
            labels=["outcome"],
        )
        answers.add_metric(["hit"], numbers.answers_kept)
        answers.add_metric(["miss"], numbers.answers_searched)
        yield answers
        yield GaugeMetricFamily(
            "recalld_cached_answers_bytes", "How much memory do cached answers take?", value=numbers.answers_bytes
        )
        yield GaugeMetricFamily("recalld_open_indexes", "How many indexes are open?", value=numbers.open_indexes)


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
        yield from _usage(known)
        yield _endpoints(known)


def _usage(known: Iterable[AgentNumbers]) -> Iterator[Metric]:
    """Counted by everybody who embeds, and kept by the broker: they go on where they were after any restart."""
    labels = ["agent", "provider", "model"]
    requests = CounterMetricFamily(
        "recalld_embedding_requests",
        "How many embedding requests ended how (answered, failed)? One that carried several agents' texts is in each.",
        labels=[*labels, "outcome"],
    )
    inputs = CounterMetricFamily("recalld_embedding_inputs", "How many texts came back as vectors?", labels=labels)
    tokens = CounterMetricFamily(
        "recalld_embedding_tokens", "How many tokens were embedded, as the provider bills them?", labels=labels
    )
    for agent in known:
        for usage in agent.usage:
            whose = [agent.agent, usage.provider, usage.model]
            requests.add_metric([*whose, "answered"], usage.requests - usage.failed)
            requests.add_metric([*whose, "failed"], usage.failed)
            inputs.add_metric(whose, usage.inputs)
            tokens.add_metric(whose, usage.tokens)
    yield from (requests, inputs, tokens)


def _endpoints(known: Iterable[AgentNumbers]) -> Metric:
    family = GaugeMetricFamily(
        "recalld_embedding_endpoint",
        "In which state is the provider's endpoint (1) and in which is it not (0)?",
        labels=["agent", "provider", "model", "state"],
    )
    for agent in known:
        if agent.endpoint is not None:
            provider, model, current = agent.endpoint
            for condition in EndpointCondition:
                family.add_metric([agent.agent, provider, model, condition.value], float(condition is current))
    return family
