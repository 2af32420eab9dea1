"""The end of workers: what they hold goes back at once, whoever holds them up."""

from __future__ import annotations

import threading

import pytest
import redis

from memory.documents.agent_files import AgentFiles, SourceText
from schemas.documents import DocumentKey
from schemas.settings import Settings
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import Workers, asking
from workers.queue.names import Keys

pytestmark = pytest.mark.usefixtures("broker_server")


@pytest.fixture(autouse=True)
def no_lease_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep leases from running out: work passes to another process only by being given back."""
    monkeypatch.setattr("workers.queue.broker.HEARTBEAT_TIMEOUT_MS", 3_600_000)


@pytest.mark.parametrize(
    "wire", ["silent", pytest.param("half", marks=pytest.mark.long), pytest.param("deaf", marks=pytest.mark.long)]
)
def test_a_request_that_is_never_answered_holds_the_end_no_longer_than_it_may(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    monkeypatch.setattr("workers.runtime.KEEPING_SECONDS", 0.3)
    with EmbeddingServer(deaf=wire == "deaf") as server:
        server.fail_next(Failure(wire=wire), times=100)  # type: ignore[arg-type] # "deaf" gets none of them
        workers = Workers(asking(settings, server.url))
        with workers:
            workers.note("memory/a.md", "The heron stands in the reeds.\n")
            wait_until(lambda: server.requests or wire == "deaf")
            # Its keywords do not wait for the endpoint.
            wait_until(lambda: workers.finds("heron"))
            wait_until(lambda: workers.counts().vectors_pending == 1)
            workers.asked_to_stop.set()
            workers.stop()
    assert taken(workers.client, workers.keys) == []


def taken(client: redis.Redis, keys: Keys) -> list[str]:
    """The sets of messages that somebody took and did not acknowledge."""
    return [key.decode() for key in client.keys(f"{keys.dramatiq}:__acks__.*")]


def test_an_unanswered_request_is_sent_again_by_the_next_worker_and_once_only(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.KEEPING_SECONDS", 0.3)
    with EmbeddingServer() as server:
        workers = Workers(asking(settings, server.url))
        paths = [f"memory/{number}.md" for number in range(30)]
        for path in paths:
            workers.write(path, f"Note {path}.")
        server.open.clear()
        with workers:
            workers.mark(*paths)
            wait_until(lambda: workers.counts().chunks == 30)
            wait_until(lambda: server.in_flight)
            workers.asked_to_stop.set()
            workers.stop()
            in_flight = {text for request in server.log for text in request.inputs}
            assert server.in_flight, "nobody waited for it"
            asked = server.requests
            workers.start()
            wait_until(lambda: server.requests > asked)
            server.open.set()
            wait_until(workers.complete)
            wait_until(lambda: not server.in_flight)
    assert server.paid_twice <= in_flight, "at most what was in flight is paid twice"


def test_a_job_that_does_not_end_is_given_back_when_its_time_is_over(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.run.DRAIN_SECONDS", 0.5)
    read, reading, go_on = AgentFiles.read, threading.Event(), threading.Event()
    first = threading.Lock()

    def hanging(files: AgentFiles, key: DocumentKey) -> SourceText:
        if first.acquire(blocking=False):
            reading.set()
            go_on.wait(60)
        return read(files, key)

    monkeypatch.setattr(AgentFiles, "read", hanging)
    workers = Workers(settings)
    try:
        with workers:
            workers.write("memory/a.md", "The heron stands in the reeds.\n")
            workers.write("memory/b.md", "The tern dives.\n")
            workers.mark("memory/a.md", "memory/b.md")
            assert reading.wait(60)
            workers.asked_to_stop.set()
            workers.stop()
            assert workers.waiting().running == 2
            assert taken(workers.client, workers.keys) == []
            assert not workers.finds("heron")
            workers.start()
            wait_until(workers.complete)
            assert workers.finds("heron")
            assert workers.finds("tern")
            # The one that hung goes on late, and spoils nothing.
            go_on.set()
            wait_until(lambda: workers.waiting().running == 0 and workers.complete())
    finally:
        go_on.set()
