"""Findings of the doctor about broker, processes and providers, until they are mended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from memory.index.provider import provider_of
from memory.status.home import build_status
from memory.status.processes import Pulses
from memory.status.run_files import is_stopped, server_pid
from recalld.doctor import examination, machine
from recalld.doctor.finding import Finding, Level
from recalld.up.lock import daemon_lock
from recalld.wiring import BrokerSide, open_broker
from schemas.settings import Settings
from schemas.status import EndpointCondition, EndpointStatus, OutdatedState
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from tests.working import asking
from workers.health import health_store as board_module
from workers.health.heartbeat import Heartbeat, read_beats


@pytest.fixture
def side(settings: Settings) -> Iterator[BrokerSide]:
    opened = open_broker(settings, answer_seconds=60.0)
    yield opened
    opened.client.close()


def looked(settings: Settings, side: BrokerSide, check: str) -> list[Finding]:
    """The findings of one check; each that is not fine says what to do."""
    status = build_status(settings, side.health)
    found = [
        *examination.broker_findings(settings, status),
        *examination.process_findings(settings, status),
        *examination.condition_findings(settings, side, status, lambda *_: ""),
    ]
    assert all(one.action for one in found if one.level is not Level.OK)
    return [one for one in found if one.check == check]


def test_a_private_broker_that_is_not_needed_is_fine_and_one_that_up_misses_is_not(
    settings: Settings, side: BrokerSide
) -> None:
    assert [one.level for one in looked(settings, side, "broker")] == [Level.OK]
    with daemon_lock(settings.home):
        [found] = looked(settings, side, "broker")
    assert (found.level, "valkey.log" in str(found.action)) == (Level.PROBLEM, True)


def test_a_broker_of_ones_own_that_does_not_answer_is_a_problem(settings: Settings) -> None:
    elsewhere = Settings.model_validate({"home": settings.home, "broker": {"url": "redis://127.0.0.1:1/0"}})
    with open_broker(elsewhere, answer_seconds=1.0) as side:
        [found], [unknown] = (looked(elsewhere, side, check) for check in ("broker", "processes"))
        assert machine.seconds_ahead(side) is None
    assert unknown.level is Level.WARNING
    assert (found.level, "REDIS_URL" in found.message) == (Level.PROBLEM, True)


@pytest.mark.usefixtures("broker_server")
def test_a_stopped_private_broker_is_named_and_no_second_one_writes_its_files(settings: Settings) -> None:
    pid, side = server_pid(settings.home), open_broker(settings, answer_seconds=1.0)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(pid))
        status = build_status(settings, side.health)
        [found], [unknown] = (looked(settings, side, check) for check in ("broker", "processes"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert {"pid": pid} in [trouble.params for trouble in status.agents[0].troubles]
    assert (found.level, f"`kill -CONT {pid}`" in str(found.action)) == (Level.PROBLEM, True)
    assert unknown.level is Level.WARNING
    resumed = lambda: build_status(settings, side.health).agents[0].troubles  # noqa: E731
    wait_until(lambda: {"pid": pid} not in [trouble.params for trouble in resumed()])
    side.client.close()


@pytest.mark.usefixtures("broker_server")
@pytest.mark.parametrize(
    ("set_so", "back", "said"),
    [
        ({"maxmemory": "500mb", "maxmemory-policy": "allkeys-lru"}, {"maxmemory": "0"}, "noeviction"),
        # Its server ends slowly: it writes a new file first.
        pytest.param({"appendonly": "no", "save": ""}, {"appendonly": "yes"}, "appendonly yes", marks=pytest.mark.long),
    ],
)
def test_a_broker_that_may_drop_keys_or_keeps_nothing_is_a_warning(
    settings: Settings, side: BrokerSide, client: redis.Redis, set_so: dict[str, str], back: dict[str, str], said: str
) -> None:
    asked: Any = client
    assert abs(machine.seconds_ahead(side) or 60.0) < 5.0
    for name, value in set_so.items():
        asked.config_set(name, value)
    [found] = looked(settings, side, "broker")
    assert (found.level, said in found.message) == (Level.WARNING, True)
    for name, value in back.items():
        asked.config_set(name, value)
    assert [one.level for one in looked(settings, side, "broker")] == [Level.OK]


@pytest.mark.usefixtures("broker_server")
def test_a_process_that_ended_without_a_word_is_a_problem_until_it_is_forgotten(
    settings: Settings, side: BrokerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "`recalld up`" in looked(settings, side, "processes")[0].message
    with Heartbeat(settings, "work", Pulses(), beat_seconds=60.0):
        assert looked(settings, side, "processes")[0].message == "work is well"
        # So much later, in a machine that was started again.
        late = [replace(beat, silent_seconds=60.0, born="another") for beat in read_beats(side.client, side.keys)]
        monkeypatch.setattr(board_module, "read_beats", lambda *_: late)
        [found] = looked(settings, side, "work")
        assert (found.level, found.heal is not None) == (Level.PROBLEM, True)


@pytest.mark.usefixtures("broker_server")
def test_a_process_is_not_called_dead_because_the_broker_takes_no_signs_of_life(
    settings: Settings, side: BrokerSide, client: redis.Redis
) -> None:
    asked: Any = client
    with Heartbeat(settings, "work", Pulses(), beat_seconds=600.0):
        asked.zadd(side.keys.heard, dict.fromkeys(asked.hkeys(side.keys.processes), time.time() - 60))
        asked.set("ballast", "x" * 1_000_000)
        asked.config_set("maxmemory", "1mb")
        [full], [unknown] = (looked(settings, side, check) for check in ("broker", "processes"))
        assert (full.level, "memory is full" in full.message) == (Level.PROBLEM, True)
        assert unknown.level is Level.WARNING
        asked.config_set("maxmemory", "0")


@pytest.mark.usefixtures("broker_server")
def test_settings_that_were_changed_since_are_a_problem_with_what_to_do(settings: Settings, side: BrokerSide) -> None:
    changed = OutdatedState("/etc/recalld.toml", 5000.0, 4000.0)
    with Heartbeat(settings, "work", Pulses(), beat_seconds=60.0, outdated=lambda: changed):
        [found] = looked(settings, side, "settings")
    assert (found.level, "/etc/recalld.toml" in found.message) == (Level.PROBLEM, True)


@pytest.mark.usefixtures("broker_server")
def test_a_provider_in_trouble_is_a_warning_until_it_serves_again(
    settings: Settings, side: BrokerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddingServer() as server:
        remote = asking(settings, server.url)

        def found(*, online: bool = False) -> Finding:
            status, choice = build_status(remote, side.health).agents[0], provider_of(remote, remote.agents[0])
            return next(examination.provider_findings(status, choice.provider, online=online, now=time.time()))

        assert (found().level, "was not asked" in found().message) == (Level.OK, True)
        assert "answered in" in found(online=True).message
        server.fail_next(Failure(status=401, message="Incorrect API key provided"))
        assert found(online=True).level is Level.PROBLEM
        assert found(online=True).level is Level.OK
        for condition, level in (
            (EndpointCondition.STOPPED, Level.OK),  # status has it as a condition
            (EndpointCondition.COOLING_DOWN, Level.WARNING),
            (EndpointCondition.FAILING, Level.WARNING),
            (EndpointCondition.OK, Level.OK),
        ):
            state = EndpointStatus(condition, None, "out of quota", time.time() - 90)
            monkeypatch.setattr(board_module.HealthStore, "endpoint", lambda *_, state=state: state)
            assert found().level is level, condition
            assert ("out of quota" in found().message) == (level is Level.WARNING)
