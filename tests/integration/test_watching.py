"""Watching of real folders: by inotify, by the observer of other systems, and by polling."""

from __future__ import annotations

import ctypes
import errno
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory.documents.agent_files import AgentFiles
from producers.observer import ObserverSource
from producers.report import FilesReport, WatchMode
from producers.watcher import Watcher, blind_folder
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings
from tests.openclaw_database import OpenClawDatabase
from tests.opencode_database import OpenCodeDatabase
from tests.recording import Heard, RecordingConditions
from tests.waiting import wait_until

#: Where watchdog calls inotify.
INOTIFY = "watchdog.observers.inotify_c"

linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


class Desk:
    """A workspace that is watched."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        self.workspace = root / "workspace"
        self.memory = self.workspace / "memory"
        self.heard = Heard()
        self.marks = itertools.count()
        self.watcher = Watcher(self.heard, poll_interval_seconds=0.02, **options)

    def watch(self, *extra_paths: str, agent: str = "main", workspace: Path | None = None) -> AgentFiles:
        files = AgentFiles(
            AgentSettings(id=agent, workspace=workspace or self.workspace, extra_paths=tuple(extra_paths))
        )
        self.watcher.add(agent, files)
        return files

    def directories(self) -> list[str]:
        return sorted(os.path.relpath(path, self.workspace) for path in self.watcher.folders())

    def paths(self, agent: str = "main") -> set[str]:
        heard = {path for owner, path in self.heard.changes if owner == agent}
        return {path for path in heard if "settled-" not in path}

    def wait_for(self, *paths: str, agent: str = "main") -> None:
        wait_until(lambda: set(paths) <= self.paths(agent), what=f"{paths} in {self.paths(agent)}")

    def settle(self) -> set[str]:
        """Let everything that happened until now be heard, and return what was: the kernel keeps the order."""
        mark = f"memory/settled-{next(self.marks)}.md"
        (self.workspace / mark).touch()
        wait_until(lambda: ("main", mark) in self.heard.changes)
        self.watcher.settle("main")  # looks at the folders of the same moment come after its documents
        heard = self.paths()
        self.heard.changes.clear()
        return heard


@pytest.fixture
def options() -> dict[str, Any]:
    """Options of the watcher."""
    return {}


@pytest.fixture
def desk(tmp_path: Path, options: dict[str, Any]) -> Iterator[Desk]:
    desk = Desk(tmp_path, **options)
    desk.memory.mkdir(parents=True)
    yield desk
    desk.watcher.close()


by_each_source = pytest.mark.parametrize("options", [{}, {"source": ObserverSource}], ids=["inotify", "observer"])


def write(path: Path, text: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def save_as_vim_does(path: Path) -> None:
    write(path.with_name("4913")).unlink()
    path.rename(path.with_name("a.md~"))
    write(path, "new")
    path.with_name("a.md~").unlink()


#: What is done with the note memory/a.md or beside it, and the notes whose changes are heard.
CHANGES: list[tuple[Callable[[Path], object], set[str]]] = [
    (lambda note: write(note.with_name("b.md")), {"b.md"}),
    (append, {"a.md"}),
    (Path.unlink, {"a.md"}),
    (save_as_vim_does, {"a.md"}),
    (lambda note: write(note.with_name(".a.md.tmp"), "new").rename(note), {"a.md"}),
    (lambda note: note.rename(note.with_name("b.md")), {"a.md", "b.md"}),
    (lambda note: write(note.parents[2] / "outside.md").rename(note.with_name("c.md")), {"c.md"}),
    (lambda note: note.rename(note.parents[2] / "outside.md"), {"a.md"}),
]


@by_each_source
@pytest.mark.parametrize(
    ("change", "heard"),
    CHANGES,
    ids=["written", "appended to", "deleted", "saved by vim", "saved atomically", "renamed", "moved in", "moved out"],
)
def test_a_change_of_a_note_is_heard(desk: Desk, change: Callable[[Path], object], heard: set[str]) -> None:
    note = write(desk.memory / "a.md")
    desk.watch()
    change(note)
    assert desk.settle() == {f"memory/{name}" for name in heard}


@by_each_source
def test_a_folder_moved_in_is_heard_with_all_that_is_in_it_and_watched_from_then_on(desk: Desk) -> None:
    desk.watch()
    write(desk.root / "elsewhere" / "a.md")
    write(desk.root / "elsewhere" / "deep" / "b.md")
    (desk.root / "elsewhere").rename(desk.memory / "project")
    assert desk.settle() == {"memory/project/a.md", "memory/project/deep/b.md"}
    write(desk.memory / "project/deep/c.md")
    assert desk.settle() == {"memory/project/deep/c.md"}


@by_each_source
def test_a_folder_moved_out_asks_for_a_comparison_and_is_watched_no_longer(desk: Desk, options: dict[str, Any]) -> None:
    write(desk.memory / "project/a.md")
    write(desk.memory / "project/deep/b.md")
    desk.watch()
    (desk.memory / "project").rename(desk.root / "elsewhere")
    wait_until(lambda: "main" in desk.heard.uncertain)
    if not options and sys.platform == "linux":
        write(desk.root / "elsewhere/deep/b.md", "more")
        assert desk.settle() == set()
        assert desk.directories() == [".", "memory"]


def test_a_workspace_created_after_the_start_is_watched(desk: Desk) -> None:
    workspace = desk.root / "not/yet/there"
    desk.watch(workspace=workspace)
    write(workspace / "memory/a.md")
    desk.wait_for("memory/a.md")
    wait_until(lambda: "main" in desk.heard.uncertain)
    desk.heard.changes.clear()
    write(workspace / "memory/b.md")
    desk.wait_for("memory/b.md")


def test_a_workspace_that_went_away_asks_for_a_comparison_and_calls_nothing_deleted(desk: Desk) -> None:
    """It may be the disk that went away."""
    write(desk.memory / "deep/kept.md")
    desk.watch()
    desk.workspace.rename(desk.root / "aside")
    wait_until(lambda: "main" in desk.heard.uncertain)
    assert desk.paths() == set()
    (desk.root / "aside").rename(desk.workspace)
    desk.wait_for("memory/deep/kept.md")


def swap_the_link(desk: Desk) -> None:
    link = desk.root / "current.new"
    link.symlink_to(desk.root / "release")
    link.rename(desk.root / "current")


def swap_a_folder_above(desk: Desk) -> None:
    (desk.root / "above").rename(desk.root / "before")
    (desk.root / "restored").rename(desk.root / "above")


@by_each_source
@pytest.mark.parametrize("swap", [swap_the_link, swap_a_folder_above])
def test_watches_follow_a_path_that_leads_to_another_folder(desk: Desk, swap: Callable[[Desk], None]) -> None:
    (desk.root / "current").symlink_to(desk.workspace)
    for folder in ("release", "above/ws", "restored/ws"):
        write(desk.root / folder / "memory" / "deep" / "a.md")
    workspace = desk.root / ("current" if swap is swap_the_link else "above/ws")
    desk.watch(workspace=workspace)
    assert list(desk.watcher.follow_moved()) == []
    swap(desk)
    assert [agent for agent, _ in desk.watcher.follow_moved()] == ["main"]
    assert list(desk.watcher.follow_moved()) == []
    desk.heard.changes.clear()
    write(workspace / "memory/deep/new.md")
    desk.wait_for("memory/deep/new.md")


def test_extra_folders_and_files_are_heard_present_and_to_come(desk: Desk) -> None:
    write(desk.workspace / "notes/deep/a.md")
    desk.watch("notes", "single.md", "later")
    write(desk.workspace / "notes/deep/b.md")
    write(desk.workspace / "single.md")
    write(desk.workspace / "later/c.md")
    desk.wait_for("notes/deep/b.md", "single.md", "later/c.md")


def test_no_file_is_missed_in_folders_that_are_made_and_filled_at_once(desk: Desk) -> None:
    desk.watch()
    expected = set()
    for number in range(60):
        path = f"memory/{number % 7}/{number % 5}/{number}/note.md"
        write(desk.workspace / path)
        expected.add(path)
    desk.wait_for(*expected)


@linux
def test_three_hundred_workspaces_take_one_thread(desk: Desk) -> None:
    before = threading.active_count()
    for number in range(300):
        workspace = desk.root / f"agents/{number}"
        (workspace / "memory").mkdir(parents=True)
        desk.watch(agent=f"agent{number}", workspace=workspace)
    assert threading.active_count() == before + 1
    write(desk.root / "agents/299/memory/a.md")
    wait_until(lambda: [agent for agent, _ in desk.heard.changes if agent == "agent299"])
    assert {agent for agent, _ in desk.heard.changes} == {"agent299"}


class Held:
    """A listener whose first change holds the watcher's thread."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.overflows = 0

    def on_change(self, agent: str, key: DocumentKey) -> None:
        self.reached.set()
        assert self.go_on.wait(60)

    def on_uncertain(self, agent: str, *, events_lost: bool = False) -> None:
        self.overflows += events_lost


