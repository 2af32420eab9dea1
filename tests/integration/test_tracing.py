"""With tracing on, one trace leads from an event over its job to the commit, and a search goes on with its caller's."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from memory.telemetry import tracing
from producers.dispatcher import Dispatcher
from producers.tailer import Tailer
from recalld.up.lifecycle import traced
from schemas.documents import Lane
from schemas.errors import UserError
from schemas.settings import Settings
from tests.daemon import REPOSITORY
from tests.serving import running
from tests.waiting import wait_until
from tests.working import Workers, key
from tests.written_index import write_index
from workers.health.health_store import HealthStore

WORDS = "zanzibar quokka"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What is traced. A process can never have another provider: only the tracer is one with the SDK, for this test."""
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
    made = Dispatcher({}, workers.queue, workers.board, Tailer({}, {}, lambda _: None), on_recovered=lambda: None)
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


def test_a_job_is_linked_to_every_event_that_it_answers(
    settings: Settings, broker_server: object, spans: InMemorySpanExporter
):
    workers = Workers(settings)
    for name in ("a", "b"):
        workers.write(f"memory/{name}.md", f"{WORDS} {name}.\n")
        hand_over(workers, f"memory/{name}.md")
    with workers:
        wait_until(workers.complete)
        wait_until(lambda: named(spans, "index_pending"))
    first, second = named(spans, "event")
    [job] = named(spans, "index_pending")
    # One message for both: its job belongs to the first event's trace and names the other.
    assert trace_of(job) == trace_of(first) != trace_of(second)
    assert [link.context.trace_id for link in job.links] == [trace_of(second)]
    assert not workers.client.exists(workers.keys.traces("main"))


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


def test_what_fails_ends_its_span_with_its_type_and_without_its_words(spans: InMemorySpanExporter):
    with pytest.raises(ValueError, match="quokka"), tracing.span("commit"):
        raise ValueError("a quokka")
    [span] = named(spans, "commit")
    assert span.status.description == "ValueError"
    assert "quokka" not in span.to_json()


def test_without_tracing_a_message_carries_no_trace(workers: Workers):
    stopped = Workers(workers.settings)
    workers.stop()
    stopped.mark("memory/a.md", lane=Lane.LIVE)
    [message] = [json.loads(raw) for raw in stopped.client.hvals(stopped.keys.messages("live"))]
    assert "traceparent" not in message["options"]
    assert not stopped.client.exists(stopped.keys.traces("main"))
    with tracing.span("x"):
        assert (tracing.traceparent(), tracing.is_traced()) == (None, False)


def test_tracing_without_the_library_is_one_sentence(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UserError, match="extra `otel`"), traced(switched_on(settings), "work"):
        pass


def switched_on(settings: Settings) -> Settings:
    return settings.model_copy(update={"tracing": settings.tracing.model_copy(update={"enabled": True})})


@pytest.mark.parametrize("on", [True, False])
def test_the_settings_send_the_spans_of_one_command_to_an_endpoint(settings: Settings, collector: Collector, on: bool):
    program = (
        "import sys\n"
        "from memory.telemetry import tracing\n"
        "from recalld.up.lifecycle import traced\n"
        "from schemas.settings import Settings\n"
        "with traced(Settings.model_validate_json(sys.stdin.read()), 'work'), tracing.span('commit'): pass\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
        input=(switched_on(settings) if on else settings).model_dump_json(),
        text=True,
        check=True,
        timeout=60,
    )
    sent = b"".join(collector.bodies)
    assert (b"recalld-work" in sent, b"commit" in sent) == (on, on)


class Collector:
    """Takes what is sent to it by OTLP over HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bodies.append(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()
