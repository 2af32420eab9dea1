from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from producers.watching.report import WRITE_SECONDS, WatchReport
from producers.watching.watcher import WatchMode, WatchState
from tests.recording import RecordingTroubles

EVENTS = WatchState(WatchMode.EVENTS)


@pytest.fixture
def troubles() -> RecordingTroubles:
    return RecordingTroubles()


@pytest.fixture
def report(tmp_path: Path, troubles: RecordingTroubles) -> WatchReport:
    report = WatchReport(tmp_path, ["main", "other"], troubles)
    report.watched("main", EVENTS)
    report.watched("other", WatchState(WatchMode.OFF, "sync.watch is off"))
    return report


def read(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "run/watch.json").read_text())
    return found


def test_the_file_is_written_at_most_once_a_second(tmp_path: Path, report: WatchReport) -> None:
    report.publish(now=0.0)
    report.event("main")
    report.publish(now=WRITE_SECONDS / 2)
    assert read(tmp_path)["main"]["lastEventAt"] is None
    report.publish(now=WRITE_SECONDS)
    assert read(tmp_path)["main"]["lastEventAt"] is not None


def test_without_news_nothing_is_written(tmp_path: Path, report: WatchReport) -> None:
    report.publish(now=0.0)
    (tmp_path / "run/watch.json").unlink()
    report.watched("main", EVENTS)
    report.publish(now=10.0)
    assert not (tmp_path / "run/watch.json").exists()


def test_polling_is_a_trouble_until_it_is_over(report: WatchReport, troubles: RecordingTroubles) -> None:
    report.watched("main", WatchState(WatchMode.POLLING, "the limit is reached"))
    report.publish(now=0.0)
    assert troubles.open == {("watch", "main"): "file changes are noticed by polling: the limit is reached"}
    report.watched("main", EVENTS)
    report.publish(now=2.0)
    assert troubles.open == {}


def test_watching_that_was_switched_off_is_no_trouble(report: WatchReport, troubles: RecordingTroubles) -> None:
    report.publish(now=0.0)
    assert troubles.open == {}


def test_an_overflow_is_a_trouble_until_the_comparison_and_is_counted(
    tmp_path: Path, report: WatchReport, troubles: RecordingTroubles
) -> None:
    report.overflow()
    report.publish(now=0.0)
    assert "overflowed" in troubles.open["watch", "main"]
    assert ("watch", "other") not in troubles.open
    report.reconciled("main")
    report.publish(now=2.0)
    assert troubles.open == {}
    assert read(tmp_path)["main"]["overflows"] == 1
    assert read(tmp_path)["other"]["overflows"] == 0


def test_a_trouble_is_told_once_and_again_when_it_may_have_been_forgotten(
    report: WatchReport, troubles: RecordingTroubles
) -> None:
    report.watched("main", WatchState(WatchMode.POLLING, "the limit is reached"))
    for now in (0.0, 2.0, 4.0):
        report.event("main")
        report.publish(now=now)
    assert len(troubles.told) == 1
    report.tell_again()
    report.publish(now=6.0)
    assert len(troubles.told) == 2


def test_a_state_that_cannot_be_written_is_told_and_ends_nothing(
    tmp_path: Path, report: WatchReport, troubles: RecordingTroubles
) -> None:
    (tmp_path / "run").write_text("a file where a folder should be")
    report.publish(now=0.0)
    assert "watch.json cannot be written" in troubles.open["watch-state", "*"]
    (tmp_path / "run").unlink()
    report.event("main")
    report.publish(now=2.0)
    assert troubles.open == {}
    assert read(tmp_path)["main"]["mode"] == "events"


def test_a_state_that_could_not_be_written_is_written_without_news_when_there_is_room_again(
    tmp_path: Path, report: WatchReport, troubles: RecordingTroubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "replace", full)
        for now in (0.0, 2.0, 4.0):
            report.publish(now=now)
    assert [part for part, _, _ in troubles.told] == ["watch-state"], "told once"
    assert list((tmp_path / "run").iterdir()) == [], "nothing half written is left"
    report.publish(now=6.0)
    assert troubles.open == {}
    assert read(tmp_path)["main"]["mode"] == "events"


def test_what_an_earlier_run_could_not_write_is_over_when_this_one_can(
    report: WatchReport, troubles: RecordingTroubles
) -> None:
    troubles.report("watch-state", "cannot be written")
    report.publish(now=0.0)
    assert troubles.open == {}


def test_the_file_is_gone_at_the_end(tmp_path: Path, report: WatchReport) -> None:
    report.publish(now=0.0)
    report.close()
    assert not (tmp_path / "run/watch.json").exists()
    report.close()
