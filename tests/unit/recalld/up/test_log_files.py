"""Logs of a home: the order of their entries, and those that are written meanwhile."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from recalld.up.log_files import entries, log_names


def line(second: int, event: str) -> str:
    return json.dumps({"event": event, "timestamp": f"2026-11-28T11:00:{second:02}.5Z"}) + "\n"


@pytest.fixture
def log(home: Path) -> Path:
    (home / "log").mkdir(parents=True)
    (home / "log" / "work-1.log.1").write_text(line(1, "first"))
    (home / "log" / "work-1.log").write_text(line(3, "third") + "recalld: a sentence\n" + line(5, "fifth"))
    (home / "log" / "serve.log").write_text("Traceback\n" + line(4, "fourth"))
    return home / "log" / "work-1.log"


def events(home: Path, process: str | None = None, number: int = 0) -> list[tuple[str, str]]:
    found = entries(home, process, number=number, follow=False)
    return [(entry.process, entry.fields["event"]) for entry in found]


def test_entries_of_all_processes_come_by_time(home: Path, log: Path) -> None:
    assert events(home) == [
        ("work-1", "first"),
        ("work-1", "third"),
        ("work-1", "recalld: a sentence"),
        ("serve", "Traceback"),
        ("serve", "fourth"),
        ("work-1", "fifth"),
    ]
    assert events(home, number=2) == [("serve", "fourth"), ("work-1", "fifth")]
    assert events(home, "work", number=1) == [("work-1", "fifth")]
    assert log_names(home) == ["serve", "work-1"]
    assert log_names(home, "ork-1") == []


def test_new_lines_are_followed_also_of_a_log_that_was_emptied(home: Path, log: Path) -> None:
    following = entries(home, None, number=1, follow=True)
    assert next(following).fields["event"] == "fifth"
    with log.open("a") as appended:
        appended.write(line(6, "sixth") + '{"half')
    (home / "log" / "watch.log").write_text(line(7, "of a new process"))
    assert [entry.fields["event"] for entry in islice(following, 2)] == ["sixth", "of a new process"]
    log.write_text(line(8, "eighth"))
    assert next(following).fields["event"] == "eighth"
