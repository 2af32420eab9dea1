"""Folders of which the system does not tell everything are polled from the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from producers.watching import fallback_watcher as falling_back
from producers.watching.fallback_watcher import blind_folder, open_watcher
from producers.watching.report import WatchReport
from producers.watching.watcher import WatchMode
from schemas.settings import AgentSettings
from tests.recording import RecordingConditions
from tests.waiting import wait_until


def mounts(folder: Path, where: Path, kind: str) -> Path:
    file = folder / "mountinfo"
    escaped = str(where).replace(" ", "\\040")
    file.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"40 22 0:40 / {escaped} rw,relatime shared:9 - {kind} server:/export rw\n"
    )
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


class Heard:
    def __init__(self) -> None:
        self.changes: list[str] = []

    def on_change(self, agent: str, path: str) -> None:
        self.changes.append(path)

    def on_overflow(self) -> None: ...

    def on_uncertain(self, agent: str) -> None: ...


def test_an_agent_there_is_polled_which_is_said_and_no_trouble(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(falling_back, "blind_folder", lambda folders: (next(iter(folders)), "nfs4"))
    heard, troubles = Heard(), RecordingConditions()
    watcher = open_watcher(heard, poll_interval_seconds=0.02)
    try:
        watcher.add_root("main", AgentFiles(AgentSettings(id="main", workspace=workspace)))
        state = watcher.state("main")
        assert (state.mode, state.wanted) == (WatchMode.POLLING, True)
        assert "lies on nfs4" in str(state.reason)
        note = workspace / "memory" / "from elsewhere.md"
        note.write_text("written by another machine\n")
        wait_until(lambda: str(note) in heard.changes)
        report = WatchReport(home, ["main"], troubles)
        report.watched("main", state)
        report.publish(now=0.0)
        assert troubles.open == {}
        # The disk is a local one now.
        monkeypatch.setattr(falling_back, "blind_folder", lambda folders: None)
        watcher.refresh("main")
        assert watcher.state("main").mode is WatchMode.EVENTS
    finally:
        watcher.close()
