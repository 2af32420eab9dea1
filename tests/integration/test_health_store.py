"""Reports of the parts about themselves, on a real Valkey and without one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from memory.status.home import build_status
from recalld.runs.estimate import Spending
from schemas.conditions import ConditionCode
from schemas.ports import Usage
from schemas.settings import Settings
from tests.working import ready
from workers.health.health_store import HealthStore
from workers.queue.connection import connect, namespace
from workers.queue.names import Keys


@pytest.fixture
def health(client: redis.Redis, keys: Keys) -> HealthStore:
    return HealthStore(client, keys)


def spent(requests: int = 1, *, failed: int = 0, inputs: int = 0, tokens: int = 0, model: str = "small") -> Usage:
    return Usage("openai", model, requests=requests, failed=failed, inputs=inputs, tokens=tokens)


def record(health: HealthStore, usage: Usage, *, queries: bool = False, **agents: Usage) -> None:
    health.counters.record_usage(usage, agents=agents or {"main": usage}, queries=queries)
    health.counters.flush()


def test_what_embedding_costs_adds_up_by_agent_provider_and_model(
    health: HealthStore, settings: Settings, keys: Keys
) -> None:
    record(health, spent(inputs=5, tokens=100), ada=spent(inputs=3, tokens=60), bob=spent(inputs=2, tokens=40))
    with connect(settings) as elsewhere:
        other = HealthStore(elsewhere, keys)
        for usage in (spent(inputs=1, tokens=7), spent(failed=1), spent(tokens=9, model="a|b")):
            record(other, usage, ada=usage)
    assert health.usage("ada") == [spent(3, failed=1, inputs=4, tokens=67), spent(tokens=9, model="a|b")]
    assert health.usage("bob") == [spent(inputs=2, tokens=40)]
    assert health.usage("*") == [spent(3, failed=1, inputs=6, tokens=107), spent(tokens=9, model="a|b")]
    assert health.usage("absent") == []


def test_what_an_indexing_request_cost_is_there_though_its_process_is_killed_at_once(
    health: HealthStore, settings: Settings, keys: Keys
) -> None:
    with connect(settings) as elsewhere:
        HealthStore(elsewhere, keys).counters.record_usage(spent(tokens=7), agents={"main": spent(tokens=7)})
    assert health.usage("main") == [spent(tokens=7)]


def test_the_third_worker_within_minutes_that_runs_out_of_memory_is_a_condition(health: HealthStore) -> None:
    def limits() -> list[str | int | float]:
        code = ConditionCode.WORKERS_OUT_OF_MEMORY
        return [one.params["limit"] for one in health.conditions("main") if one.code is code]

    for number in range(3):
        assert limits() == []
        health.note_out_of_memory(f"limit {number}")
    assert limits() == ["limit 2"]


@pytest.mark.parametrize(
    ("set_so", "said"),
    [
        ({"maxmemory": "1mb", "maxmemory-policy": "noeviction"}, "memory is full"),
        ({"replicaof": "127.0.0.1 1"}, "read-only replica"),
    ],
)
def test_a_broker_that_answers_and_takes_nothing_new_makes_status_not_ok(
    health: HealthStore, settings: Settings, client: redis.Redis, set_so: dict[str, str], said: str
) -> None:
    asked: Any = client
    assert build_status(settings, health).broker.writable
    # What the server holds by itself is more than 1 MB, or close to it.
    asked.set("ballast", "x" * 1_000_000)
    for name, value in set_so.items():
        if name == "replicaof":
            asked.replicaof(*value.split())
        else:
            asked.config_set(name, value)
    status = build_status(settings, health)
    assert (status.ok, status.broker.writable) == (False, False)
    keys = Keys(namespace(settings))
    page = ready(HealthStore(asked, keys))
    assert page.status_code == 503
    assert said in json.loads(page.body)["error"]
    [trouble] = [one for one in status.agents[0].troubles if one.part == "broker"]
    assert said in trouble.message
    asked.config_set("maxmemory", "0")
    asked.replicaof("NO", "ONE")
    assert build_status(settings, health).broker.writable
    assert ready(HealthStore(asked, keys)).status_code == 200


def test_the_cost_of_searches_is_in_status_and_in_no_report_of_indexing(
    health: HealthStore, settings: Settings
) -> None:
    [agent] = settings.agents
    spending = Spending(health, [agent])
    record(health, spent(inputs=4, tokens=60))
    for _ in range(3):
        record(health, spent(inputs=1, tokens=7), queries=True)
    assert health.usage("main") == health.usage("*") == [spent(4, inputs=7, tokens=81)]
    assert [usage for usage, _ in spending.of("main")] == [spent(inputs=4, tokens=60)]
    again = Spending(health, [agent])
    record(health, spent(inputs=1, tokens=7), queries=True)
    assert again.of("main") == []
