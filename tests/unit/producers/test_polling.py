"""Agents whose files the system does not report are looked at every few seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles, Scan, WatchRoot
from memory.documents.scan import KnownFiles
from producers.report import FilesReport, WatchMode
from producers.watcher import ChangeSource, Watcher, WatchLimitReached, blind_folder
from schemas.documents import DocumentKey, FileStat
from schemas.settings import AgentSettings
from tests.recording import Heard, RecordingConditions
from tests.waiting import wait_until


def note(name: str) -> DocumentKey:
    return DocumentKey("memory", f"{name}.md")


class Listed(AgentFiles):
    """Files that a test makes up. `rounds` counts the scans."""

    def __init__(self, **stats: int) -> None:
        super().__init__(AgentSettings(id="main", workspace=Path("/nowhere")))
        self.now = {note(name): FileStat(1, stat, 1) for name, stat in stats.items()}
        self.unlisted: tuple[str, ...] = ()
        self.rounds = 0

    def scan(self, *, but: KnownFiles | None = None, **_: object) -> Scan:
        assert but is not None
        self.rounds += 1
        documents = {key: stat for key, stat in self.now.items() if but.differs(key, stat)}
        return Scan(documents, (), self.unlisted)

    def watch_roots(self) -> list[WatchRoot]:
        return []

    def let_a_round_pass(self) -> None:
        rounds = self.rounds
        wait_until(lambda: self.rounds >= rounds + 2)


def no_source() -> ChangeSource:
    raise WatchLimitReached("no watches left")


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watcher(heard: Heard) -> Iterator[Watcher]:
    watcher = Watcher(heard, source=no_source, poll_interval_seconds=0.002)
    yield watcher
    watcher.close()


def test_each_change_is_told_once_and_a_vanished_document_asks_for_a_comparison(heard: Heard, watcher: Watcher) -> None:
    files = Listed(a=1, b=1)
    watcher.add("main", files)
    files.let_a_round_pass()
    assert (heard.paths(), heard.uncertain) == ([], [])
    files.now = Listed(a=2, c=1).now
    files.let_a_round_pass()
    files.let_a_round_pass()
    assert sorted(heard.paths()) == ["a.md", "c.md"]
    assert heard.uncertain == ["main"]


def test_a_refresh_without_watches_left_asks_for_no_further_comparison(heard: Heard, watcher: Watcher) -> None:
    watcher.add("main", Listed(a=1))
    for _ in range(2):
        watcher.refresh("main")
    assert (heard.uncertain, watcher.state("main").mode) == ([], WatchMode.POLLING)


def test_a_folder_that_cannot_be_listed_any_more_or_again_asks_for_a_comparison(heard: Heard, watcher: Watcher) -> None:
    files = Listed(a=1)
    watcher.add("main", files)
    files.unlisted = ("/w/locked",)
    wait_until(lambda: heard.uncertain == ["main"])
    files.unlisted = ()
    wait_until(lambda: heard.uncertain == ["main"] * 2)
    assert heard.paths() == []


def test_change_times_that_are_those_of_each_look_are_no_news(heard: Heard, watcher: Watcher) -> None:
    class Restless(Listed):
        def scan(self, *, but: KnownFiles | None = None, **_: object) -> Scan:
            self.now = {key: replace(stat, ctime_ns=self.rounds) for key, stat in self.now.items()}
            return super().scan(but=but)

    files = Restless(a=1)
    watcher.add("main", files)
    for _ in range(3):
        files.let_a_round_pass()
    assert heard.paths() == []
    files.now = Listed(a=2).now
    wait_until(lambda: heard.paths() == ["a.md"])


def test_a_look_that_fails_asks_for_a_comparison_and_is_tried_again(heard: Heard, watcher: Watcher) -> None:
    class Failing(Listed):
        error: Exception | None = None

        def scan(self, *, but: KnownFiles | None = None, **_: object) -> Scan:
            if self.error is not None:
                raise self.error
            return super().scan(but=but)

    files = Failing(a=1)
    watcher.add("main", files)
    files.error = OSError("the disk is gone")
    wait_until(lambda: "main" in heard.uncertain)
    files.error = None
    files.now = Listed(a=2).now
    wait_until(lambda: heard.paths() == ["a.md"])
    assert watcher.state("main").mode is WatchMode.POLLING


def mounts(folder: Path, where: Path, kind: str) -> Path:
    file = folder / "mounts"
    escaped = str(where).replace(" ", "\\040")
    file.write_text(f"/dev/sda1 / ext4 rw,relatime 0 0\nserver:/export {escaped} {kind} rw,relatime 0 0\n")
    return file


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_folder_on_a_network_file_system_is_found_by_its_mount(tmp_path: Path, kind: str) -> None:
    shared = tmp_path / "a share"
    (shared / "notes").mkdir(parents=True)
    linked = tmp_path / "linked"
    linked.symlink_to(shared / "notes")
    file = mounts(tmp_path, shared, kind)
    assert blind_folder([tmp_path, shared / "notes"], mounts=file) == (shared / "notes", kind)
    assert blind_folder([linked], mounts=file) == (linked, kind)
    assert blind_folder([tmp_path], mounts=file) is None


def test_local_folders_and_a_system_that_does_not_tell_are_none(tmp_path: Path) -> None:
    assert blind_folder([tmp_path], mounts=mounts(tmp_path, tmp_path, "xfs")) is None
    assert blind_folder([tmp_path], mounts=tmp_path / "missing") is None


def test_an_agent_on_a_network_mount_is_polled_without_a_condition_until_the_disk_is_local(
    tmp_path: Path, home: Path, workspace: Path, heard: Heard
) -> None:
    conditions = RecordingConditions()
    table = mounts(tmp_path, workspace, "nfs4")
    watcher = Watcher(heard, poll_interval_seconds=0.02, mounts=table)
    try:
        watcher.add("main", AgentFiles(AgentSettings(id="main", workspace=workspace)))
        state = watcher.state("main")
        assert (state.mode, state.wanted) == (WatchMode.POLLING, True)
        assert "lies on nfs4" in str(state.reason)
        (workspace / "memory" / "from elsewhere.md").write_text("written by another machine\n")
        wait_until(lambda: "memory/from elsewhere.md" in heard.paths())
        report = FilesReport(home, ["main"], conditions)
        report.compared("main", ())
        report.watched("main", state)
        report.publish(now=0.0)
        assert conditions.open == {}
        table.write_text("")
        watcher.refresh("main")
        assert watcher.state("main").mode is WatchMode.EVENTS
    finally:
        watcher.close()
