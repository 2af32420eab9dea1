"""Agents whose files the system does not report are looked at every few seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from producers.report import FilesReport, WatchMode
from producers.watcher import Watcher, blind_folder
from schemas.settings import AgentSettings
from tests.recording import Heard, RecordingConditions
from tests.waiting import wait_until


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


def test_an_agent_on_a_network_mount_is_polled_until_the_disk_is_local(
    tmp_path: Path, home: Path, workspace: Path
) -> None:
    conditions, heard = RecordingConditions(), Heard()
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
