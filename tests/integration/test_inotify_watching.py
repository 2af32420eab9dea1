"""The real inotify, on real folders."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memory.documents.agent_files import AgentFiles
from producers.report import WatchMode
from producers.watcher import Watcher
from schemas.documents import DocumentKey
from schemas.settings import AgentSettings
from tests.recording import Heard
from tests.waiting import wait_until

if sys.platform != "linux":
    pytest.skip("inotify is Linux's", allow_module_level=True)

import ctypes

from watchdog.observers import inotify_c


class Desk:
    """A workspace that is watched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = root / "workspace"
        self.memory = self.workspace / "memory"
        self.heard = Heard()
        self.marks = itertools.count()
        self.watcher = Watcher(self.heard, poll_interval_seconds=0.02)

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
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.memory.mkdir(parents=True)
    yield desk
    desk.watcher.close()


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


def test_a_folder_moved_in_is_heard_with_all_that_is_in_it_and_watched_from_then_on(desk: Desk) -> None:
    desk.watch()
    write(desk.root / "elsewhere" / "a.md")
    write(desk.root / "elsewhere" / "deep" / "b.md")
    (desk.root / "elsewhere").rename(desk.memory / "project")
    assert desk.settle() == {"memory/project/a.md", "memory/project/deep/b.md"}
    write(desk.memory / "project/deep/c.md")
    assert desk.settle() == {"memory/project/deep/c.md"}


def test_a_folder_moved_out_asks_for_a_comparison_and_is_watched_no_longer(desk: Desk) -> None:
    write(desk.memory / "project/a.md")
    write(desk.memory / "project/deep/b.md")
    desk.watch()
    (desk.memory / "project").rename(desk.root / "elsewhere")
    wait_until(lambda: "main" in desk.heard.uncertain)
    write(desk.root / "elsewhere/deep/b.md", "more")
    assert desk.settle() == set()
    assert desk.directories() == [".", "memory"]


def test_a_folder_renamed_within_is_heard_and_watched_under_its_new_name(desk: Desk) -> None:
    write(desk.memory / "old/deep/a.md")
    desk.watch()
    (desk.memory / "old").rename(desk.memory / "new")
    desk.wait_for("memory/new/deep/a.md")
    wait_until(lambda: "main" in desk.heard.uncertain)
    desk.settle()
    write(desk.memory / "new/deep/a.md", "more")
    assert desk.settle() == {"memory/new/deep/a.md"}
    assert desk.directories() == [".", "memory", "memory/new", "memory/new/deep"]


def test_the_memory_folder_may_be_deleted_and_made_anew_again_and_again(desk: Desk) -> None:
    desk.watch()
    for name in ("a", "b", "c"):
        write(desk.memory / f"deep/{name}.md")
        desk.wait_for(f"memory/deep/{name}.md")
        shutil.rmtree(desk.memory)
        write(desk.memory / f"deep/{name}{name}.md")
        desk.wait_for(f"memory/deep/{name}{name}.md")
    wait_until(lambda: desk.directories() == [".", "memory", "memory/deep"])


def test_a_workspace_created_after_the_start_is_watched(desk: Desk) -> None:
    workspace = desk.root / "not/yet/there"
    desk.watch(workspace=workspace)
    write(workspace / "memory/a.md")
    desk.wait_for("memory/a.md")
    wait_until(lambda: "main" in desk.heard.uncertain)
    desk.heard.changes.clear()
    write(workspace / "memory/b.md")
    desk.wait_for("memory/b.md")


def test_a_workspace_moved_away_and_replaced_is_followed_by_name(desk: Desk) -> None:
    write(desk.memory / "old.md")
    desk.watch()
    desk.workspace.rename(desk.root / "aside")
    write(desk.workspace / "memory/new.md")
    desk.wait_for("memory/new.md")
    wait_until(lambda: "main" in desk.heard.uncertain)
    desk.settle()
    wait_until(lambda: not any("aside" in path for path in desk.directories()))
    write(desk.root / "aside/memory/old.md", "more")
    write(desk.workspace / "memory/new.md", "more")
    assert desk.settle() == {"memory/new.md"}


def test_a_workspace_that_went_away_asks_for_a_comparison_and_calls_nothing_deleted(desk: Desk) -> None:
    """It may be the disk that went away."""
    write(desk.memory / "deep/kept.md")
    desk.watch()
    desk.workspace.rename(desk.root / "aside")
    wait_until(lambda: "main" in desk.heard.uncertain)
    assert desk.paths() == set()
    (desk.root / "aside").rename(desk.workspace)
    desk.wait_for("memory/deep/kept.md")


