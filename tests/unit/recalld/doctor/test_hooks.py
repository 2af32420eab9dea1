"""What the doctor says of the hooks that programs send."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from recalld.doctor.finding import Finding, Level
from recalld.doctor.machine import hook_findings
from recalld.hooks.installation import openclaw_hook
from recalld.settings.program_folders import ProgramFolders


@pytest.fixture
def folders(tmp_path: Path) -> ProgramFolders:
    return ProgramFolders.named_by(
        {
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
            "CODEX_HOME": str(tmp_path / "codex"),
            "OPENCLAW_STATE_DIR": str(tmp_path / "openclaw"),
        }
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


def openclaw_hook_of(folders: ProgramFolders, command: str, *, enabled: bool | None = True) -> Path:
    folder = folders.openclaw[0] / "hooks" / "recalld"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in openclaw_hook(command).items():
        (folder / name).write_text(content)
    if enabled is not None:
        internal = {"enabled": True, "entries": {"recalld": {"enabled": enabled}}}
        (folders.openclaw[0] / "openclaw.json").write_text(json.dumps({"hooks": {"internal": internal}}))
    return folder


def test_a_hook_of_openclaw_that_is_enabled_and_calls_a_recalld_that_is_there_is_fine(folders: ProgramFolders):
    openclaw_hook_of(folders, f"{sys.executable} -m recalld hook openclaw")
    [found] = hook_findings(folders)
    assert found.level is Level.OK


def test_a_hook_of_openclaw_that_calls_a_recalld_that_was_moved_is_a_problem_with_its_remedy(folders: ProgramFolders):
    openclaw_hook_of(folders, shlex.join(['/nowhere/my "own" recalld', "hook", "openclaw"]))
    [found] = hook_findings(folders)
    assert (found.level, found.action is not None) == (Level.PROBLEM, True)
    assert '/nowhere/my "own" recalld' in found.message
    assert "`recalld hook install openclaw`" in str(found.action)


@pytest.mark.parametrize("enabled", [None, False])
def test_a_hook_that_openclaw_is_not_told_to_run_is_a_warning(folders: ProgramFolders, enabled: bool | None):
    openclaw_hook_of(folders, f"{sys.executable} -m recalld hook openclaw", enabled=enabled)
    [found] = hook_findings(folders)
    assert found.level is Level.WARNING
    assert "openclaw hooks enable recalld" in str(found.action)


@pytest.mark.parametrize("damage", ["missing", "other", "events"])
def test_a_hook_of_openclaw_that_is_not_whole_is_told(folders: ProgramFolders, damage: str):
    folder = openclaw_hook_of(folders, f"{sys.executable} -m recalld hook openclaw")
    if damage == "missing":
        (folder / "HOOK.md").unlink()
    elif damage == "other":
        (folder / "handler.ts").write_text("export default () => {};")
    else:
        (folder / "HOOK.md").write_text("---\nname: recalld\n---\n")
    [found] = hook_findings(folders)
    assert found.level is (Level.WARNING if damage == "events" else Level.PROBLEM)
