"""Reports of watching: its state in a file, and its conditions until they are over."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from memory.status.condition_texts import text_of
from producers.report import REFUSAL_SECONDS, FilesReport, WatchMode, WatchState
from schemas.conditions import ConditionCode
from tests.recording import RecordingConditions

REFUSED = ConditionCode.EVENT_PATHS_REFUSED, "main"


@pytest.mark.parametrize(
    "path",
    ["/etc/a.jsonl", "/x\n\x1b[31m\udce9" + "y" * 10_000, "/half of a pair \ud800 \x1b[2J\n.jsonl"],
    ids=["usual", "long", "no path"],
)
def test_refused_paths_are_one_condition_with_their_number_and_the_last_one(tmp_path: Path, path: str) -> None:
    conditions = RecordingConditions()
    report = FilesReport(tmp_path, ["main"], conditions)
    report.watched("main", WatchState(WatchMode.EVENTS))
    report.compared("main", ())
    for number in range(1000):
        report.refused("main", "grew", path if number == 999 else "/etc/other", reason="not a transcript")
    now = time.monotonic()
    report.publish(now=now)
    assert len(conditions.told) == 1
    assert conditions.open[REFUSED].params["paths"] == 1000
    message = text_of(conditions.open[REFUSED])
    message.encode()
    assert message.isprintable()
    assert len(message) < 400
    report.publish(now=now + REFUSAL_SECONDS - 10)
    assert REFUSED in conditions.open
    report.publish(now=now + REFUSAL_SECONDS + 10)
    assert conditions.open == {}


def test_watching_is_published_and_an_overflow_is_a_condition_until_the_comparison(tmp_path: Path) -> None:
    conditions, published = RecordingConditions(), tmp_path / "run/watch.json"
    report = FilesReport(tmp_path, ["main"], conditions)
    report.watched("main", WatchState(WatchMode.POLLING, "the limit is reached"))
    report.compared("main", ())
    report.publish(now=0.0)
    assert list(conditions.open) == [(ConditionCode.WATCH_POLLS, "main")]
    report.watched("main", WatchState(WatchMode.EVENTS))
    report.overflow("main")
    report.publish(now=2.0)
    assert list(conditions.open) == [(ConditionCode.WATCH_OVERFLOWED, "main")]
    report.compared("main", ())
    report.publish(now=4.0)
    assert conditions.open == {}
    state = json.loads(published.read_text())["main"]
    assert (state["mode"], state["overflows"]) == ("events", 1)
    report.close()
    assert not published.exists()
