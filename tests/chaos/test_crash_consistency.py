"""kill -9 at named points and at any moment, while notes and transcripts change: the first promise.

CHAOS_SEED repeats a run. CHAOS_KILLS is how many kills the long form has: 200 in `make chaos`, fewer in
`make test-full`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.chaos.kill_points import KILL_POINTS
from tests.chaos.siege import TARGETS, Siege

#: Points of the short form; it must not take longer than twenty seconds.
SHORT = 5

#: Kills between two moments of quiet.
BETWEEN_QUIET = 20


def _seed() -> int:
    return int(os.environ.get("CHAOS_SEED", time.time_ns() % 1_000_000))


@pytest.mark.long
def test_at_named_points_a_kill_loses_nothing_tears_nothing_and_pays_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = KILL_POINTS[:SHORT]
    with Siege(tmp_path, points, seed=_seed(), notes=8, talks=2) as siege:
        for point in points:
            siege.change()
            siege.kill_at(point)
            siege.check()
        siege.end()
        _say(siege, capsys)
        _judge(siege, [point.name for point in points])


@pytest.mark.long
def test_any_number_of_kills_loses_nothing_tears_nothing_and_pays_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = int(os.environ.get("CHAOS_KILLS", "60"))
    with Siege(tmp_path, KILL_POINTS, seed=_seed(), notes=30, talks=6) as siege:
        quiet = BETWEEN_QUIET
        while siege.kills.total() < wanted:
            siege.change()
            # One kill may be of several processes, so turns cannot be counted by kills.
            rarest = min(TARGETS, key=lambda target: siege.kills[f"{target}, at any moment"])
            if siege.chance.random() < (0.3 if siege.kills[f"{rarest}, at any moment"] else 0.9):
                siege.kill_any(rarest)
            else:
                siege.kill_at(min(KILL_POINTS, key=lambda point: (siege.kills[point.name], siege.chance.random())))
            siege.check()
            if siege.kills.total() >= quiet:
                siege.settle()
                quiet += BETWEEN_QUIET
                siege.change()
                siege.lose_the_brokers_file()
        siege.end()
        _say(siege, capsys)
        _judge(siege, [*(point.name for point in KILL_POINTS), *(f"{target}, at any moment" for target in TARGETS)])


def _say(siege: Siege, capsys: pytest.CaptureFixture[str]) -> None:
    """Also when all is well: whoever repeats a run needs the seed, and a suite that kills nobody shows nothing."""
    with capsys.disabled():
        print(f"\n{siege.report()}")  # noqa: T201


def _judge(siege: Siege, names: list[str]) -> None:
    assert [name for name in names if not siege.kills[name]] == [], "never killed there"
    assert siege.losses == []
    assert siege.torn == []
    assert siege.payments.double == []
    assert siege.payments.paid > len(names), "nothing was embedded: this shows nothing"
