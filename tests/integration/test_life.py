"""Signs of life over a real Valkey."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import redis

from memory.status.home import build_status
from memory.status.processes import Pulses
from memory.status.run_files import born
from schemas.settings import Settings
from tests.waiting import wait_until
from tests.working import Workers
from workers import actors
from workers.health import heartbeat as module
from workers.health.health_store import HealthStore
from workers.health.heartbeat import Heartbeat, forget_dead, read_beats
from workers.middleware import got_on
from workers.queue.broker import DoorbellConsumer
from workers.queue.names import Keys


@pytest.fixture
def board(client: redis.Redis, keys: Keys) -> HealthStore:
    return HealthStore(client, keys)


def test_a_process_is_heard_of_while_it_lives_and_takes_its_sign_back(board: HealthStore, settings: Settings) -> None:
    with Heartbeat(settings, "watch", Pulses(), beat_seconds=0.05):
        [first] = board.processes()
        assert (first.role, first.stuck) == ("watch", ())
        wait_until(lambda: board.processes()[0].heard_at > first.heard_at + 0.05)
    assert board.processes() == []


def test_a_thread_that_hangs_makes_status_not_ok_and_is_named(board: HealthStore, settings: Settings) -> None:
    pulses = Pulses(stalled_after_seconds=0.0)
    pulse = pulses.of("hand-over")
    with Heartbeat(settings, "watch", pulses, beat_seconds=0.05):
        assert build_status(settings, board).ok
        pulse.busy("hands over to the queue")
        status = wait_until(lambda: None if (found := build_status(settings, board)).ok else found)
        assert [process.condition for process in status.processes] == ["stuck"]
        [trouble] = [one for one in status.agents[0].troubles if one.part == "watch"]
        assert "its hand-over thread has been at the same step (hands over to the queue)" in trouble.message
        pulse.idle()
        wait_until(lambda: build_status(settings, board).ok)


def test_a_process_that_begins_forgets_the_dead_of_its_role_on_this_machine(
    board: HealthStore, settings: Settings, client: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        when = born(process.pid)
        monkeypatch.setattr(module.os, "getpid", lambda: process.pid)
        monkeypatch.setattr(module, "_forget", lambda *_: None)
        for role in ("work", "watch"):
            with Heartbeat(settings, role, Pulses(), beat_seconds=60.0):
                pass
        monkeypatch.undo()
        process.kill()
    assert [(one.state.role, one.born) for one in read_beats(client, keys)] == [("watch", when), ("work", when)]
    with Heartbeat(settings, "work", Pulses(), beat_seconds=60.0):
        assert sorted(one.role for one in board.processes() if one.pid == process.pid) == ["watch"]
    assert [one.state.role for one in forget_dead(client, keys, role=None)] == ["watch"]
    assert read_beats(client, keys) == []


def test_workers_give_signs_of_life_and_their_consumers_take_turns(
    settings: Settings, client: redis.Redis, board: HealthStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings.model_copy(
        update={"workers": settings.workers.model_copy(update={"stalled_after_seconds": 2.0})}
    )
    hang = threading.Event()
    taking = DoorbellConsumer.__next__

    def hanging(consumer: DoorbellConsumer) -> object:
        found = taking(consumer)
        if consumer.queue_name == "live":
            hang.wait()
        return found

    monkeypatch.setattr(DoorbellConsumer, "__next__", hanging)
    monkeypatch.setitem(Heartbeat.__init__.__kwdefaults__, "beat_seconds", 0.05)
    with Workers(settings):
        wait_until(lambda: any("consumer of live" in one for sign in board.processes() for one in sign.stuck))
        hang.set()
        wait_until(lambda: not any(sign.stuck for sign in board.processes()))
    assert board.processes() == []


def test_a_job_that_gets_on_is_never_stuck_and_one_that_does_not_is(
    settings: Settings, client: redis.Redis, board: HealthStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.status.processes.LONG_SECONDS", 0.1)
    monkeypatch.setitem(Heartbeat.__init__.__kwdefaults__, "beat_seconds", 0.05)
    settings = settings.model_copy(
        update={"workers": settings.workers.model_copy(update={"stalled_after_seconds": 1.0})}
    )
    go_on, stay = threading.Event(), threading.Event()

    def index(*_: object) -> None:
        while not go_on.wait(0.01):
            got_on()
        stay.wait()

    monkeypatch.setattr("workers.actors.index_turn", index)
    with Workers(settings) as workers:
        workers.mark("memory/a.md")
        heard = wait_until(lambda: next(iter(board.processes()), None)).heard_at
        wait_until(lambda: board.processes()[0].heard_at > heard + 1.5)
        assert board.processes()[0].stuck == ()
        assert not any("index_pending" in one for one in board.processes()[0].doing)
        go_on.set()
        wait_until(lambda: any("index_pending of main for" in one for one in board.processes()[0].doing))
        wait_until(lambda: any("index_pending of main" in one for one in board.processes()[0].stuck))
        stay.set()
        wait_until(lambda: not board.processes()[0].stuck)


def test_a_job_that_goes_on_for_ever_is_ended_by_its_time_limit_and_tried_again(
    settings: Settings, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, attempts = actors.index_turn, list[int]()

    def forever_at_first(*arguments: object) -> None:
        attempts.append(1)
        while len(attempts) == 1:
            threading.Event().wait(0.01)
        index(*arguments)

    monkeypatch.setattr(actors, "index_turn", forever_at_first)
    monkeypatch.setattr(actors, "TIME_LIMIT_MS", 200)
    with Workers(settings) as workers:
        workers.write("memory/a.md", "The heron stands in the reeds.\n")
        workers.mark("memory/a.md")
        wait_until(lambda: attempts)
        monkeypatch.setattr(actors, "TIME_LIMIT_MS", 600_000)
        wait_until(workers.complete)
    assert len(attempts) == 2


def test_the_private_broker_says_what_it_keeps(board: HealthStore) -> None:
    facts = board.broker()
    assert facts is not None
    assert facts.server.startswith(("valkey", "redis"))
    assert facts.persistence == "append-only file, synced every second"
    assert facts.warning is None


def test_a_broker_that_keeps_nothing_is_warned_of(board: HealthStore, client: redis.Redis) -> None:
    client.config_set("appendonly", "no")
    facts = board.broker()
    assert facts is not None
    assert facts.persistence == "none"
    assert "appendonly" in (facts.warning or "")
