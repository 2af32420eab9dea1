"""The watcher of other systems, here over whatever watchdog offers on this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from producers.observer import ObserverSource
from producers.report import WatchMode
from producers.watcher import Watcher
from schemas.settings import AgentSettings
from tests.recording import Heard
from tests.waiting import wait_until


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watcher(heard: Heard) -> Iterator[Watcher]:
    watcher = Watcher(heard, source=ObserverSource)
    yield watcher
    watcher.close()


def agent_files(workspace: Path, agent: str = "main") -> AgentFiles:
    (workspace / "memory").mkdir(parents=True, exist_ok=True)
    return AgentFiles(AgentSettings(id=agent, workspace=workspace))


def test_writes_renames_and_deletions_are_heard(tmp_path: Path, heard: Heard, watcher: Watcher) -> None:
    watcher.add("main", agent_files(tmp_path))
    note, other = tmp_path / "memory/a.md", tmp_path / "memory/b.md"
    note.write_text("text")
    wait_until(lambda: ("main", "memory/a.md") in heard.changes)
    heard.changes.clear()
    note.rename(other)
    wait_until(lambda: {("main", "memory/a.md"), ("main", "memory/b.md")} <= {*heard.changes})
    heard.changes.clear()
    other.unlink()
    wait_until(lambda: ("main", "memory/b.md") in heard.changes)
    assert watcher.state("main").mode is WatchMode.EVENTS


def test_a_folder_moved_in_or_out_is_heard(tmp_path: Path, heard: Heard, watcher: Watcher) -> None:
    watcher.add("main", agent_files(tmp_path))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/a.md").write_text("text")
    (tmp_path / "project").rename(tmp_path / "memory/project")
    wait_until(lambda: ("main", "memory/project/a.md") in heard.changes)
    heard.changes.clear()
    (tmp_path / "memory/project").rename(tmp_path / "aside")
    wait_until(lambda: ("main", "memory/project/a.md") in heard.changes or "main" in heard.uncertain)


def test_watches_follow_a_link_that_leads_to_another_folder(tmp_path: Path, heard: Heard, watcher: Watcher) -> None:
    for name in ("first", "second"):
        agent_files(tmp_path / name)
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "first")
    watcher.add("main", AgentFiles(AgentSettings(id="main", workspace=link)))
    (tmp_path / "new").symlink_to(tmp_path / "second")
    (tmp_path / "new").rename(link)
    assert list(watcher.follow_moved()) == [("main", link)]
    (link / "memory/a.md").write_text("text")
    wait_until(lambda: ("main", "memory/a.md") in heard.changes)
