"""What the doctor says of the hooks that programs send."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from recalld.doctor.finding import Level
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


def claude_code(folders: ProgramFolders, command: str) -> None:
    folders.claude_code.mkdir(parents=True, exist_ok=True)
    body = {"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": command}]}]}}
    (folders.claude_code / "settings.json").write_text(json.dumps(body))


def codex(folders: ProgramFolders, text: str) -> None:
    folders.codex.mkdir()
    (folders.codex / "hooks.json").write_bytes(text.encode("latin-1"))


def openclaw(
    folders: ProgramFolders, command: str, *, enabled: bool | None = True, files: Mapping[str, str | None] = {}
) -> None:
    """Write the hook; `files` replace its own, None: they are not there."""
    folder = folders.openclaw[0] / "hooks" / "recalld"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**openclaw_hook(command), **files}.items():
        if content is not None:
            (folder / name).write_text(content)
    if enabled is not None:
        internal = {"enabled": True, "entries": {"recalld": {"enabled": enabled}}}
        (folders.openclaw[0] / "openclaw.json").write_text(json.dumps({"hooks": {"internal": internal}}))


HERE = f"{sys.executable} -m recalld hook"
MOVED = shlex.join(['/nowhere/my "own" recalld', "hook", "openclaw"])


@pytest.mark.parametrize(
    ("write", "level", "says"),
    [
        pytest.param(partial(claude_code, command="echo hello"), None, "", id="none of ours"),
        pytest.param(partial(claude_code, command=f"{HERE} claude-code"), Level.OK, "calls recalld", id="claude-code"),
        pytest.param(
            partial(claude_code, command="/nowhere/recalld hook claude-code"),
            *(Level.PROBLEM, "`recalld hook install claude-code` corrects it"),
            id="claude-code calls a recalld that was moved",
        ),
        *(
            pytest.param(partial(codex, text=text), Level.WARNING, "mend it", id=f"codex could not read {text}")
            for text in ("{", "[]", '{"hooks": []}', '{"hooks": {"Stop": [3]}}', "\xff")
        ),
        pytest.param(partial(openclaw, command=f"{HERE} openclaw"), Level.OK, "calls recalld", id="openclaw"),
        pytest.param(partial(openclaw, command=MOVED), Level.PROBLEM, '/nowhere/my "own" recalld', id="openclaw moved"),
        *(
            pytest.param(
                partial(openclaw, command=f"{HERE} openclaw", enabled=enabled),
                *(Level.WARNING, "openclaw hooks enable recalld"),
                id=f"openclaw enabled {enabled}",
            )
            for enabled in (None, False)
        ),
        *(
            pytest.param(
                partial(openclaw, command=f"{HERE} openclaw", files=files),
                *(level, "`recalld hook install openclaw`"),
                id=f"openclaw with {files}",
            )
            for files, level in (
                ({"HOOK.md": None}, Level.PROBLEM),
                ({"handler.ts": "export default () => {};"}, Level.PROBLEM),
                ({"HOOK.md": "---\nname: recalld\n---\n"}, Level.WARNING),
            )
        ),
    ],
)
def test_hooks_are_looked_at_and_what_is_wrong_is_told_with_its_remedy(
    folders: ProgramFolders, write: Callable[[ProgramFolders], None], level: Level | None, says: str
) -> None:
    assert list(hook_findings(folders)) == []
    write(folders)
    found = list(hook_findings(folders))
    assert [one.level for one in found] == ([level] if level is not None else [])
    assert all(says in f"{one.message}; {one.action}" for one in found)
