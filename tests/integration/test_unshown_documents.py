"""Exit codes of `recalld get`: 3 for an absent document, 1 after a failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.commanding import CommandLine
from tests.transcript_files import transcript

try:
    from compression.zstd import compress
except ImportError:
    from backports.zstd import compress

FAILED, NOT_IN_MEMORY = 1, 3


@pytest.fixture
def sessions(home: Path, commands: CommandLine) -> Path:
    folder = home.parent / "sessions"
    folder.mkdir()
    commands.configure(f'sessions = ["{folder}"]')
    return folder


def test_a_document_that_is_there_and_cannot_be_shown_is_a_failure(
    commands: CommandLine, workspace: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sessions / "cut.jsonl.zst").write_bytes(compress(transcript("plain", 9))[:-9])
    (sessions / "empty.jsonl.zst").touch()
    (workspace / "memory" / "locked.md").write_text("locked\n")
    (workspace / "memory" / "good.md").write_text("good\n")
    really = os.open

    def opened(path: str, *args: int, **how: int) -> int:
        if str(path).endswith("locked.md"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return really(path, *args, **how)

    monkeypatch.setattr(os, "open", opened)
    for path, reason in (
        ("sessions/cut.jsonl", "ends too early"),
        ("sessions/empty.jsonl", "ends too early"),
        ("memory/locked.md", "memory/locked.md cannot be read: Permission denied"),
    ):
        code, out, err = commands.run("get", path)
        assert (code, out) == (FAILED, ""), path
        assert reason in err
        assert commands.run("get", path, "--json")[0] == FAILED
    assert commands.say("get", "memory/good.md") == "good\n"


def test_a_path_that_names_nothing_in_this_memory_is_told_from_a_failure(
    commands: CommandLine, workspace: Path, sessions: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret.md").write_text("secret\n")
    (workspace / "memory" / "link.md").symlink_to(tmp_path / "secret.md")
    (workspace / "memory" / "folder.md").mkdir()
    for path in ("memory/never.md", "sessions/never.jsonl", "/etc/passwd", "memory/link.md", "memory/folder.md"):
        code, out, err = commands.run("get", path)
        assert (code, out, err.count("\n")) == (NOT_IN_MEMORY, "", 1), path
