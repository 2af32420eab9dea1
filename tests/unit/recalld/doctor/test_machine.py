"""Findings on the machine, and on the hooks that programs send."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from memory.index.generation_writer import require_room
from memory.store.errors import NoRoom
from recalld.doctor import machine
from recalld.doctor.finding import Level
from recalld.doctor.machine import hook_findings
from recalld.hooks.installation import openclaw_hook
from recalld.settings.program_folders import ProgramFolders
from schemas.settings import Settings


def test_few_open_files_are_a_warning_with_the_number_that_is_better(settings: Settings):
    assert machine.open_files(settings, limit=4096).level is Level.OK
    found = machine.open_files(settings, limit=100)
    assert found.level is Level.WARNING
    assert "ulimit -n 264" in (found.action or "")


def test_folders_beyond_the_limit_of_watches_are_told_before_they_are_polled(settings: Settings, tmp_path: Path):
    assert machine.watches(settings, limits=tmp_path).level is Level.OK, "a system without inotify has no limit"
    for number in range(30):
        (settings.agents[0].workspace / "memory" / f"folder-{number}").mkdir()
    (tmp_path / "max_user_watches").write_text("60\n")
    assert machine.watches(settings, limits=tmp_path).level is Level.OK
    (tmp_path / "max_user_watches").write_text("30\n")
    found = machine.watches(settings, limits=tmp_path)
    assert found.level is Level.WARNING
    assert "sysctl fs.inotify.max_user_watches=64" in (found.action or "")


def test_both_kinds_of_search_are_looked_for(settings: Settings):
    assert [found.level for found in machine.sqlite_parts(settings)] == [Level.OK, Level.OK]


def test_a_missing_sqlite_vec_is_no_fault(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    [_, found] = machine.sqlite_parts(settings)
    assert found.level is Level.OK


def test_an_extension_that_cannot_be_loaded_is_told(settings: Settings, tmp_path: Path):
    vector = settings.store.vector.model_copy(update={"extension_path": tmp_path / "none.so"})
    without = settings.model_copy(update={"store": settings.store.model_copy(update={"vector": vector})})
    [_, found] = machine.sqlite_parts(without)
    assert found.level is Level.WARNING


def test_a_disk_that_is_nearly_full_is_not_said_to_take_nothing(settings: Settings):
    told = machine.disk(settings, free=11_000_000)
    assert told.message.startswith("11.0 MB are free for ")
    assert told.message.endswith(": what does not fit into that is not indexed")
    assert told.action == "keep 500.0 MB free"
    folder = settings.indexes_path / "main"
    folder.mkdir(parents=True)
    (folder / "x.sqlite").write_bytes(b"x" * 1000)
    assert machine.disk(settings, free=0).message.endswith("and no new index can be built beside the present one")
    with pytest.raises(NoRoom):
        require_room(folder / "x.sqlite", free=lambda _: machine._NO_SPACE)  # what it says holds at its bound


def test_space_for_the_largest_index_to_be_built_anew_is_asked_for(settings: Settings):
    levels = [machine.disk(settings, free=free).level for free in (10**7, 2 * 10**8, 10**9)]
    assert levels == [Level.PROBLEM, Level.WARNING, Level.OK]
    index = settings.indexes_path / "main" / "big.sqlite"
    index.parent.mkdir(parents=True)
    with index.open("wb") as file:
        file.truncate(700_000_000)
    assert machine.disk(settings, free=1_000_000_000).level is Level.WARNING


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_a_problem(settings: Settings):
    settings.home.mkdir()
    settings.home.chmod(0o500)
    assert "cannot be written" in machine.disk(settings).message


@pytest.mark.parametrize(
    ("ahead", "now", "level"),
    [
        (None, None, Level.OK),
        (-3.0, None, Level.OK),
        (-3600.0, None, Level.WARNING),
        (0.0, 1000.0, Level.PROBLEM),
    ],
)
def test_a_wrong_clock_is_told(ahead: float | None, now: float | None, level: Level):
    assert machine.clock(broker_seconds_ahead=ahead, now=now).level is level


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
