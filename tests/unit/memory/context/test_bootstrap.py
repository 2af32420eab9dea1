"""Files that a session begins with: which, in which order, and how much of them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from memory.context.bootstrap import BOOTSTRAP_FILES, bootstrap_files, cut
from schemas.context import SessionKindOfPrompt
from schemas.settings import Bootstrap

TODAY = date(2026, 3, 1)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    for name in (*BOOTSTRAP_FILES, "memory/2026-03-01.md", "memory/2026-02-28.md", "memory/2026-02-27.md"):
        (tmp_path / name).write_text(f"words of {name}\n", "utf-8")
    return tmp_path


SHOWN: list[tuple[SessionKindOfPrompt, bool, str]] = [
    ("chat", True, "AGENTS SOUL TOOLS IDENTITY USER HEARTBEAT BOOTSTRAP MEMORY"),
    ("chat", False, "AGENTS SOUL TOOLS IDENTITY HEARTBEAT BOOTSTRAP"),
    ("subagent", True, "AGENTS TOOLS"),
    ("cron", True, "AGENTS SOUL TOOLS IDENTITY USER"),
    ("cron", False, "AGENTS SOUL TOOLS IDENTITY"),
]


@pytest.mark.parametrize(("kind", "private", "names"), SHOWN)
def test_a_session_gets_its_files_in_order(
    workspace: Path, kind: SessionKindOfPrompt, private: bool, names: str
) -> None:
    files = bootstrap_files(workspace, Bootstrap(), redact=str, kind=kind, private=private)
    assert [file.path for file in files] == [f"{name}.md" for name in names.split()]
    assert [file.text for file in files] == [f"words of {name}.md" for name in names.split()]
    assert not any(file.truncated for file in files)


@pytest.mark.parametrize(("kind", "private", "notes"), [("chat", True, 2), ("chat", False, 0), ("subagent", True, 0)])
def test_a_bare_reset_shows_todays_and_yesterdays_note(
    workspace: Path, kind: SessionKindOfPrompt, private: bool, notes: int
) -> None:
    files = bootstrap_files(workspace, Bootstrap(), redact=str, kind=kind, private=private, today=TODAY)
    shown = [file.path for file in files if "/" in file.path]
    assert shown == ["memory/2026-03-01.md", "memory/2026-02-28.md"][:notes]


def test_long_files_are_cut_each_and_together(workspace: Path) -> None:
    for name in BOOTSTRAP_FILES:
        (workspace / name).write_text("x" * 25_000, "utf-8")
    files = bootstrap_files(workspace, Bootstrap(), redact=str, private=True)
    shown = {file.path: file.shown for file in files}
    assert shown["AGENTS.md"] == 20_000
    assert shown["USER.md"] == 0
    assert sum(shown.values()) == 60_000
    assert all(file.truncated and file.characters == 25_000 for file in files)
    roomy = bootstrap_files(workspace, Bootstrap(total_max_chars=1_000_000), redact=str, private=True)
    assert {file.path: file.shown for file in roomy}["USER.md"] == 4_000


def test_absent_files_links_and_secrets_are_not_shown(workspace: Path, tmp_path: Path) -> None:
    (workspace / "SOUL.md").unlink()
    (workspace / "TOOLS.md").unlink()
    (workspace / "TOOLS.md").symlink_to(workspace / "AGENTS.md")
    files = {
        file.path: file
        for file in bootstrap_files(
            workspace, Bootstrap(), redact=lambda text: text.replace("words", "***"), private=True
        )
    }
    assert (files["SOUL.md"].text, files["SOUL.md"].problem) == ("", "missing")
    assert files["TOOLS.md"].text == ""
    assert "symbolic link" in (files["TOOLS.md"].problem or "")
    assert files["AGENTS.md"].text == "*** of AGENTS.md"
    assert not files["SOUL.md"].truncated


@pytest.mark.parametrize("budget", [64, 100, 1_000, 19_999])
def test_a_cut_text_keeps_its_beginning_and_its_end_within_the_budget(budget: int) -> None:
    text = "a" * 10_000 + "z" * 10_000
    shown = cut(text, "MEMORY.md", budget=budget)
    assert len(shown) <= budget
    assert shown.startswith("a")
    if budget > 200:
        assert shown.endswith("z")
        assert "MEMORY.md" in shown
    assert cut(text, "MEMORY.md", budget=20_000) == text
