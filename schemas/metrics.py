"""Every metric: its name, its labels, and the question that it answers.

Pure data: other modules count and report. Dashboards, alerts and processes share these names.
Labels never hold a user's text: no query, no path, no reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Process that reports a metric, and the processes that the metric counts."""

    #: A query service, for itself since its start.
    SERVICE = "service"
    #: A query service, for indexes and broker at the time of the request.
    STATE = "state"
    #: A query service, for all processes of the namespace, which count in the broker. Each query service reports the
    #: whole: read one of them, do not add them up.
    FLEET = "fleet"
    #: A worker process, for itself since its start, on a port of its own.
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `question` is its description; `buckets` are a histogram's upper bounds, in the unit of its name."""

    name: str
    kind: Kind
    scope: Scope
    question: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names under which Prometheus knows the metric."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (f"{self.name}_total",) if self.kind is Kind.COUNTER else (self.name,)


def _counter(name: str, scope: Scope, question: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, scope, question, labels)


def _gauge(name: str, scope: Scope, question: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, scope, question, labels)


def _seconds(name: str, scope: Scope, question: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, scope, question, labels, buckets)


BUILD = _gauge("recalld_build_info", Scope.SERVICE, "Which version answers?", "version")

# Answers

SEARCH_SECONDS = _seconds(
    "recalld_search_seconds",
    Scope.SERVICE,
    "How long did searches take, by how they were answered?",
    "mode",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0),
)
SEARCHES = _counter(
    "recalld_searches", Scope.SERVICE, "How many searches ended how (found, empty, degraded, unavailable)?", "outcome"
)
DEGRADATIONS = _counter(
    "recalld_degradations",
    Scope.SERVICE,
    "What did searches have to do without (vectors, keywords, queue, watch, time, index, other)?",
    "missing",
)
READS = _counter(
    "recalld_reads", Scope.SERVICE, "How many reads ended how (ok, missing, refused, unavailable)?", "outcome"
)
DENIED = _counter("recalld_denied", Scope.SERVICE, "How many requests were refused, by HTTP status?", "status")
CACHED_ANSWERS = _counter(
    "recalld_cached_answers",
    Scope.SERVICE,
    "How many searches were answered from the cache (hit), and how many looked there in vain (miss)?",
    "outcome",
)
CACHED_ANSWERS_BYTES = _gauge("recalld_cached_answers_bytes", Scope.SERVICE, "How much memory do cached answers take?")
OPEN_INDEXES = _gauge("recalld_open_indexes", Scope.SERVICE, "How many indexes are open?")

# Indexes and queue, at the moment of asking

PENDING = _gauge(
    "recalld_pending_documents", Scope.STATE, "How many changed documents are not yet searchable?", "agent"
)
PENDING_OLDEST_SECONDS = _gauge(
    "recalld_pending_oldest_seconds", Scope.STATE, "For how long has the oldest of them been waiting?", "agent"
)
CHUNKS = _gauge("recalld_chunks", Scope.STATE, "How many chunks does the answering index hold?", "agent")
VECTORS_PENDING = _gauge("recalld_vectors_pending", Scope.STATE, "How many chunks wait for their vector?", "agent")
DEAD_LETTERS = _gauge("recalld_dead_letters", Scope.STATE, "How many documents could not be indexed?", "agent")
TROUBLES = _gauge("recalld_troubles", Scope.STATE, "How many problems are known that are not over?", "agent")
FLEET = _gauge(
    "recalld_fleet", Scope.STATE, "How many documents, chunks and the like have all agents of the token?", "of"
)
ENDPOINT = _gauge(
    "recalld_embedding_endpoint",
    Scope.STATE,
    "In which state is the provider's endpoint (1) and in which is it not (0)?",
    "agent",
    "provider",
    "model",
    "state",
)
BROKER_UP = _gauge(
    "recalld_broker_up", Scope.STATE, "Does the queue's server answer and take what is new (1) or not (0)?"
)
QUEUE_MESSAGES = _gauge(
    "recalld_queue_messages", Scope.STATE, "How many messages wait, run or are delayed in a queue?", "queue"
)

# What all processes do together

EVENT_TO_SEARCHABLE_SECONDS = _seconds(
    "recalld_event_to_searchable_seconds",
    Scope.FLEET,
    "How long did it take from a document's first change to its commit?",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
CHANGES = _counter("recalld_changes", Scope.FLEET, "How many changed documents were queued, by lane?", "lane")
JOBS = _counter(
    "recalld_jobs",
    Scope.FLEET,
    "How many jobs ended how (done, again: put off until later, dropped: another one will do the same)?",
    "actor",
    "outcome",
)
DOCUMENTS = _counter(
    "recalld_documents",
    Scope.FLEET,
    "How many documents were looked at with what result (indexed, unchanged, deleted, failed)?",
    "outcome",
)
COMMITS = _counter(
    "recalld_commits",
    Scope.FLEET,
    "How many transactions put what in place (documents, or vectors of documents that were there)?",
    "of",
)
VECTORS = _counter("recalld_vectors_filled", Scope.FLEET, "How many vectors joined documents that were there without?")
MAINTENANCE = _counter(
    "recalld_maintenance",
    Scope.FLEET,
    "How many rounds of clearing up found something to do, by what (vectors, keywords, log, cache)?",
    "of",
)
MAINTENANCE_SECONDS = _counter(
    "recalld_maintenance_seconds",
    Scope.FLEET,
    "How many seconds did they take, by what (vectors, keywords, log, cache)?",
    "of",
)
EMBEDDING_CACHE = _counter(
    "recalld_embedding_cache",
    Scope.FLEET,
    "How many texts' vectors did indexing find in the embedding cache (hit), and how many had to be asked for (miss)?",
    "outcome",
)
EMBEDDING_REQUESTS = _counter(
    "recalld_embedding_requests",
    Scope.FLEET,
    "How many embedding requests ended how (answered, failed)? A request with texts of several agents counts for each.",
    "agent",
    "provider",
    "model",
    "outcome",
)
EMBEDDING_INPUTS = _counter(
    "recalld_embedding_inputs", Scope.FLEET, "How many texts came back as vectors?", "agent", "provider", "model"
)
EMBEDDING_TOKENS = _counter(
    "recalld_embedding_tokens",
    Scope.FLEET,
    "How many tokens were embedded, as the provider bills them?",
    "agent",
    "provider",
    "model",
)

# One worker process

WORKER_BUILD = _gauge("recalld_worker_build_info", Scope.WORKER, "Which version works?", "version")
JOBS_RUNNING = _gauge("recalld_worker_jobs_running", Scope.WORKER, "How many jobs is this process working on?", "actor")
JOB_SECONDS = _seconds(
    "recalld_worker_job_seconds",
    Scope.WORKER,
    "How long did jobs of this process take, by how they ended?",
    "actor",
    "outcome",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0),
)

#: All of them, in the order of their declaration.
METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

#: Name -> counter that the broker sums for all processes. Those of agents are made from their usage.
FLEET_COUNTERS = {
    metric.name: metric
    for metric in METRICS
    if metric.scope is Scope.FLEET and metric.kind is Kind.COUNTER and "agent" not in metric.labels
}