@linux
def test_an_overflow_of_the_kernels_queue_is_told_and_a_refresh_watches_the_rest(desk: Desk) -> None:
    held = Held()
    desk.watcher.close()
    desk.watcher = Watcher(held)
    desk.watch()
    write(desk.memory / "first.md")
    assert held.reached.wait(60)  # the thread stands still and the kernel's queue fills up
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with (desk.memory / "a.md").open("w", buffering=1) as one, (desk.memory / "b.md").open("w", buffering=1) as two:
        # Two files in turn, since the kernel joins equal events that follow each other.
        for _ in range(limit // 2 + 3000):
            one.write("\n")
            two.write("\n")
    write(desk.memory / "unheard/deep/a.md")
    assert desk.directories() == [".", "memory"]
    held.go_on.set()
    wait_until(lambda: held.overflows == 1)
    desk.watcher.refresh("main")
    assert desk.directories() == [".", "memory", "memory/unheard", "memory/unheard/deep"]


def refuse(code: int, *, after: int = 0) -> Callable[..., int]:
    """A system call that fails from the `after`-th call on."""
    real = importlib.import_module(INOTIFY).inotify_add_watch
    calls = iter(range(1_000_000))

    def call(*arguments: object) -> int:
        if next(calls) < after:
            return int(real(*arguments))
        ctypes.set_errno(code)
        return -1

    return call


@linux
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_without_watches_left_an_agent_is_polled_and_the_others_are_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, granted: int
) -> None:
    other = desk.root / "other-workspace"
    write(other / "memory/a.md")
    write(desk.memory / "deep/a.md")
    desk.watch(agent="other", workspace=other)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(f"{INOTIFY}.inotify_add_watch", refuse(errno.ENOSPC, after=granted))
        desk.watch()
    state = desk.watcher.state("main")
    assert state.mode is WatchMode.POLLING
    assert state.reason is not None
    assert "max_user_watches=" in state.reason
    assert desk.watcher.state("other").mode is WatchMode.EVENTS
    assert not [path for path in desk.watcher.folders() if path.startswith(str(desk.workspace))]
    write(desk.memory / "deep/b.md")
    desk.wait_for("memory/deep/b.md")


