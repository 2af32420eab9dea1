"""What all processes do is counted together, and told by the query service and by each worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from starlette.responses import JSONResponse

from memory.status.processes import Pulses
from memory.telemetry.server import TelemetryServer
from schemas import metrics
from schemas.metrics import METRICS, Kind, Told
from schemas.settings import Settings
from schemas.version import recalld_version
from tests.serving import running, search
from tests.waiting import wait_until
from tests.working import Workers
from workers.health.health_store import HealthStore
from workers.middleware import JobWatch
from workers.queue.counters import FleetCounters
from workers.queue.names import QUEUES, Keys


def told(text: str, series: str) -> float:
    """The value of one series; 0 when it is not there."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, flags=re.MULTILINE)
    return float(found.group(1)) if found else 0.0


@pytest.fixture
def workers(settings: Settings, broker_server: object) -> Iterator[Workers]:
    with Workers(settings) as started:
        yield started


def test_the_service_tells_what_workers_of_all_processes_did(workers: Workers, settings: Settings):
    workers.write("memory/a.md", "The lift stands on the third floor.\n")
    workers.mark("memory/a.md", "memory/never-was.md")
    wait_until(workers.complete)
    workers.index("memory/copy.md", "The lift stands on the third floor.\n")
    with running(settings, HealthStore(workers.client, workers.keys)) as client:
        seen = wait_until(
            lambda: (
                text
                if told(text := client.get("/metrics").text, 'recalld_documents_total{outcome="indexed"}') == 2
                and told(text, 'recalld_embedding_cache_total{outcome="hit"}') >= 1
                else ""
            )
        )
        assert told(seen, 'recalld_changes_total{lane="live"}') == 3
        assert told(seen, 'recalld_commits_total{of="documents"}') >= 2
        assert told(seen, 'recalld_embedding_cache_total{outcome="miss"}') >= 1
        assert told(seen, 'recalld_jobs_total{actor="index_pending",outcome="done"}') >= 2
        assert told(seen, "recalld_event_to_searchable_seconds_count") == 3
        assert told(seen, 'recalld_event_to_searchable_seconds_bucket{le="+Inf"}') == 3
        assert 0 < told(seen, "recalld_event_to_searchable_seconds_sum") < 60
        assert told(seen, "recalld_broker_up") == 1
        for queue in QUEUES:
            assert f'recalld_queue_messages{{queue="{queue}"}} ' in seen
        assert told(seen, 'recalld_troubles{agent="main"}') == 0

        # The counts survive the processes that counted.
        workers.stop()
        workers.start()
        again = client.get("/metrics").text
        assert told(again, 'recalld_documents_total{outcome="indexed"}') == 2


def test_everything_that_a_service_may_tell_is_told_with_its_question(workers: Workers, settings: Settings):
    workers.index("memory/a.md", "The lift stands on the third floor.\n")
    with running(settings, HealthStore(workers.client, workers.keys)) as client:
        search(client, "lift")
        client.post("/v1/get", json={"path": "MEMORY.md"})
        client.post("/v1/search", json={"query": "x", "agent": "nobody"})
        text = client.get("/metrics").text
    for metric in METRICS:
        if metric.told is Told.WORKER:
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


def test_what_the_broker_does_not_take_is_left_out_and_the_rest_is_counted_once(client: redis.Redis, keys: Keys):
    counters = FleetCounters(client, keys)
    counters.add(metrics.CHANGES, 10**30, "live")  # more than a number of the broker can be
    counters.add(metrics.CHANGES, 1, "backfill")
    counters.flush()
    counters.flush()
    [count] = counters.read()
    assert (count.labels, count.number) == (("backfill",), 1)


def test_counters_of_another_version_are_left_out(client: redis.Redis, keys: Keys):
    client.hset(keys.counters, mapping={'["recalld_of_tomorrow"]': 1, '["recalld_changes"]': 1})
    assert FleetCounters(client, keys).read() == []


def test_only_declared_counters_are_counted_with_all_their_labels(client: redis.Redis, keys: Keys):
    counters = FleetCounters(client, keys)
    with pytest.raises(ValueError, match="recalld_searches"):
        counters.add(metrics.SEARCHES, 1, "found")
    with pytest.raises(ValueError, match="recalld_changes"):
        counters.add(metrics.CHANGES, 1)


def test_a_worker_process_tells_of_its_jobs_on_a_port_of_its_own(
    settings: Settings, broker_server: object, capsys: pytest.CaptureFixture[str]
):
    alone = settings.model_copy(update={"workers": settings.workers.model_copy(update={"port": 0})})
    with Workers(alone) as workers:
        [port] = re.findall(r"telemetry_listening.*port=(\d+)", re.sub(r"\x1b\[\d+m", "", capsys.readouterr().err))
        workers.index("memory/a.md", "The lift stands on the third floor.\n")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            done = 'recalld_worker_job_seconds_count{actor="index_pending",outcome="done"}'
            text = wait_until(lambda: text if told(text := client.get("/metrics").text, done) >= 1 else "")
            assert told(text, 'recalld_worker_jobs_running{actor="index_pending"}') == 0
            assert told(text, f'recalld_worker_build_info{{version="{recalld_version()}"}}') == 1
            assert "process_resident_memory_bytes" in text
            assert client.get("/healthz").json() == {"status": "ok"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


@pytest.fixture
def server() -> Iterator[httpx.Client]:
    def broken() -> JSONResponse:
        raise RuntimeError("the reason")

    ready = JSONResponse({"status": "not ready"}, 503)
    routes = {"/readyz": lambda: ready, "/broken": broken}
    made = TelemetryServer("127.0.0.1", 0, metrics=JobWatch(Pulses()).scrape, routes=routes)
    made.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{made.port}", timeout=60) as client:
        yield client
    made.stop()


def test_a_route_that_fails_is_said_without_its_reason(server: httpx.Client):
    answer = server.get("/broken")
    assert (answer.status_code, "the reason" in answer.text) == (500, False)


def test_a_workers_port_on_loopback_answers_to_loopback_names_only(server: httpx.Client):
    assert server.get("/metrics", headers={"Host": "evil.example"}).status_code == 403
    assert server.post("/metrics").status_code == 501


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path):
    from schemas.errors import UserError

    first = TelemetryServer("127.0.0.1", 0, metrics=bytes)
    with pytest.raises(UserError, match=r"choose another with workers\.port"):
        TelemetryServer("127.0.0.1", first.port, metrics=bytes)
    first.stop()