def test_a_replaced_folder_above_the_workspace_is_noticed_by_the_next_refresh(desk: Desk) -> None:
    workspace = desk.root / "above/workspace"
    write(workspace / "memory/old.md")
    desk.watch(workspace=workspace)
    (desk.root / "above").rename(desk.root / "aside")
    new = write(workspace / "memory/new.md")
    desk.watcher.refresh("main")
    desk.heard.changes.clear()
    write(new, "more")
    desk.wait_for("memory/new.md")
    assert not any("aside" in path for path in desk.watcher.folders())
    write(desk.root / "aside/workspace/memory/old.md", "more")
    write(new, "even more")
    assert not any(path.endswith("old.md") for _, path in desk.heard.changes)


def test_ignored_folders_get_no_watch(desk: Desk) -> None:
    for name in ("node_modules/pkg/docs", ".git/objects", ".venv/lib"):
        write(desk.memory / name / "readme.md")
    write(desk.memory / "kept/a.md")
    desk.watch()
    assert desk.directories() == [".", "memory", "memory/kept"]
    (desk.memory / "later").mkdir()
    wait_until(lambda: "memory/later" in desk.directories())
    write(desk.memory / "later/node_modules/pkg/readme.md")
    assert desk.settle() == set()
    assert desk.directories() == [".", "memory", "memory/kept", "memory/later"]


def test_a_symlinked_folder_is_not_followed(desk: Desk) -> None:
    target = desk.root / "elsewhere"
    write(target / "secret.md")
    (desk.memory / "early").symlink_to(target)
    desk.watch()
    (desk.memory / "late").symlink_to(target)
    desk.settle()
    write(target / "secret.md", "more")
    assert desk.settle() == set()
    assert desk.directories() == [".", "memory"]


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


def test_folders_moved_about_wildly_are_watched_where_they_end(desk: Desk) -> None:
    write(desk.memory / "a/x.md")
    write(desk.memory / "b/y.md")
    desk.watch()
    for _ in range(20):
        (desk.memory / "a").rename(desk.memory / "t")
        (desk.memory / "b").rename(desk.memory / "a")
        (desk.memory / "t").rename(desk.memory / "b")
    wait_until(lambda: desk.directories() == [".", "memory", "memory/a", "memory/b"])
    desk.settle()
    write(desk.memory / "a/1.md")
    write(desk.memory / "b/2.md")
    assert desk.settle() == {"memory/a/1.md", "memory/b/2.md"}


def test_one_folder_under_two_names_is_heard_under_both(desk: Desk) -> None:
    alias = desk.root / "alias"
    alias.symlink_to(desk.root)
    write(desk.root / "shared/a.md")
    desk.watch(str(desk.root / "shared"), agent="main")
    desk.watch(str(alias / "shared"), agent="other", workspace=desk.root / "other-workspace")
    write(desk.root / "shared/a.md", "more")
    wait_until(lambda: {agent for agent, _ in desk.heard.changes} == {"main", "other"})


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


def test_closing_ends_the_thread_and_frees_the_descriptors(desk: Desk) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    threads = threading.active_count()
    watcher = Watcher(desk.heard)
    watcher.add("main", AgentFiles(AgentSettings(id="main", workspace=desk.workspace)))
    write(desk.memory / "a.md")
    desk.wait_for("memory/a.md")
    watcher.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert threading.active_count() == threads