@linux
def test_a_polled_agent_goes_back_to_events_once_the_limit_is_raised(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as exhausted:
        exhausted.setattr(f"{INOTIFY}.inotify_init", refuse(errno.EMFILE))
        desk.watch()
    assert "max_user_instances=" in (desk.watcher.state("main").reason or "")
    assert desk.watcher.state("main").mode is WatchMode.POLLING
    desk.watcher.refresh("main")
    assert desk.watcher.state("main").mode is WatchMode.EVENTS
    assert desk.watcher.state("main").reason is None
    write(desk.memory / "a.md")
    desk.wait_for("memory/a.md")


# Folders whose changes the system does not report


def mounts(folder: Path, where: Path, kind: str) -> Path:
    """A table of mounts with a file system of that kind."""
    file = folder / "mounts"
    escaped = str(where).replace(" ", "\\040")
    file.write_text(f"/dev/sda1 / ext4 rw,relatime 0 0\nserver:/export {escaped} {kind} rw,relatime 0 0\n")
    return file


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_a_folder_on_a_network_file_system_is_found_by_its_mount(tmp_path: Path, kind: str) -> None:
    shared, linked = tmp_path / "a share", tmp_path / "linked"
    (shared / "notes").mkdir(parents=True)
    linked.symlink_to(shared / "notes")
    table = mounts(tmp_path, shared, kind)
    assert blind_folder([tmp_path, shared / "notes"], mounts=table) == (shared / "notes", kind)
    assert blind_folder([linked], mounts=table) == (linked, kind)
    assert blind_folder([tmp_path], mounts=table) is None


def test_an_agent_on_a_network_mount_is_polled_until_the_disk_is_local(tmp_path: Path) -> None:
    table = mounts(tmp_path, tmp_path / "workspace", "nfs4")
    desk, conditions = Desk(tmp_path, mounts=table), RecordingConditions()
    desk.memory.mkdir(parents=True)
    desk.watch()
    state = desk.watcher.state("main")
    assert (state.mode, state.is_required) == (WatchMode.POLLING, True)
    write(desk.memory / "from elsewhere.md")
    desk.wait_for("memory/from elsewhere.md")
    report = FilesReport(tmp_path / "home", ["main"], conditions)
    report.compared("main", ())
    report.watched("main", state)
    report.publish(now=0.0)
    assert conditions.open == {}, "polling is what this folder needs"
    table.write_text("")
    desk.watcher.refresh("main")
    assert desk.watcher.state("main").mode is WatchMode.EVENTS
    desk.watcher.close()


@pytest.mark.long
@by_each_source
def test_a_write_to_openclaws_database_reports_the_sessions_that_it_changed(desk: Desk) -> None:
    openclaw = desk.root / "agents" / "main"
    files = AgentFiles(
        AgentSettings(id="main", workspace=desk.workspace, sessions=(str(openclaw / "sessions"),)),
    )
    desk.watcher.add("main", files)
    # Neither the folder nor the database was there.
    database = OpenClawDatabase(openclaw)
    database.add("a", [b"{}"])
    database.add("b", [b"{}"])
    desk.wait_for("sessions/a.jsonl", "sessions/b.jsonl")
    desk.settle()
    database.append("b", [b"{}"])
    desk.wait_for("sessions/b.jsonl")
    assert desk.settle() == {"sessions/b.jsonl"}
    # What the program writes beside the sessions is none of their changes.
    database.connection.execute("UPDATE auth_profile_store SET store_json = 'other'")
    assert desk.settle() == set()
    database.close()


@pytest.mark.long
@by_each_source
def test_a_write_to_opencodes_database_reports_the_sessions_that_it_changed(desk: Desk) -> None:
    folder = desk.root / "opencode"
    folder.mkdir()
    desk.watcher.add("main", AgentFiles(AgentSettings(id="main", workspace=desk.workspace, sessions=(str(folder),))))
    # The database was not there.
    with closing(OpenCodeDatabase(folder)) as database:
        for session in ("a", "b"):
            database.add(session)
            database.say(session, "user", "question")
        desk.wait_for("sessions/a.jsonl", "sessions/b.jsonl")
        desk.settle()
        answer = database.say("b", "assistant", is_completed=False)
        desk.wait_for("sessions/b.jsonl")
        desk.settle()
        database.complete(answer)
        desk.wait_for("sessions/b.jsonl")
        assert desk.settle() == {"sessions/b.jsonl"}


def test_a_database_that_cannot_be_read_asks_for_a_comparison(desk: Desk) -> None:
    database = OpenClawDatabase(desk.root / "agents" / "main")
    sessions = str(database.agent / "sessions")
    desk.watcher.add("main", AgentFiles(AgentSettings(id="main", workspace=desk.workspace, sessions=(sessions,))))
    database.connection.execute("ALTER TABLE session_windows RENAME TO windows")
    wait_until(lambda: "main" in desk.heard.uncertain)
    database.close()
