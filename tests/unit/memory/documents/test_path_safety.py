"""No path from outside is opened unless it resolves, on the opened descriptor, under the agent's roots."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from memory.documents.agent_files import (
    AgentFiles,
    DocumentGone,
    DocumentRefused,
    DocumentUnreadable,
)
from memory.documents.content import MAX_DOCUMENT_BYTES
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import Transient
from schemas.settings import AgentSettings
from tests.recording import entered_folders

SECRET = "the launch code is 0000"


def key(path: str) -> DocumentKey:
    return DocumentKey("memory", path)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace beside a folder with a secret in it."""
    (tmp_path / "ws/memory/sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.md").write_text(SECRET)
    return tmp_path / "ws"


def _refused(files: AgentFiles, path: str) -> None:
    """Found by no scan, no stat, and refused by a read."""
    assert key(path) not in files.scan().documents
    assert files.stat(key(path)) is None
    with pytest.raises(DocumentRefused):
        files.read(key(path))


@pytest.fixture
def files(workspace: Path) -> AgentFiles:
    return AgentFiles(AgentSettings(id="main", workspace=workspace))


@pytest.mark.parametrize(
    ("link", "target", "read"),
    [
        ("memory/secret.md", "outside/secret.md", "memory/secret.md"),
        ("memory/link.md", "ws/memory/real.md", "memory/link.md"),
        ("MEMORY.md", "outside/secret.md", "MEMORY.md"),
        ("memory/link", "outside", "memory/link/secret.md"),
        ("memory/loop", "ws/memory/loop", "memory/loop/a.md"),
    ],
)
def test_a_link_below_the_workspace_is_never_followed(
    workspace: Path, files: AgentFiles, link: str, target: str, read: str
) -> None:
    (workspace / "memory/real.md").write_text("x")
    (workspace / link).symlink_to(workspace.parent / target)
    _refused(files, read)
    scan = files.scan()
    assert scan.complete
    told = [(one.code, one.subject) for one in scan.problems]
    assert told == ([(ConditionCode.FILE_IS_LINK, str(workspace / link))] if "outside" in target else [])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_without_waiting(
    workspace: Path, files: AgentFiles, make: Callable[[Path], None]
) -> None:
    make(workspace / "memory/odd.md")
    _refused(files, "memory/odd.md")


def test_a_memory_folder_that_is_a_link_is_refused_and_said(workspace: Path, files: AgentFiles) -> None:
    shutil.rmtree(workspace / "memory")
    (workspace / "memory").symlink_to(workspace.parent / "outside")
    _refused(files, "memory/secret.md")
    assert [(one.code, Path(one.subject).name) for one in files.scan().problems] == [
        (ConditionCode.FILE_IS_LINK, "memory")
    ]
    assert [root.path for root in files.watch_roots()] == [workspace]
    assert workspace / "memory" not in entered_folders(files)


def test_a_link_that_was_named_as_an_extra_path_is_a_root(workspace: Path) -> None:
    shutil.rmtree(workspace / "memory")
    (workspace / "memory").symlink_to(workspace.parent / "outside")
    files = AgentFiles(AgentSettings(id="main", workspace=workspace, extra_paths=("memory",)))
    assert files.read(key("memory/secret.md")).text == SECRET
    assert key("memory/secret.md") in files.scan().documents


def test_a_folder_swapped_for_a_link_at_the_last_moment_leads_nowhere(
    workspace: Path, files: AgentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "memory/sub/secret.md").write_text("harmless")
    assert files.read(key("memory/sub/secret.md")).text == "harmless"
    opened, swapped = os.open, []

    def swap_first(path: str, flags: int, *arguments: int, dir_fd: int | None = None) -> int:
        if path == "sub" and not swapped:
            shutil.rmtree(workspace / "memory/sub")
            (workspace / "memory/sub").symlink_to(workspace.parent / "outside")
            swapped.append(path)
        return opened(path, flags, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap_first)
    with pytest.raises(DocumentRefused, match="symbolic link"):
        files.read(key("memory/sub/secret.md"))
    assert swapped


