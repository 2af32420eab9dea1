"""What the parts say about themselves, on a real Valkey and without one."""

from __future__ import annotations

import json
import time
from datetime import date
from typing import Any

import pytest
import redis

from memory.status.home import build_status
from memory.status.processes import Pulses
from recalld.runs.estimate import Spending
from schemas.conditions import OF_FILES, Condition, ConditionCode
from schemas.ports import Usage, VectorProgress
from schemas.settings import Settings
from tests.working import ready
from workers.health import health_store as board_module
from workers.health.health_store import HealthStore
from workers.health.heartbeat import Heartbeat
from workers.queue.connection import connect, namespace
from workers.queue.counters import today_utc
from workers.queue.names import Keys


@pytest.fixture
def board(client: redis.Redis, keys: Keys) -> HealthStore:
    return HealthStore(client, keys)


def histogram(client: redis.Redis, keys: Keys) -> dict[str, float]:
    return {name.decode(): float(value) for name, value in client.hgetall(keys.freshness()).items()}


def at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    monkeypatch.setattr(board_module.time, "time", lambda: moment)


FULL, POLLS = ConditionCode.STORE_FULL, ConditionCode.WATCH_POLLS


def test_another_process_sees_the_condition_and_can_end_it(board: HealthStore, settings: Settings, keys: Keys) -> None:
    board.report(FULL, agent="main", error="the disk is full")
    board.report(POLLS, agent="*", reason="the limit is reached")
    with connect(settings) as other_client:
        other = HealthStore(other_client, keys)
        assert {one.code for one in other.conditions("main")} == {FULL, POLLS}
        other.resolve(FULL, agent="main")
        other.resolve(FULL, agent="main")
    assert [one.code for one in board.conditions("main")] == [POLLS]


def test_a_condition_began_when_it_was_first_reported(board: HealthStore, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 1000.0)
    board.report(FULL, agent="main", error="the disk is full")
    at(monkeypatch, 2000.0)
    board.report(FULL, agent="main", error="the disk is still full")
    [found] = board.conditions("main")
    assert (found.params, found.since) == ({"error": "the disk is still full"}, 1000.0)
    assert board.conditions("main", reported_since=2000.0) == [found]
    assert board.conditions("main", reported_since=2000.1) == []


