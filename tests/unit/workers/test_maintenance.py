"""A round of maintenance that fails for one agent is a condition, and goes on with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from memory.store.errors import StoreFull
from memory.store.writer import Maintained
from schemas.conditions import ConditionCode
from schemas.settings import StoreSettings
from schemas.settings.sync import Sync
from tests.recording import RecordingConditions
from workers.maintenance import AGENT_SECONDS, Housekeeping, Maintenance
from workers.queue.pending import Waiting


@pytest.mark.parametrize("error", [StoreFull("no space left"), OSError("disk on fire"), ZeroDivisionError("oh")])
def test_a_failure_is_a_condition_until_it_goes_well_and_stops_no_other_agent(error: Exception) -> None:
    errors: dict[str, Exception] = {"b": error}
    maintained: list[str] = []

    @contextmanager
    def indexer(agent: str) -> Iterator[Any]:
        def maintain(*, go_on: Callable[[], bool], now: float) -> Maintained:
            maintained.append(agent)
            if agent in errors:
                raise errors[agent]
            return Maintained()

        yield SimpleNamespace(generations=SimpleNamespace(open_existing=lambda: [SimpleNamespace(maintain=maintain)]))

    conditions = RecordingConditions()
    quiet = SimpleNamespace(waiting=lambda _agent: Waiting(live=0, backfill=0, running=0))
    runtime: Any = SimpleNamespace(
        queue=SimpleNamespace(pending_set=quiet),
        health=conditions,
        indexer=indexer,
    )
    maintenance = Maintenance(runtime, stopping=lambda: False, clock=lambda: 0.0)
    for agent in "abc":
        maintenance.of_agent(agent, now=0.0)
    assert maintained == ["a", "b", "c"]
    assert list(conditions.open) == [(ConditionCode.MAINTENANCE_FAILED, "b")]
    assert str(error) in str(conditions.open[ConditionCode.MAINTENANCE_FAILED, "b"].params["error"])
    errors.clear()
    maintenance.of_agent("b", now=0.0)
    assert not conditions.open


def test_a_busy_agent_is_maintained_every_half_hour_until_its_work_is_done() -> None:
    clock, maintained = [0.0], []
    steps = [AGENT_SECONDS + 1, 0.0]  # the first round runs out of time

    @contextmanager
    def indexer(agent: str) -> Iterator[Any]:
        def maintain(*, go_on: Callable[[], bool], now: float) -> Maintained:
            assert go_on()
            maintained.append(now)
            clock[0] += steps.pop(0)
            return Maintained()

        yield SimpleNamespace(generations=SimpleNamespace(open_existing=lambda: [SimpleNamespace(maintain=maintain)]))

    busy = SimpleNamespace(waiting=lambda _agent: Waiting(live=1, backfill=0, running=0))
    runtime: Any = SimpleNamespace(
        queue=SimpleNamespace(pending_set=busy),
        health=RecordingConditions(),
        indexer=indexer,
    )
    maintenance = Maintenance(runtime, stopping=lambda: False, clock=lambda: clock[0])
    for clock[0] in (600.0, 1_200.0, 1_801.0, 2_101.0, 2_401.0, 2_701.0):
        maintenance.of_agent("a", now=clock[0])
    assert maintained == [1_801.0, 2_101.0]


def test_a_round_maintains_each_agent_even_if_its_housekeeping_fails() -> None:
    maintained: list[str] = []

    @contextmanager
    def indexer(agent: str) -> Iterator[Any]:
        def open_existing() -> list[Any]:
            maintained.append(agent)
            return []

        yield SimpleNamespace(generations=SimpleNamespace(open_existing=open_existing))

    conditions = RecordingConditions()
    quiet = SimpleNamespace(waiting=lambda _agent: Waiting(live=0, backfill=0, running=0))
    runtime: Any = SimpleNamespace(
        settings=SimpleNamespace(store=StoreSettings(), sync=Sync(), agent=lambda agent: agent),
        directory=SimpleNamespace(agent_ids=lambda: iter("ab")),
        queue=SimpleNamespace(pending_set=quiet),
        health=conditions,
        indexer=indexer,
        owns=lambda: True,
    )
    assert list(Housekeeping(runtime, stopping=lambda: False).agents(begins=True)) == ["a", "b"]
    assert maintained == ["a", "b"]
    assert list(conditions.open) == [(ConditionCode.HOUSEKEEPING_FAILED, agent) for agent in "ab"]
