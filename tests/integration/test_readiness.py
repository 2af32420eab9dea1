"""`/readyz` of workers and of `up`, and signs of life: told when work waits and nothing gets done, and only then."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request

import pytest
import redis

from memory.status.home import build_status
from memory.status.processes import Pulses
from schemas.conditions import ConditionCode
from schemas.documents import Lane
from schemas.settings import Settings
from schemas.status import TroubleState
from tests.ports import free_port
from tests.waiting import wait_until
from tests.working import Workers, key
from workers.health.health_store import HealthStore
from workers.health.heartbeat import Heartbeat
from workers.middleware import got_on
from workers.queue.job_queue import BrokerJobQueue
from workers.queue.names import Keys
from workers.queue.pending import MOVED_KEPT_SECONDS
from workers.queue.private_server import BrokerServer
from workers.runtime import Timing


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


def test_work_that_waits_is_stalled_since_it_came_or_something_was_done_last(
    client: redis.Redis, keys: Keys, movement: HealthStore
) -> None:
    now = float(client.time()[0])
    client.set(keys.moved, "1", ex=MOVED_KEPT_SECONDS - 9000)
    BrokerJobQueue(client, keys).pending_set.mark("main", [key("memory/a.md")], lane=Lane.LIVE, now=now - 500)
    assert movement.stalled_seconds() == pytest.approx(500, abs=60)
    client.set(keys.moved, "1", ex=MOVED_KEPT_SECONDS - 200)
    assert movement.stalled_seconds() == pytest.approx(200, abs=60)
    movement.moved()
    assert movement.stalled_seconds() < 60


def test_a_worker_is_not_ready_while_its_work_hangs_and_ready_again_when_it_gets_on(
    settings: Settings, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    workers_settings = settings.workers.model_copy(update={"port": port, "stalled_after_seconds": 1.5})
    from workers import actors

    go_on = threading.Event()
    index = actors.index_turn

    def hanging(*arguments: object) -> None:
        go_on.wait()
        index(*arguments)

    monkeypatch.setattr(actors, "index_turn", hanging)
    with Workers(settings.model_copy(update={"workers": workers_settings})) as workers:
        wait_until(lambda: ask(port) == (200, {"status": "ready"}))
        workers.note("memory/a.md", "a note\n")
        _, body = wait_until(lambda: found if (found := ask(port))[0] == 503 else None)
        assert body["error"]
        assert ask(port, "/healthz")[0] == 200
        go_on.set()
        wait_until(lambda: ask(port)[0] == 200)


def test_a_worker_whose_broker_stands_still_says_so_soon(settings: Settings, broker_server: BrokerServer) -> None:
    port = free_port()
    workers_settings = settings.workers.model_copy(update={"port": port})
    assert broker_server._process is not None
    pid = broker_server._process.pid
    with Workers(settings.model_copy(update={"workers": workers_settings})):
        wait_until(lambda: ask(port)[0] == 200)
        os.kill(pid, signal.SIGSTOP)
        try:
            # `ask` waits for thirty seconds; the worker itself waits for its broker that long, and again.
            code, body = ask(port)
            assert (code, body["status"], "broker" in body["error"]) == (503, "not ready", True)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: ask(port)[0] == 200)


# Signs of life


@pytest.fixture
def health(client: redis.Redis, keys: Keys) -> HealthStore:
    return HealthStore(client, keys)


def test_a_process_is_heard_of_while_it_lives_and_takes_its_sign_back(health: HealthStore, settings: Settings) -> None:
    with Heartbeat(settings, "watch", Pulses(), beat_seconds=0.05):
        [first] = health.processes()
        assert (first.role, first.stuck) == ("watch", ())
        wait_until(lambda: health.processes()[0].heard_at > first.heard_at + 0.05)
    assert health.processes() == []


def test_a_thread_that_hangs_makes_status_not_ok_and_is_named(health: HealthStore, settings: Settings) -> None:
    pulses = Pulses(stalled_after_seconds=0.0)
    pulse = pulses.of("hand-over")
    with Heartbeat(settings, "watch", pulses, beat_seconds=0.05):
        assert _watch_troubles(settings, health) == []
        pulse.busy("hands over to the queue")
        [trouble] = wait_until(lambda: _watch_troubles(settings, health))
        status = build_status(settings, health)
        assert (status.ok, [process.condition for process in status.processes]) == (False, ["stuck"])
        assert trouble.code == ConditionCode.PROCESS_STUCK
        assert "hand-over" in str(trouble.params["threads"])
        pulse.idle()
        wait_until(lambda: not _watch_troubles(settings, health))


def _watch_troubles(settings: Settings, health: HealthStore) -> list[TroubleState]:
    return [trouble for trouble in build_status(settings, health).agents[0].troubles if trouble.part == "watch"]


def test_a_job_that_gets_on_is_never_stuck_and_one_that_does_not_is(
    settings: Settings, client: redis.Redis, health: HealthStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(
        update={"workers": settings.workers.model_copy(update={"stalled_after_seconds": 1.0})}
    )
    go_on, stay = threading.Event(), threading.Event()

    def index(*_: object) -> None:
        while not go_on.wait(0.01):
            got_on()
        stay.wait()

    monkeypatch.setattr("workers.actors.index_turn", index)
    with Workers(settings, timing=Timing(heartbeat=0.05)) as workers:
        workers.mark("memory/a.md")
        heard = wait_until(lambda: next(iter(health.processes()), None)).heard_at
        wait_until(lambda: (beat := health.processes()[0]).heard_at > heard + 1.5 and not beat.stuck)
        go_on.set()
        wait_until(lambda: any("index_pending of main" in one for one in health.processes()[0].stuck))
        stay.set()
        wait_until(lambda: not health.processes()[0].stuck)
