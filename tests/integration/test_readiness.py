"""`/readyz` of workers and of `up`: it fails when work waits and nothing gets done, and only then."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import redis

from schemas.documents import Lane
from schemas.settings import Settings
from tests.daemon import Daemon
from tests.waiting import wait_until
from tests.working import Workers, key
from workers.health.health_store import HealthStore
from workers.queue.broker import make_broker, message
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import EMBED_PENDING, VECTORS_QUEUE, Keys
from workers.queue.pending import MOVED_KEPT_SECONDS
from workers.queue.private_server import BrokerServer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(port: int, path: str = "/readyz") -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture
def movement(client: redis.Redis, keys: Keys) -> HealthStore:
    return HealthStore(client, keys)


def test_without_work_nothing_is_stalled_however_long_ago_something_was_done(
    client: redis.Redis, keys: Keys, movement: HealthStore
) -> None:
    assert movement.stalled_seconds() == 0.0
    client.set(keys.moved, "1", ex=1)
    assert movement.stalled_seconds() == 0.0


def test_work_that_waits_is_stalled_since_it_came_or_something_was_done_last(
    client: redis.Redis, keys: Keys, movement: HealthStore
) -> None:
    now = float(client.time()[0])
    client.set(keys.moved, "1", ex=MOVED_KEPT_SECONDS - 9000)
    BrokerJobQueue(client, keys).marks.mark("main", [key("memory/a.md")], lane=Lane.LIVE, now=now - 500)
    assert movement.stalled_seconds() == pytest.approx(500, abs=60)
    client.set(keys.moved, "1", ex=MOVED_KEPT_SECONDS - 200)
    assert movement.stalled_seconds() == pytest.approx(200, abs=60)
    movement.moved()
    assert movement.stalled_seconds() < 60


def test_a_message_that_nobody_takes_is_work_that_waits_and_one_that_is_delayed_is_not(
    client: redis.Redis, keys: Keys, movement: HealthStore
) -> None:
    broker = make_broker(client, keys)
    old = message(EMBED_PENDING, VECTORS_QUEUE, "main").copy(message_timestamp=1_000_000)
    broker.enqueue(old, delay=3_600_000)
    assert movement.stalled_seconds() == 0.0
    broker.enqueue(old)
    assert movement.stalled_seconds() > 1_000_000


def test_a_worker_is_not_ready_while_its_work_hangs_and_ready_again_when_it_gets_on(
    settings: Settings, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    workers_settings = settings.workers.model_copy(update={"port": port, "stalled_after_seconds": 3.0})
    from workers import actors

    go_on = threading.Event()
    index = actors.index_turn

    def hanging(*arguments: object) -> None:
        go_on.wait()
        index(*arguments)

    monkeypatch.setattr(actors, "index_turn", hanging)
    with Workers(settings.model_copy(update={"workers": workers_settings})) as workers:
        assert ask(port) == (200, {"status": "ready"})
        workers.note("memory/a.md", "a note\n")
        _, body = wait_until(lambda: found if (found := ask(port))[0] == 503 else None)
        assert "work has been waiting for" in body["error"]
        assert ask(port, "/healthz")[0] == 200
        go_on.set()
        wait_until(lambda: ask(port)[0] == 200)


def test_a_worker_whose_broker_stands_still_says_so_soon(settings: Settings, broker_server: BrokerServer) -> None:
    port = free_port()
    workers_settings = settings.workers.model_copy(update={"port": port})
    assert broker_server._process is not None
    pid = broker_server._process.pid
    with Workers(settings.model_copy(update={"workers": workers_settings})):
        assert ask(port)[0] == 200
        os.kill(pid, signal.SIGSTOP)
        try:
            # `ask` waits for thirty seconds; the worker itself waits for its broker that long, and again.
            assert ask(port) == (503, {"status": "not ready", "error": "the broker does not answer"})
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: ask(port)[0] == 200)


@pytest.mark.long
def test_up_is_not_ready_while_one_of_its_processes_stands_still(home: Path, workspace: Path) -> None:
    from tests.acceptance.test_frozen_processes import stopped

    port = free_port()
    with Daemon(home, workspace, config=f"[up]\nport = {port}\n") as daemon:
        wait_until(lambda: ask(port)[0] == 200)
        [pid] = daemon.children("work")
        with stopped(pid):
            _, body = wait_until(lambda: found if (found := ask(port))[0] == 503 else None)
            assert f"process {pid} is stopped" in body["error"]
        wait_until(lambda: ask(port)[0] == 200)
