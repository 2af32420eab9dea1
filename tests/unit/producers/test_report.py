from __future__ import annotations

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest

from memory.status.condition_texts import text_of
from producers.report import REFUSAL_SECONDS, WRITE_SECONDS, FilesReport, WatchMode, WatchState
from schemas.conditions import Condition, ConditionCode
from tests.recording import RecordingConditions

EVENTS = WatchState(WatchMode.EVENTS)
POLLING = WatchState(WatchMode.POLLING, "the limit is reached")
REFUSED = ConditionCode.EVENT_PATHS_REFUSED


@pytest.fixture
def troubles() -> RecordingConditions:
    return RecordingConditions()


@pytest.fixture
def report(tmp_path: Path, troubles: RecordingConditions) -> FilesReport:
    report = FilesReport(tmp_path, ["main", "other"], troubles)
    report.watched("main", EVENTS)
    report.watched("other", WatchState(WatchMode.OFF, "sync.watch is off"))
    for agent in ("main", "other"):
        report.compared(agent, ())
    return report


def read(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "run/watch.json").read_text())
    return found


def test_the_file_is_written_at_most_once_a_second_and_only_with_news(tmp_path: Path, report: FilesReport) -> None:
    report.publish(now=0.0)
    report.event("main")
    report.publish(now=WRITE_SECONDS / 2)
    assert read(tmp_path)["main"]["lastEventAt"] is None
    report.publish(now=WRITE_SECONDS)
    assert read(tmp_path)["main"]["lastEventAt"] is not None
    (tmp_path / "run/watch.json").unlink()
    report.watched("main", EVENTS)
    report.publish(now=10.0)
    assert not (tmp_path / "run/watch.json").exists()


def test_the_file_is_gone_at_the_end(tmp_path: Path, report: FilesReport) -> None:
    report.publish(now=0.0)
    report.close()
    assert not (tmp_path / "run/watch.json").exists()
    report.close()


def test_polling_is_a_condition_until_it_is_over_and_switched_off_watching_is_none(
    report: FilesReport, troubles: RecordingConditions
) -> None:
    report.watched("main", POLLING)
    report.publish(now=0.0)
    assert list(troubles.open) == [(ConditionCode.WATCH_POLLS, "main")]
    assert troubles.open[ConditionCode.WATCH_POLLS, "main"].params == {"reason": "the limit is reached"}
    report.watched("main", EVENTS)
    report.publish(now=2.0)
    assert troubles.open == {}


def test_an_overflow_is_a_condition_until_the_comparison_and_is_counted(
    tmp_path: Path, report: FilesReport, troubles: RecordingConditions
) -> None:
    report.overflow("main")
    report.publish(now=0.0)
    assert list(troubles.open) == [(ConditionCode.WATCH_OVERFLOWED, "main")]
    report.compared("main", ())
    report.publish(now=2.0)
    assert troubles.open == {}
    assert [read(tmp_path)[agent]["overflows"] for agent in ("main", "other")] == [1, 0]


def test_a_condition_is_told_once_and_again_when_it_may_have_been_forgotten(
    report: FilesReport, troubles: RecordingConditions
) -> None:
    report.watched("main", POLLING)
    report.compared("main", [Condition(ConditionCode.FOLDER_EMPTIED, "memory")])
    for now in (0.0, 2.0, 4.0):
        report.event("main")
        report.publish(now=now)
    assert len(troubles.told) == 2
    report.tell_again()
    report.publish(now=6.0)
    assert len(troubles.told) == 4


def test_conditions_of_an_earlier_run_stay_until_the_first_comparison(
    tmp_path: Path, troubles: RecordingConditions
) -> None:
    troubles.report(ConditionCode.FOLDER_EMPTIED, agent="main")
    report = FilesReport(tmp_path, ["main"], troubles)
    report.publish(now=0.0)
    assert (ConditionCode.FOLDER_EMPTIED, "main") in troubles.open
    report.compared("main", ())
    report.publish(now=2.0)
    assert troubles.open == {}


def test_a_state_that_could_not_be_written_is_told_once_and_written_when_there_is_room_again(
    tmp_path: Path, report: FilesReport, troubles: RecordingConditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "replace", full)
        for now in (0.0, 2.0, 4.0):
            report.publish(now=now)
    assert [one.code for _, one in troubles.told] == [ConditionCode.WATCH_STATE_UNWRITABLE], "told once"
    assert list((tmp_path / "run").iterdir()) == [], "nothing half written is left"
    report.publish(now=6.0)
    assert troubles.open == {}
    assert read(tmp_path)["main"]["mode"] == "events"


def test_refused_paths_are_one_condition_with_their_number_and_the_last_one_for_a_while(
    report: FilesReport, troubles: RecordingConditions
) -> None:
    for number in range(1000):
        report.refused("main", "grew", f"/etc/{number}.jsonl", reason="not a transcript")
    now = time.monotonic()
    report.publish(now=now)
    assert len(troubles.told) == 1
    assert troubles.open[REFUSED, "main"].params["paths"] == 1000
    assert troubles.open[REFUSED, "main"].params["path"] == "/etc/999.jsonl"
    report.publish(now=now + REFUSAL_SECONDS - 10)
    assert (REFUSED, "main") in troubles.open
    report.publish(now=now + REFUSAL_SECONDS + 10)
    assert troubles.open == {}


@pytest.mark.parametrize(
    "path", ["/x\n\x1b[31m\udce9" + "y" * 10_000, "/half of a pair \ud800 \x1b[2J\n.jsonl"], ids=["long", "no path"]
)
def test_a_refused_path_is_shown_short_and_printable(
    report: FilesReport, troubles: RecordingConditions, path: str
) -> None:
    report.refused("main", "grew", path, reason="no")
    report.publish(now=0.0)
    message = text_of(troubles.open[REFUSED, "main"])
    message.encode()
    assert message.isprintable()
    assert len(message) < 400