@pytest.mark.parametrize(
    "path",
    [
        *("../outside/secret.md", "memory/../../outside/secret.md", "memory/sub/../a.md", "~/secret.md"),
        *("/etc/passwd", "/etc/passwd.md", "README.md", "", ".", "/", "memory", "memory/", "memory/a.md/"),
        *("memory/a.txt", "memory/.hidden.md", "memory/node_modules/a.md", "memory/a\0.md", "memory/a\udce9.md"),
        *("memory\\a.md", "memory/" + "a/" * 3000 + "a.md"),
        *("sessions/../outside/secret.jsonl", "sessions/./a.jsonl", "sessions//a.jsonl", "sessions/a.jsonl\0"),
        *("sessions/", "sessions", "sessions/.hidden/a.jsonl", "sessions/a.jsonl.bak", "elsewhere/a.jsonl"),
    ],
)
def test_every_path_that_is_no_document_by_name_gets_the_same_answer(workspace: Path, path: str) -> None:
    sessions = workspace.parent / "sessions"
    sessions.mkdir()
    files = AgentFiles(AgentSettings(id="main", workspace=workspace, sessions=(str(sessions),)))
    with pytest.raises(DocumentRefused, match=r"^this path is not a document of the agent's memory$"):
        files.resolve(path)
    # A key that never went through `resolve` (a job, an event) opens nothing, either.
    with pytest.raises((DocumentGone, DocumentRefused)):
        files.read(key(path))
    assert files.stat(key(path)) is None


@pytest.mark.parametrize("path", ["../outside/secret.md", "/etc/hostname.md", "memory/../../outside/secret.md"])
def test_a_key_cannot_leave_a_root_that_is_the_whole_workspace(workspace: Path, path: str) -> None:
    files = AgentFiles(AgentSettings(id="main", workspace=workspace, extra_paths=(".",)))
    with pytest.raises((DocumentGone, DocumentRefused)):
        files.read(key(path))
    with pytest.raises(DocumentRefused):
        files.resolve(path)


def test_another_agents_workspace_is_outside(workspace: Path, files: AgentFiles) -> None:
    other = workspace.parent / "ws2"
    (other / "memory").mkdir(parents=True)
    (other / "memory/a.md").write_text(SECRET)
    for path in (str(other / "memory/a.md"), "../ws2/memory/a.md"):
        with pytest.raises(DocumentRefused):
            files.resolve(path)
        with pytest.raises(DocumentGone):
            files.read(key(path))
    assert files.key_of(other / "memory/a.md") is None


def test_spellings_of_a_document_resolve_to_its_key(workspace: Path, files: AgentFiles) -> None:
    for path in ("memory/a.md", "./memory/a.md", "memory//a.md", "memory/./a.md", str(workspace / "memory/a.md")):
        assert files.resolve(path) == key("memory/a.md")


def test_a_file_that_is_too_large_is_refused_unread(
    workspace: Path, files: AgentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (workspace / "MEMORY.md").open("wb") as file:
        file.truncate(MAX_DOCUMENT_BYTES + 1)
    monkeypatch.setattr(os, "read", None)
    with pytest.raises(DocumentRefused, match="more than the 67 MB"):
        files.read(key("MEMORY.md"))


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.EACCES, DocumentUnreadable),
        (errno.EIO, DocumentUnreadable),
        (errno.EMFILE, Transient),
        (errno.ENOENT, DocumentGone),
    ],
)
def test_what_the_system_says_decides_whether_to_try_again(
    workspace: Path, files: AgentFiles, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    (workspace / "memory/sub/a.md").write_text("x")
    opened = os.open

    def failing(path: str, flags: int, *arguments: int, dir_fd: int | None = None) -> int:
        if path == "sub":
            raise OSError(number, os.strerror(number), path)
        return opened(path, flags, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(error):
        files.read(key("memory/sub/a.md"))
    if error is DocumentUnreadable:
        with pytest.raises(DocumentUnreadable):  # not taken for a deletion
            files.stat(key("memory/sub/a.md"))