def test_all_conditions_of_some_codes_are_replaced_each_with_its_own_beginning(
    board: HealthStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, missing = ConditionCode.FILE_IS_LINK, ConditionCode.FOLDER_MISSING
    at(monkeypatch, 1000.0)
    board.replace(OF_FILES, [Condition(link, "/a"), Condition(missing, "/b")], agent="main")
    board.report(FULL, agent="main", error="the disk is full")
    at(monkeypatch, 2000.0)
    board.replace(OF_FILES, [Condition(link, "/a"), Condition(link, "/c")], agent="main")
    found = {(one.code, one.subject): one.since for one in board.conditions("main")}
    assert found == {(link, "/a"): 1000.0, (link, "/c"): 2000.0, (FULL, ""): 1000.0}


def test_what_another_version_wrote_is_forgotten(board: HealthStore, client: redis.Redis, keys: Keys) -> None:
    known = {"code": "store_full", "subject": "", "since": 1.0, "at": 1.0, "params": {}}
    kept = {
        "store": {"message": "the disk is full", "since": 1.0, "at": 1.0, "code": None},
        "of_tomorrow": known | {"code": "of_tomorrow"},
        "store_full": known,
    }
    client.hset(keys.conditions("main"), mapping={name: json.dumps(body) for name, body in kept.items()})
    client.hset(keys.conditions("main"), "odd", "no JSON")
    assert [one.code for one in board.conditions("main")] == [FULL]


def test_times_to_searchable_are_counted_below_the_bound_they_reach(
    board: HealthStore, client: redis.Redis, keys: Keys
) -> None:
    board.counters.record_freshness([])
    board.counters.flush()
    assert histogram(client, keys) == {}
    board.counters.record_freshness([0.05, 0.1, 0.11, 2.5, 1800.0, 5000.0])
    board.counters.record_freshness([-3.0])  # a clock that went back takes nothing off the sum
    board.counters.flush()
    found = histogram(client, keys)
    assert found.pop("sum") == pytest.approx(0.05 + 0.1 + 0.11 + 2.5 + 1800 + 5000)
    assert found == {"0.1": 3, "0.25": 1, "3.0": 1, "1800.0": 1, "inf": 1}


def test_the_rate_begins_with_the_first_measurement_and_follows_the_later_ones(
    board: HealthStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert board.vector_progress("main") == VectorProgress()
    at(monkeypatch, 1000.0)
    board.record_vectors("main", count=100, seconds=1.0)
    assert board.vector_progress("main") == VectorProgress(100.0, 1000.0)
    at(monkeypatch, 1002.0)
    board.record_vectors("main", count=400, seconds=2.0)
    progress = board.vector_progress("main")
    assert 100 < progress.rate < 200, "one measurement does not throw the rate over"
    assert progress.at == 1002.0
    for turn in range(60):
        at(monkeypatch, 1004.0 + 2 * turn)
        board.record_vectors("main", count=400, seconds=2.0)
    assert board.vector_progress("main").rate == pytest.approx(200, rel=0.01)
    assert board.vector_progress("other") == VectorProgress()
    at(monkeypatch, 9000.0)
    board.record_vectors("main", count=5, seconds=1.0)
    assert board.vector_progress("main").rate == 5.0, "what was before a pause says nothing of now"


def spent(requests: int = 1, *, failed: int = 0, inputs: int = 0, tokens: int = 0, model: str = "small") -> Usage:
    return Usage("openai", model, requests=requests, failed=failed, inputs=inputs, tokens=tokens)


def record(board: HealthStore, usage: Usage, *, queries: bool = False, **agents: Usage) -> None:
    board.counters.record_usage(usage, agents=agents or {"main": usage}, queries=queries)
    board.counters.flush()


def test_what_embedding_costs_adds_up_by_agent_provider_and_model(
    board: HealthStore, settings: Settings, keys: Keys
) -> None:
    record(board, spent(inputs=5, tokens=100), ada=spent(inputs=3, tokens=60), bob=spent(inputs=2, tokens=40))
    with connect(settings) as elsewhere:
        other = HealthStore(elsewhere, keys)
        for usage in (spent(inputs=1, tokens=7), spent(failed=1), spent(tokens=9, model="a|b")):
            record(other, usage, ada=usage)
    assert board.usage("ada") == [spent(3, failed=1, inputs=4, tokens=67), spent(tokens=9, model="a|b")]
    assert board.usage("bob") == [spent(inputs=2, tokens=40)]
    assert board.usage("*") == [spent(3, failed=1, inputs=6, tokens=107), spent(tokens=9, model="a|b")]
    assert board.usage("nobody") == []


def test_each_day_s_cost_is_kept_for_forty_days_and_the_sum_for_ever(
    board: HealthStore, client: redis.Redis, keys: Keys
) -> None:
    record(board, spent(tokens=5))
    assert board.usage("main", day=today_utc()) == board.usage("main") == [spent(tokens=5)]
    assert board.usage("main", day=date(2026, 1, 1)) == []
    assert 39 * 86_400 < client.ttl(keys.usage("main", today_utc())) <= 40 * 86_400
    assert client.ttl(keys.usage("main", None)) == -1


def test_counts_that_the_broker_does_not_take_now_are_kept(client: redis.Redis, keys: Keys, settings: Settings) -> None:
    with connect(settings) as asked:
        board = HealthStore(asked, keys)
        record(board, spent(inputs=1))
        server: Any = client
        server.replicaof("127.0.0.1", "1")
        for _ in range(3):
            record(board, spent(inputs=1))
        server.replicaof("NO", "ONE")
        record(board, spent(inputs=1))
    assert HealthStore(client, keys).usage("main") == [spent(5, inputs=5)]


def test_an_absent_broker_is_an_answer_and_never_an_error(settings: Settings, keys: Keys) -> None:
    with connect(settings) as nobody:
        board = HealthStore(nobody, keys)
        board.report(FULL, agent="main", error="the disk is full")
        board.resolve(FULL, agent="main")
        board.record_vectors("main", count=1, seconds=1.0)
        assert board.pending("main") is None
        assert board.vector_progress("main") == VectorProgress()
        assert list(board.conditions("main")) == []
        record(board, spent())
        assert list(board.usage("main")) == []


@pytest.mark.parametrize(
    ("set_so", "said"),
    [
        ({"maxmemory": "1mb", "maxmemory-policy": "noeviction"}, "memory is full"),
        ({"replicaof": "127.0.0.1 1"}, "read-only replica"),
    ],
)
def test_a_broker_that_answers_and_takes_nothing_new_makes_status_not_ok(
    board: HealthStore, settings: Settings, client: redis.Redis, set_so: dict[str, str], said: str
) -> None:
    asked: Any = client
    assert build_status(settings, board).broker.writable
    # What the server holds by itself is more than 1 MB, or close to it.
    asked.set("ballast", "x" * 1_000_000)
    for name, value in set_so.items():
        if name == "replicaof":
            asked.replicaof(*value.split())
        else:
            asked.config_set(name, value)
    status = build_status(settings, board)
    assert (status.ok, status.broker.writable) == (False, False)
    keys = Keys(namespace(settings))
    page = ready(HealthStore(asked, keys))
    assert page.status_code == 503
    assert said in json.loads(page.body)["error"]
    [trouble] = [one for one in status.agents[0].troubles if one.part == "broker"]
    assert said in trouble.message
    asked.config_set("maxmemory", "0")
    asked.replicaof("NO", "ONE")
    assert build_status(settings, board).ok
    assert ready(HealthStore(asked, keys)).status_code == 200


def test_nobody_is_called_silent_who_cannot_be_heard(
    board: HealthStore, settings: Settings, client: redis.Redis
) -> None:
    asked: Any = client
    keys = Keys(namespace(settings))
    with Heartbeat(settings, "watch", Pulses(), beat_seconds=600):
        asked.zadd(keys.heard, dict.fromkeys(asked.hkeys(keys.processes), time.time() - 60))
        assert [sign.role for sign in board.processes()] == ["watch"]
        asked.set("ballast", "x" * 1_000_000)
        asked.config_set("maxmemory", "1mb")
        assert list(board.processes()) == []
        asked.config_set("maxmemory", "0")


def test_what_searches_cost_is_told_with_the_rest_and_is_none_of_an_indexing_commands(
    board: HealthStore, settings: Settings
) -> None:
    [agent] = settings.agents
    spending = Spending(board, [agent])
    record(board, spent(inputs=4, tokens=60))
    for _ in range(3):
        record(board, spent(inputs=1, tokens=7), queries=True)
    assert board.usage("main") == board.usage("*") == [spent(4, inputs=7, tokens=81)]
    assert [usage for usage, _ in spending.of("main")] == [spent(inputs=4, tokens=60)]
    again = Spending(board, [agent])
    record(board, spent(inputs=1, tokens=7), queries=True)
    assert again.of("main") == []
