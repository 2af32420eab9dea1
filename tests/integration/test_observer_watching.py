"""The watcher of other systems, here over whatever watchdog offers on this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from producers.watching.observer_watcher import ObserverWatcher
from producers.watching.watcher import WatchLimitReached, WatchMode
from schemas.settings import AgentSettings
from tests.waiting import wait_until


class Heard:
    def __init__(self) -> None:
        self.changes: set[tuple[str, str]] = set()
        self.uncertain: list[str] = []

    def on_change(self, agent: str, path: str) -> None:
        self.changes.add((agent, path))

    def on_overflow(self) -> None:
        raise AssertionError("this watcher cannot tell")

    def on_uncertain(self, agent: str) -> None:
        self.uncertain.append(agent)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watcher(heard: Heard) -> Iterator[ObserverWatcher]:
    watcher = ObserverWatcher(heard)
    yield watcher
    watcher.close()


def agent_files(workspace: Path, agent: str = "main") -> AgentFiles:
    (workspace / "memory").mkdir(parents=True, exist_ok=True)
    return AgentFiles(AgentSettings(id=agent, workspace=workspace))


def test_writes_renames_and_deletions_are_heard(tmp_path: Path, heard: Heard, watcher: ObserverWatcher) -> None:
    watcher.add_root("main", agent_files(tmp_path))
    note, other = tmp_path / "memory/a.md", tmp_path / "memory/b.md"
    note.write_text("text")
    wait_until(lambda: ("main", str(note)) in heard.changes)
    heard.changes.clear()
    note.rename(other)
    wait_until(lambda: {("main", str(note)), ("main", str(other))} <= heard.changes)
    heard.changes.clear()
    other.unlink()
    wait_until(lambda: ("main", str(other)) in heard.changes)
    assert watcher.state("main").mode is WatchMode.EVENTS


def test_whatever_happens_to_a_folder_asks_for_a_comparison(
    tmp_path: Path, heard: Heard, watcher: ObserverWatcher
) -> None:
    watcher.add_root("main", agent_files(tmp_path))
    (tmp_path / "memory/project").mkdir()
    wait_until(lambda: "main" in heard.uncertain)


def test_reading_causes_no_event(tmp_path: Path, heard: Heard, watcher: ObserverWatcher) -> None:
    files = agent_files(tmp_path)
    (tmp_path / "memory/read.md").write_text("text")
    watcher.add_root("main", files)
    (tmp_path / "memory/read.md").read_text()
    (tmp_path / "memory/written.md").write_text("text")
    wait_until(lambda: ("main", str(tmp_path / "memory/written.md")) in heard.changes)
    assert ("main", str(tmp_path / "memory/read.md")) not in heard.changes


def test_a_memory_folder_that_comes_later_is_watched_after_the_refresh(
    tmp_path: Path, heard: Heard, watcher: ObserverWatcher
) -> None:
    files = agent_files(tmp_path)
    (tmp_path / "memory").rmdir()
    watcher.add_root("main", files)
    (tmp_path / "memory").mkdir()
    wait_until(lambda: "main" in heard.uncertain)
    watcher.refresh("main")
    (tmp_path / "memory/a.md").write_text("text")
    wait_until(lambda: ("main", str(tmp_path / "memory/a.md")) in heard.changes)


def test_an_agent_that_left_hears_nothing_and_the_other_still_does(
    tmp_path: Path, heard: Heard, watcher: ObserverWatcher
) -> None:
    watcher.add_root("main", agent_files(tmp_path))
    watcher.add_root("other", agent_files(tmp_path, "other"))
    watcher.remove_root("main")
    assert watcher.state("main").mode is WatchMode.OFF
    (tmp_path / "memory/a.md").write_text("text")
    wait_until(lambda: ("other", str(tmp_path / "memory/a.md")) in heard.changes)
    assert ("main", str(tmp_path / "memory/a.md")) not in heard.changes


def test_folders_nested_too_deeply_for_the_library_are_a_limit_and_no_crash(
    tmp_path: Path, watcher: ObserverWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schedule(*_arguments: object, **_options: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(watcher._observer, "schedule", schedule)
    with pytest.raises(WatchLimitReached, match="cannot be watched"):
        watcher.add_root("main", agent_files(tmp_path))
    assert watcher.state("main").mode is WatchMode.OFF
