from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles, Scan, WatchRoot
from producers.watching import polling_watcher
from producers.watching.polling_watcher import PollingWatcher, differences
from producers.watching.watcher import WatchMode
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings
from tests.waiting import wait_until


def note(name: str) -> DocumentKey:
    return DocumentKey("memory", f"{name}.md")


class Listed:
    """Files that a test makes up. `rounds` counts the scans."""

    def __init__(self, **stats: int) -> None:
        self.now = Scan({note(name): FileStat(1, stat, 1) for name, stat in stats.items()}, True, (), ())
        self.rounds = 0
        self.error: OSError | None = None

    def scan(self) -> Scan:
        self.rounds += 1
        if self.error is not None:
            raise self.error
        return self.now

    def path_of(self, key: DocumentKey) -> Path:
        return Path("/w") / key.path

    def watch_roots(self) -> list[WatchRoot]:
        return []

    def owns_directory(self, path: Path) -> bool:
        return True

    def let_a_round_pass(self) -> None:
        rounds = self.rounds
        wait_until(lambda: self.rounds >= rounds + 2)


class Heard:
    def __init__(self) -> None:
        self.changes: list[str] = []

    def on_change(self, agent: str, path: str) -> None:
        self.changes.append(path)

    def on_overflow(self) -> None: ...

    def on_uncertain(self, agent: str) -> None: ...


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watcher(heard: Heard) -> Iterator[PollingWatcher]:
    watcher = PollingWatcher(heard, interval_seconds=0.002)
    yield watcher
    watcher.close()


def test_differences_are_what_is_new_gone_or_has_another_stat() -> None:
    one, two = FileStat(1, 1, 1), FileStat(1, 2, 1)
    before = {note("same"): one, note("changed"): one, note("gone"): one}
    after = {note("same"): one, note("changed"): two, note("new"): one}
    assert differences(before, after) == [note("changed"), note("new"), note("gone")]


def test_each_change_is_told_once(heard: Heard, watcher: PollingWatcher) -> None:
    files = Listed(a=1, b=1)
    watcher.add_root("main", files)
    files.let_a_round_pass()
    assert heard.changes == []
    files.now = Listed(a=2, c=1).now
    files.let_a_round_pass()
    files.let_a_round_pass()
    assert sorted(heard.changes) == ["/w/a.md", "/w/b.md", "/w/c.md"]


def with_ctime(**ctimes: int) -> Scan:
    return Scan({note(name): FileStat(1, 1, 1, ctime) for name, ctime in ctimes.items()}, True, (), ())


def test_a_change_time_that_moved_alone_is_told_once_when_it_has_come_to_rest(
    heard: Heard, watcher: PollingWatcher
) -> None:
    files = Listed()
    files.now = with_ctime(a=1, b=1)
    watcher.add_root("main", files)
    files.now = with_ctime(a=2, b=1)
    wait_until(lambda: heard.changes == ["/w/a.md"])
    files.let_a_round_pass()
    files.let_a_round_pass()
    assert heard.changes == ["/w/a.md"]


def test_change_times_that_are_those_of_each_look_are_no_news(heard: Heard, watcher: PollingWatcher) -> None:
    class Restless(Listed):
        def scan(self) -> Scan:
            super().scan()
            return Scan(
                {key: replace(stat, ctime_ns=self.rounds) for key, stat in self.now.documents.items()}, True, (), ()
            )

    files = Restless(a=1)
    watcher.add_root("main", files)
    for _ in range(3):
        files.let_a_round_pass()
    assert heard.changes == []
    files.now = Listed(a=2).now
    wait_until(lambda: heard.changes == ["/w/a.md"])
    files.now = Listed().now
    wait_until(lambda: heard.changes == ["/w/a.md"] * 2)


def test_an_edit_that_keeps_size_and_time_is_heard_by_polling(
    heard: Heard, watcher: PollingWatcher, tmp_path: Path
) -> None:
    path = tmp_path / "memory/a.md"
    path.parent.mkdir()
    path.write_text("one")
    before = path.stat()
    wait_until(lambda: time.time_ns() > before.st_ctime_ns + 20_000_000)  # a tick of the file system's clock
    watcher.add_root("main", AgentFiles(AgentSettings(id="main", workspace=tmp_path)))
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    wait_until(lambda: str(path) in heard.changes)


def test_what_cannot_be_listed_is_not_taken_for_deleted(heard: Heard, watcher: PollingWatcher) -> None:
    files = Listed(**{"a": 1, "locked/b": 1})
    watcher.add_root("main", files)
    files.now = Scan({note("a"): FileStat(1, 1, 1)}, False, ("/w/locked cannot be listed",), ("/w/locked",))
    files.let_a_round_pass()
    assert heard.changes == []
    files.now = Listed(**{"a": 1, "locked/b": 2}).now
    files.let_a_round_pass()
    assert heard.changes == ["/w/locked/b.md"]


def test_a_scan_that_fails_is_told_in_the_state_and_tried_again(heard: Heard, watcher: PollingWatcher) -> None:
    files = Listed(a=1)
    watcher.add_root("main", files)
    files.error = OSError("the disk is gone")
    wait_until(lambda: "the disk is gone" in (watcher.state("main").reason or ""))
    files.error = None
    files.now = Listed(a=2).now
    wait_until(lambda: heard.changes == ["/w/a.md"])
    assert watcher.state("main").mode is WatchMode.POLLING
    assert watcher.state("main").reason is None


def test_dear_rounds_are_far_apart(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = PollingWatcher(heard, interval_seconds=1.0)
    pauses: list[float] = []
    clock = iter([0.0, 0.01, 0.0, 0.5])  # seconds of CPU before and after two rounds
    monkeypatch.setattr(polling_watcher.time, "thread_time", lambda: next(clock))

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 3

    monkeypatch.setattr(watcher._stop, "wait", wait)
    watcher._run()
    assert pauses == [1.0, 1.0, 25.0]


def test_any_number_of_agents_takes_one_thread(heard: Heard, watcher: PollingWatcher) -> None:
    before = threading.active_count()
    for number in range(50):
        watcher.add_root(f"agent{number}", Listed(a=1))
    assert threading.active_count() == before + 1


@pytest.mark.parametrize(
    ("path", "scan", "expected"),
    [
        ("/w/a/b.md", Scan({}, True, (), ()), False),
        ("/w/a/b.md", Scan({}, False, (), ("/w/a",)), True),
        ("/w/ab/b.md", Scan({}, False, (), ("/w/a",)), False),
        ("/w/a/b.md", Scan({}, False, (), ("/",)), True),
        ("/w/a/b.md", Scan({}, False, (), ()), True),
    ],
)
def test_absence_means_nothing_where_the_disk_could_not_be_listed(path: str, scan: Scan, expected: bool) -> None:
    assert scan.hides(Path(path)) is expected
