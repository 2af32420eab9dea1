"""Traces lead from an event to its commit and from a caller to its search; metrics answer their question."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from memory.telemetry import tracing
from producers.dispatcher import Dispatcher
from producers.tailer import Tailer
from schemas.metrics import METRICS, Kind, Scope
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.raw_server import answer, raw_server
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import Workers, key
from tests.written_index import write_index
from workers.health.health_store import HealthStore
from workers.queue.names import Keys

WORDS = "zanzibar quokka"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Collect the spans. A process has one provider for good: only the tracer is one with the SDK, for this test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "TRACER", provider.get_tracer("recalld"))
    yield exporter
    provider.shutdown()


@pytest.fixture
def workers(settings: Settings, broker_server: object) -> Iterator[Workers]:
    with Workers(settings) as started:
        yield started


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def hand_over(workers: Workers, *paths: str) -> None:
    """As the producers do it."""
    made = Dispatcher({}, workers.queue, workers.health, Tailer({}, {}, lambda _: None), on_recovered=lambda: None)
    made.start()
    made.submit("main", [key(path) for path in paths])
    made.stop()


def test_an_event_its_job_and_its_commit_are_one_trace(workers: Workers, spans: InMemorySpanExporter):
    workers.write("memory/a.md", f"The {WORDS} lives here.\n")
    hand_over(workers, "memory/a.md")
    wait_until(workers.complete)
    wait_until(lambda: named(spans, "index_pending"))
    [event] = named(spans, "event")
    [job] = named(spans, "index_pending")
    [commit] = named(spans, "commit")
    assert trace_of(event) == trace_of(job) == trace_of(commit)
    assert job.parent is not None
    assert job.parent.span_id == event.get_span_context().span_id
    assert commit.parent is not None
    assert commit.parent.span_id == job.get_span_context().span_id
    assert dict(job.attributes or {})["recalld.outcome"] == "done"
    assert dict(event.attributes or {}) == {"recalld.agent": "main", "recalld.documents": 1}


def test_a_search_goes_on_with_its_callers_trace(settings: Settings, workers: Workers, spans: InMemorySpanExporter):
    write_index(settings).close()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with running(settings, HealthStore(workers.client, workers.keys)) as client:
        parent = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        assert client.post("/v1/search", json={"query": WORDS}, headers=parent).status_code == 200
        assert client.post("/v1/search", json={"query": WORDS}, headers={"traceparent": "no trace"}).status_code == 200
        client.post("/v1/tools", json={"name": "memory_search", "arguments": {"query": WORDS}})
    first, second, third = named(spans, "search")
    assert f"{trace_of(first):032x}" == trace
    assert len({trace_of(span) for span in (first, second, third)}) == 3
    assert dict(first.attributes or {})["recalld.agent"] == "main"
    assert {"recalld.mode", "recalld.results", "recalld.outcome"} <= dict(first.attributes or {}).keys()


def test_no_span_holds_a_query_a_path_or_a_note(settings: Settings, workers: Workers, spans: InMemorySpanExporter):
    workers.write("memory/elephantine.md", f"The {WORDS} lives here.\n")
    hand_over(workers, "memory/elephantine.md")
    wait_until(workers.complete)
    with running(settings, HealthStore(workers.client, workers.keys)) as client:
        client.post("/v1/search", json={"query": WORDS})
        client.post("/v1/get", json={"path": "memory/elephantine.md"})
    wait_until(lambda: named(spans, "index_pending"))
    told = "".join(span.to_json() for span in spans.get_finished_spans())
    assert "search" in told
    for word in (*WORDS.split(), "elephantine"):
        assert word not in told


@pytest.mark.parametrize("on", [True, False])
def test_the_settings_send_the_spans_of_one_command_to_an_endpoint(settings: Settings, on: bool):
    program = (
        "import sys\n"
        "from memory.telemetry import tracing\n"
        "from recalld.up.lifecycle import traced\n"
        "from schemas.settings import Settings\n"
        "with traced(Settings.model_validate_json(sys.stdin.read()), 'work'), tracing.span('commit'): pass\n"
    )
    chosen = settings.model_copy(update={"tracing": settings.tracing.model_copy(update={"enabled": on})})
    with raw_server([answer(b"")]) as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            input=chosen.model_dump_json(),
            text=True,
            check=True,
            timeout=60,
        )
    sent = b"".join(collector.requests)
    assert (b"recalld-work" in sent, b"commit" in sent) == (on, on)


# Metrics


def told(text: str, series: str) -> float:
    """The value of one series; 0 when it is not there."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, flags=re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def test_everything_that_a_service_may_tell_is_told_with_its_question(workers: Workers, settings: Settings):
    workers.index("memory/a.md", "The lift stands on the third floor.\n")
    with running(settings, HealthStore(workers.client, workers.keys)) as client:
        search(client, "lift")
        client.post("/v1/get", json={"path": "MEMORY.md"})
        client.post("/v1/search", json={"query": "x", "agent": "eve"})
        text = client.get("/metrics").text
    for metric in METRICS:
        if metric.scope is Scope.WORKER:
            assert metric.name not in text
            continue
        series = metric.series[0] if metric.kind is Kind.COUNTER else metric.name
        assert f"# HELP {series} {metric.question}\n# TYPE {series} {metric.kind.value}\n" in text
    names = set(re.findall(r"^(recalld_\w+)[{ ]", text, flags=re.MULTILINE))
    declared = {name for metric in METRICS for name in metric.series}
    # The library adds the time at which a counter began.
    assert {name for name in names if not name.endswith("_created")} <= declared


def test_a_broker_that_is_away_is_told_as_that(settings: Settings, client: redis.Redis, keys: Keys):
    class Away(HealthStore):
        def fleet(self):
            return None

    with running(settings, Away(client, keys)) as service:
        text = service.get("/metrics").text
    assert told(text, "recalld_broker_up") == 0
    assert "recalld_jobs_total" not in text
    assert "recalld_search_seconds" in text
