"""What the doctor says of hooks and providers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from recalld.doctor.finding import Finding, Level
from recalld.doctor.services import hook_findings
from recalld.program_folders import ProgramFolders


@pytest.fixture
def folders(tmp_path: Path) -> ProgramFolders:
    return ProgramFolders.named_by(
        {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "CODEX_HOME": str(tmp_path / "codex")}
    )


def hooked(folders: ProgramFolders, command: str) -> list[Finding]:
    folders.claude_code.mkdir(parents=True, exist_ok=True)
    body = {"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": command}]}]}}
    (folders.claude_code / "settings.json").write_text(json.dumps(body))
    return list(hook_findings(folders))


def test_without_hooks_nothing_is_said(folders: ProgramFolders):
    assert list(hook_findings(folders)) == []
    assert hooked(folders, "echo hello") == []


def test_hooks_that_call_a_recalld_that_is_there_are_fine(folders: ProgramFolders):
    [found] = hooked(folders, f"{sys.executable} -m recalld hook claude-code")
    assert found.level is Level.OK


def test_hooks_that_call_a_recalld_that_was_moved_are_a_problem_with_its_remedy(folders: ProgramFolders):
    [found] = hooked(folders, "/nowhere/recalld hook claude-code")
    assert found.level is Level.PROBLEM
    assert found.action == "`recalld hook install claude-code` corrects it"


@pytest.mark.parametrize("text", ["{", "[]", '{"hooks": []}', '{"hooks": {"Stop": [3]}}', "\xff"])
def test_settings_that_a_program_could_not_read_are_told(folders: ProgramFolders, text: str):
    folders.codex.mkdir()
    (folders.codex / "hooks.json").write_bytes(text.encode("latin-1"))
    [found] = hook_findings(folders)
    assert found.level is Level.WARNING
