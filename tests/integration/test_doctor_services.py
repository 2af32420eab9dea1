"""What the doctor says of broker, processes and providers, and that it says it no more when it is mended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from memory.status.home import build_status
from memory.status.processes import Pulses
from memory.status.run_files import is_stopped, server_pid
from recalld.doctor import machine
from recalld.doctor.examination import condition_findings
from recalld.doctor.finding import Finding, Level
from recalld.up.lock import only_daemon
from recalld.wiring import BrokerSide, open_broker
from schemas.settings import Settings
from schemas.status import EndpointCondition, EndpointStatus, OutdatedState
from tests.embedding_server import EmbeddingServer, Failure
from tests.waiting import wait_until
from workers.health import health_store as board_module
from workers.health.heartbeat import Heartbeat, read_beats
from workers.queue.private_server import BrokerServer


@pytest.fixture
def side(settings: Settings) -> Iterator[BrokerSide]:
    opened = open_broker(settings, answer_seconds=1.0)
    yield opened
    opened.client.close()


def worst(findings: Iterator[Finding]) -> Finding:
    """The finding that matters most; each that is not fine says what to do."""
    found = list(findings)
    assert all(one.action for one in found if one.level is not Level.OK)
    return max(found, key=lambda one: list(Level).index(one.level))


def processes(settings: Settings, side: BrokerSide) -> Iterator[Finding]:
    return machine.process_findings(settings, side, build_status(settings, side.board))


def broker(settings: Settings, side: BrokerSide) -> Iterator[Finding]:
    return machine.broker_findings(settings, build_status(settings, side.board))


def test_a_private_broker_that_is_not_needed_is_fine_and_one_that_up_misses_is_not(
    settings: Settings, side: BrokerSide
) -> None:
    assert worst(broker(settings, side)).level is Level.OK
    with only_daemon(settings.home):
        found = worst(broker(settings, side))
    assert found.level is Level.PROBLEM
    assert "valkey.log" in str(found.action)


def test_a_broker_of_ones_own_that_does_not_answer_is_a_problem(settings: Settings) -> None:
    elsewhere = Settings.model_validate({"home": settings.home, "broker": {"url": "redis://127.0.0.1:1/0"}})
    side = open_broker(elsewhere, answer_seconds=1.0)
    found = worst(broker(elsewhere, side))
    unknown = worst(processes(elsewhere, side))
    assert (unknown.check, unknown.level) == ("processes", Level.WARNING)
    assert machine.seconds_ahead(side) is None
    side.client.close()
    assert (found.level, "REDIS_URL" in found.message) == (Level.PROBLEM, True)


def test_a_private_broker_that_is_stopped_is_told_with_its_number_and_no_second_one_writes_its_files(
    settings: Settings, broker_server: BrokerServer, side: BrokerSide
) -> None:
    pid = server_pid(settings.home)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(pid))
        status = build_status(settings, side.board)
        broker_findings = list(machine.broker_findings(settings, status))
        [unknown] = machine.process_findings(settings, side, status)
    finally:
        os.kill(pid, signal.SIGCONT)
    [found] = condition_findings(status, broker_findings)
    assert (status.ok, status.agents[0].troubles[0].params) == (False, {"pid": pid})
    assert (found.level, f"`kill -CONT {pid}`" in str(found.action)) == (Level.PROBLEM, True)
    assert (unknown.check, unknown.level) == ("processes", Level.WARNING)
    wait_until(lambda: build_status(settings, side.board).ok)


@pytest.mark.parametrize(
    ("set_so", "back", "said"),
    [
        ({"maxmemory": "500mb", "maxmemory-policy": "allkeys-lru"}, {"maxmemory": "0"}, "noeviction"),
        # Its server ends slowly: it writes a new file first.
        pytest.param({"appendonly": "no", "save": ""}, {"appendonly": "yes"}, "appendonly yes", marks=pytest.mark.long),
    ],
)
def test_a_broker_that_may_throw_keys_away_or_keeps_nothing_is_a_warning_until_it_is_set_right(
    settings: Settings,
    broker_server: BrokerServer,
    side: BrokerSide,
    client: redis.Redis,
    set_so: dict[str, str],
    back: dict[str, str],
    said: str,
) -> None:
    asked: Any = client
    assert worst(broker(settings, side)).level is Level.OK
    assert abs(machine.seconds_ahead(side) or 60.0) < 5.0
    for name, value in set_so.items():
        asked.config_set(name, value)
    found = worst(broker(settings, side))
    assert (found.level, said in found.message) == (Level.WARNING, True)
    for name, value in back.items():
        asked.config_set(name, value)
    assert worst(broker(settings, side)).level is Level.OK


def test_a_process_that_ended_without_a_word_is_a_problem_until_it_is_forgotten(
    settings: Settings, broker_server: BrokerServer, side: BrokerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worst(processes(settings, side)).message == "nothing runs; `recalld up` starts everything"
    with Heartbeat(settings, "work", Pulses(), beat_seconds=60.0):
        assert worst(processes(settings, side)).level is Level.OK
        # So much later, in a machine that was started again.
        late = [replace(beat, silent_seconds=60.0, born="another") for beat in read_beats(side.client, side.keys)]
        monkeypatch.setattr(board_module, "read_beats", lambda *_: late)
        found = worst(processes(settings, side))
        assert (found.level, found.heal is not None) == (Level.PROBLEM, True)


def test_nobody_is_called_dead_because_the_broker_takes_no_signs_of_life(
    settings: Settings, broker_server: BrokerServer, side: BrokerSide, client: redis.Redis
) -> None:
    asked: Any = client
    with Heartbeat(settings, "work", Pulses(), beat_seconds=600.0):
        asked.zadd(side.keys.heard, dict.fromkeys(asked.hkeys(side.keys.processes), time.time() - 60))
        asked.set("ballast", "x" * 1_000_000)
        asked.config_set("maxmemory", "1mb")
        status = build_status(settings, side.board)
        assert [trouble.part for trouble in status.agents[0].troubles] == ["broker"]
        full = worst(broker(settings, side))
        assert (full.level, "memory is full" in full.message) == (Level.PROBLEM, True)
        [unknown] = processes(settings, side)
        assert (unknown.check, unknown.level) == ("processes", Level.WARNING)
        asked.config_set("maxmemory", "0")


def test_settings_that_were_changed_since_are_a_problem_with_what_to_do(
    settings: Settings, broker_server: BrokerServer, side: BrokerSide
) -> None:
    told: list[OutdatedState | None] = [OutdatedState("/etc/recalld.toml", 5000.0, 4000.0)]
    with Heartbeat(settings, "work", Pulses(), beat_seconds=60.0, outdated=lambda: told[0]):
        found = worst(processes(settings, side))
    assert (found.check, found.level) == ("settings", Level.PROBLEM)
    assert "/etc/recalld.toml was changed at" in found.message
    told[0] = None
    with Heartbeat(settings, "work", Pulses(), beat_seconds=60.0, outdated=lambda: told[0]):
        assert worst(processes(settings, side)).level is Level.OK


def test_a_provider_that_refuses_cools_down_or_does_not_answer_is_told_until_it_serves_again(
    settings: Settings, broker_server: BrokerServer, side: BrokerSide
) -> None:
    with EmbeddingServer() as server:
        provider = {"provider": "openai", "remote": {"base_url": server.url, "api_key": "a-secret-key"}}
        agent = {"id": "main", "workspace": settings.agents[0].workspace, **provider}
        remote = Settings.model_validate({"home": settings.home, "agents": [agent], **provider})

        def found(*, online: bool = False) -> Finding:
            return worst(machine.provider_findings(remote, remote.agents[0], side, online=online, now=time.time()))

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
            state = EndpointStatus(condition, None, "out of quota")
            with pytest.MonkeyPatch.context() as said:
                said.setattr(board_module.HealthStore, "endpoint", lambda *_, state=state: state)
                assert found().level is level, condition
        silent = EndpointStatus(EndpointCondition.WAITING, None, "openai has not answered a request", time.time() - 90)
        with pytest.MonkeyPatch.context() as said:
            said.setattr(board_module.HealthStore, "endpoint", lambda *_: silent)
            waits = found()
        assert (waits.level, waits.message) == (Level.WARNING, "openai has not answered a request for 1 min 30 s")


def test_a_provider_that_cannot_be_had_is_a_problem_and_none_on_purpose_is_fine(
    settings: Settings, side: BrokerSide
) -> None:
    def found(provider: str) -> Finding:
        agent = settings.agents[0].model_copy(update={"provider": provider})
        return worst(machine.provider_findings(settings, agent, side, online=False, now=time.time()))

    assert found("openai").level is Level.PROBLEM
    assert found("none").level is Level.OK