class Held:
    """A listener whose first change holds the watcher's thread."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.overflows = 0

    def on_change(self, agent: str, key: DocumentKey) -> None:
        self.reached.set()
        assert self.go_on.wait(60)

    def on_uncertain(self, agent: str, *, lost: bool = False) -> None:
        self.overflows += lost


def test_an_overflow_of_the_kernels_queue_is_told_and_a_refresh_watches_what_was_missed(desk: Desk) -> None:
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
    real = inotify_c.inotify_add_watch
    calls = iter(range(1_000_000))

    def call(*arguments: object) -> int:
        if next(calls) < after:
            return real(*arguments)  # type: ignore[arg-type]
        ctypes.set_errno(code)
        return -1

    return call


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_without_watches_left_an_agent_is_polled_and_the_others_are_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, granted: int
) -> None:
    other = desk.root / "other-workspace"
    write(other / "memory/a.md")
    write(desk.memory / "deep/a.md")
    desk.watch(agent="other", workspace=other)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(inotify_c, "inotify_add_watch", refuse(errno.ENOSPC, after=granted))
        desk.watch()
    state = desk.watcher.state("main")
    assert state.mode is WatchMode.POLLING
    assert state.reason is not None
    assert "max_user_watches=" in state.reason
    assert desk.watcher.state("other").mode is WatchMode.EVENTS
    assert not [path for path in desk.watcher.folders() if path.startswith(str(desk.workspace))]
    write(desk.memory / "deep/b.md")
    desk.wait_for("memory/deep/b.md")


def test_watches_that_run_out_later_are_noticed_and_nothing_falls_between(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.watch()
    assert desk.watcher.state("main").mode is WatchMode.EVENTS
    monkeypatch.setattr(inotify_c, "inotify_add_watch", refuse(errno.ENOSPC))
    write(desk.memory / "new-folder/a.md")
    wait_until(lambda: desk.watcher.state("main").mode is WatchMode.POLLING)
    wait_until(lambda: desk.heard.uncertain == ["main"])
    write(desk.memory / "new-folder/b.md")
    desk.wait_for("memory/new-folder/b.md")


def test_a_polled_agent_goes_back_to_events_once_the_limit_is_raised(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as exhausted:
        exhausted.setattr(inotify_c, "inotify_init", refuse(errno.EMFILE))
        desk.watch()
    assert "max_user_instances=" in (desk.watcher.state("main").reason or "")
    assert desk.watcher.state("main").mode is WatchMode.POLLING
    desk.watcher.refresh("main")
    assert desk.watcher.state("main").mode is WatchMode.EVENTS
    assert desk.watcher.state("main").reason is None
    write(desk.memory / "a.md")
    desk.wait_for("memory/a.md")


def test_other_permissions_and_times_of_a_document_are_heard(desk: Desk) -> None:
    notes = [write(desk.memory / name) for name in ("locked.md", "timed.md", "linked.md", "read.md")]
    desk.watch()
    notes[0].chmod(0)
    os.utime(notes[1], ns=(1, 1))
    os.link(notes[2], desk.root / "link.md")
    notes[3].read_bytes()
    assert {"memory/locked.md", "memory/timed.md"} <= desk.settle()
    notes[0].chmod(0o644)
    assert "memory/locked.md" in desk.settle()
    notes[3].read_bytes()
    assert desk.settle() == set()


def test_a_mistake_while_watching_ends_in_polling_and_not_in_silence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = desk.watch()

    def broken(**_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as mistaken:
        mistaken.setattr(files, "scan", broken)
        (desk.memory / "trigger").mkdir()
        wait_until(lambda: desk.watcher.state("main").mode is WatchMode.POLLING)
    assert "ZeroDivisionError" in (desk.watcher.state("main").reason or "")
    wait_until(lambda: "main" in desk.heard.uncertain)
    desk.watcher.refresh("main")
    assert desk.watcher.state("main").mode is WatchMode.EVENTS
    write(desk.memory / "trigger/a.md")
    desk.wait_for("memory/trigger/a.md")


def test_a_watcher_that_settled_has_reported_all_that_was_written_before(desk: Desk) -> None:
    desk.watch()
    for number in range(20):
        written = [f"memory/{number}/{name}.md" for name in range(20)]
        for path in written:
            write(desk.workspace / path)
        assert desk.watcher.settle("main")
        assert {("main", path) for path in written} <= set(desk.heard.changes)


def test_what_is_known_of_the_user_and_of_people_who_come_later_is_heard(desk: Desk) -> None:
    desk.watch()
    write(desk.workspace / "USER.md")
    desk.wait_for("USER.md")
    write(desk.workspace / "users" / "ada" / "USER.md")
    desk.wait_for("users/ada/USER.md")
    desk.settle()
    write(desk.workspace / "users" / "ada" / "notes.md")
    write(desk.workspace / "users" / "bob" / "USER.md")
    desk.wait_for("users/bob/USER.md")
    desk.settle()
    (desk.workspace / "users" / "ada" / "USER.md").unlink()
    desk.wait_for("users/ada/USER.md")
    assert desk.settle() == {"users/ada/USER.md"}
