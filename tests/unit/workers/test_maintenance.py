"""Rounds of maintenance: whom they look after, what they wait for, and what becomes of a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from memory.store.errors import StoreFull
from memory.store.writer import Maintained
from schemas.conditions import ConditionCode
from schemas.metrics import Metric
from workers.maintenance import AGENT_SECONDS, NEGLECTED_SECONDS, ROUND_SECONDS, Maintenance
from workers.queue.pending import Waiting

QUIET = Waiting(live=0, backfill=0, running=0)


class World:
    """A runtime of three agents whose stores do what a test says; time passes when they do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stopping = False
        self.maintained: list[str] = []
        self.cache_rounds = 0
        self.troubles: dict[tuple[str, ConditionCode], str] = {}
        self.waiting: dict[str, Waiting] = {}
        self.act: Callable[[str, Callable[[], bool]], None] = lambda _agent, _go_on: None
        self.settings = SimpleNamespace(agents=[SimpleNamespace(id=name) for name in ("a", "b", "c")])
        self.queue = SimpleNamespace(marks=SimpleNamespace(waiting=lambda agent: self.waiting.get(agent, QUIET)))
        self.board = self
        self.counters = self
        self.counted: Counter[str] = Counter()
        self.done = Maintained()
        self.cache_had_to = False
        runtime: Any = self
        self.maintenance = Maintenance(runtime, stopping=lambda: self.stopping, clock=lambda: self.now)

    def report(self, code: ConditionCode, *, agent: str, error: str) -> None:
        self.troubles[agent, code] = error

    def resolve(self, code: ConditionCode, *, agent: str) -> None:
        self.troubles.pop((agent, code), None)

    @contextmanager
    def indexer(self, agent: str) -> Iterator[Any]:
        def maintain(*, go_on: Callable[[], bool]) -> Maintained:
            self.maintained.append(agent)
            self.act(agent, go_on)
            return self.done

        yield SimpleNamespace(generations=SimpleNamespace(open_existing=lambda: [SimpleNamespace(maintain=maintain)]))

    def maintain_cache(self) -> bool:
        self.cache_rounds += 1
        return self.cache_had_to

    def add(self, metric: Metric, number: int, of: str) -> None:
        self.counted[f"{metric.name} {of}"] += number


@pytest.fixture
def world() -> World:
    return World()


def test_rounds_that_found_something_to_do_are_counted_and_their_seconds_add_up(world: World) -> None:
    world.maintenance.round()
    assert not world.counted, "nothing was to do"
    world.done = Maintained(vector_steps=3, log_bytes=10, seconds={"vectors": 0.75, "log": 2.0})
    world.cache_had_to = True
    world.maintenance.round()
    assert world.counted["recalld_maintenance vectors"] == world.counted["recalld_maintenance log"] == 3
    assert world.counted["recalld_maintenance_seconds vectors"] == 2, "of 2.25"
    assert world.counted["recalld_maintenance_seconds log"] == 6
    assert world.counted["recalld_maintenance cache"] == 1
    assert "recalld_maintenance keywords" not in world.counted


@pytest.mark.parametrize("waiting", [Waiting(1, 0, 0), Waiting(0, 1, 0), Waiting(0, 0, 1)])
def test_an_agent_with_work_waits_for_a_quiet_moment_but_not_for_ever(world: World, waiting: Waiting) -> None:
    world.waiting["b"] = waiting
    world.now = 1.0
    world.maintenance.round()
    assert world.maintained == ["a", "c"]
    world.now = NEGLECTED_SECONDS + 2
    allowed: list[bool] = []
    world.act = lambda _agent, go_on: allowed.append(go_on())
    world.maintenance.round()
    assert world.maintained[2:] == ["b", "a", "c"], "the one that waited longest comes first"
    assert allowed == [True, True, True]


def test_it_stops_between_two_steps_when_there_is_work_time_is_over_or_the_process_ends(world: World) -> None:
    said: list[list[bool]] = []

    def act(agent: str, go_on: Callable[[], bool]) -> None:
        before = go_on()
        if agent == "a":
            world.waiting["a"] = Waiting(live=1, backfill=0, running=0)
        elif agent == "b":
            world.now += AGENT_SECONDS
        else:
            world.stopping = True
        said.append([before, go_on()])

    world.act = act
    world.maintenance.round()
    assert said == [[True, False]] * 3


def test_who_had_no_turn_in_a_round_has_the_first_one_in_the_next(world: World) -> None:
    def act(agent: str, _go_on: Callable[[], bool]) -> None:
        world.now += ROUND_SECONDS

    world.act = act
    world.maintenance.round()
    assert world.maintained == ["a"]
    world.maintenance.round()
    assert world.maintained == ["a", "b"]


@pytest.mark.parametrize("error", [StoreFull("no space left"), OSError("disk on fire"), ZeroDivisionError("oh")])
def test_a_failure_is_a_trouble_until_it_goes_well_and_stops_nobody_else(world: World, error: Exception) -> None:
    def act(agent: str, _go_on: Callable[[], bool]) -> None:
        if agent == "b":
            raise error

    world.act = act
    world.maintenance.round()
    assert world.maintained == ["a", "b", "c"]
    assert list(world.troubles) == [("b", ConditionCode.MAINTENANCE_FAILED)]
    assert str(error) in world.troubles["b", ConditionCode.MAINTENANCE_FAILED]
    world.act = lambda _agent, _go_on: None
    world.maintenance.round()
    assert not world.troubles
