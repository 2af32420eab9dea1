"""Standard input of a hook, and the repository of its folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from producers.hook_events import MAX_PAYLOAD_BYTES, HookUnreadable
from recalld.hooks.entry import project_of, read_input


def test_input_is_read_to_its_end_or_limit_or_until_the_time_is_over() -> None:
    reading, writing = os.pipe()
    with pytest.raises(HookUnreadable, match="nothing came"):
        read_input(reading, wait_seconds=0.01)
    os.write(writing, b'{"a": 1}\n')
    assert read_input(reading, wait_seconds=0.01) == b'{"a": 1}\n'

    def write() -> None:
        with os.fdopen(writing, "wb") as out:
            out.write(b"x" * 300_000)

    thread = threading.Thread(target=write)
    thread.start()
    assert len(read_input(reading, wait_seconds=60)) == 300_000
    thread.join()
    with pytest.raises(HookUnreadable, match="nothing came"):
        read_input(reading, wait_seconds=60)
    os.close(reading)
    with Path("/dev/zero").open("rb") as endless:
        assert len(read_input(endless.fileno(), wait_seconds=60)) < MAX_PAYLOAD_BYTES * 2


@pytest.mark.parametrize(
    ("url", "project"),
    [
        ("https://github.com/acme/shop.git", "github.com/acme/shop"),
        ("https://user:ghp_secret@github.com/acme/shop/", "github.com/acme/shop"),
        ("git@github.com:acme/shop.git", "github.com/acme/shop"),
        ("ssh://git@git.example.org:2222/group/sub/shop.git", "git.example.org/group/sub/shop"),
        ("deploy@github.com:acme/shop@2", "github.com/acme/shop@2"),
        ("https://github.com/acme/shop@2", "github.com/acme/shop@2"),
        ("/srv/git/shop.git", None),
        ("/srv/git:old/shop.git", None),
        ("file:///srv/git/shop.git", None),
        ("file://localhost/srv/git/shop.git", None),
        ("../shop.git", None),
        ("mirrors/shop.git", None),
        ("ext::sh -c x/y", None),
        ("", None),
    ],
)
def test_the_project_of_a_folder_is_the_address_of_its_repository(
    tmp_path: Path, url: str, project: str | None
) -> None:
    (tmp_path / "shop" / "src" / "deep").mkdir(parents=True)
    git = tmp_path / "shop" / ".git"
    (git / "worktrees" / "fix").mkdir(parents=True)
    remotes = f'[remote "other"]\n\turl = x:y/z\n[remote "origin"]\n\turl = {url}\n\tfetch = +refs/*\n'
    (git / "config").write_text(f'[core]\n\tbare = false\n{remotes}[branch "b"]\n\turl = q\n', "utf-8")
    (git / "worktrees" / "fix" / "commondir").write_text("../..\n")
    (tmp_path / "fix").mkdir()
    (tmp_path / "fix" / ".git").write_text(f"gitdir: {git}/worktrees/fix\n")
    for folder in ("shop", "shop/src/deep", "fix"):
        assert project_of(str(tmp_path / folder)) == project


@pytest.mark.parametrize("content", [None, "", "gitdir: nowhere", "\0"])
def test_a_folder_without_a_repository_has_no_project(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / ".git").write_text(content)
    assert project_of(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("folder", ["", ".", "src"])
def test_a_relative_folder_has_no_project_whatever_the_current_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / ".git" / "config").write_text('[remote "origin"]\nurl = https://github.com/acme/shop\n')
    monkeypatch.chdir(tmp_path)
    assert project_of(str(tmp_path)) == "github.com/acme/shop"
    assert project_of(folder) is None


@pytest.mark.parametrize("place", [".git", ".git/config", ".git/commondir", "repository/commondir"])
@pytest.mark.parametrize("endless", ["fifo", "device"])
def test_files_without_an_end_are_not_waited_for(tmp_path: Path, place: str, endless: str) -> None:
    if place.startswith("repository"):
        (tmp_path / ".git").write_text("gitdir: repository\n")
    (file := tmp_path / place).parent.mkdir(exist_ok=True)
    if endless == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    asked = subprocess.run(
        [sys.executable, "-c", f"from recalld.hooks.entry import project_of; print(project_of({str(tmp_path)!r}))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert asked.stdout == "None\n"
