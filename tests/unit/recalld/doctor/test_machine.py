"""Findings: of several agents together, on the machine, and on the hooks that programs send."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from memory.index.file_generation_writer import require_room
from memory.store.errors import NoRoom
from memory.transcripts.packing import beginnings
from recalld.doctor import machine
from recalld.doctor.examination import alike_condition
from recalld.doctor.finding import Finding, Level, merge_equal
from recalld.doctor.machine import hook_findings
from recalld.hooks.installation import openclaw_hook
from recalld.settings.program_folders import ProgramFolders
from schemas.settings import Settings

REFUSED = partial(Finding, "provider", "refused", Level.PROBLEM, "correct it")


def test_what_agents_have_in_common_is_told_once_and_names_them() -> None:
    other = Finding("provider", "no answer", Level.PROBLEM, "wait", ("bob",))
    fine = Finding("disk", "well")
    first, second, third = merge_equal([REFUSED(agents=("ada",)), other, fine, REFUSED(agents=("cleo",))])
    assert (first.message, first.agents) == ("ada, cleo: refused", ("ada", "cleo"))
    assert (second.message, second.agents) == ("bob: no answer", ("bob",))
    assert third == fine
    [found] = merge_equal(REFUSED(agents=(f"a{number}",)) for number in range(1_000))
    assert found.message.startswith("a0, a1, a2, a3, a4 and 995 more: ")
    assert len(found.agents) == 1_000


def test_a_slow_pattern_is_told_by_its_place_and_each_list_once(tmp_path: Path) -> None:
    lists = {"a": ("x", "(?:bird)?(b+)+$"), "b": ("x", "(?:bird)?(b+)+$"), "c": (), "d": ("x",)}
    agents = [{"id": name, "workspace": tmp_path, "redaction": {"patterns": some}} for name, some in lists.items()]
    slow, quick = sorted(
        machine.pattern_findings(Settings.model_validate({"home": tmp_path, "agents": agents})),
        key=lambda one: list(Level).index(one.level),
        reverse=True,
    )
    assert (slow.level, quick.level, slow.agents) == (Level.WARNING, Level.OK, ("a",))
    assert slow.message.startswith("pattern 2 ")
    assert "bird" not in slow.message


def test_few_open_files_are_a_warning_with_the_number_that_is_better(settings: Settings):
    assert machine.open_files(settings, limit=4096).level is Level.OK
    found = machine.open_files(settings, limit=100)
    assert (found.level, "ulimit -n 264" in (found.action or "")) == (Level.WARNING, True)


def test_folders_beyond_the_limit_of_watches_are_told_before_they_are_polled(settings: Settings, tmp_path: Path):
    assert machine.watches(settings, limits=tmp_path).level is Level.OK, "a system without inotify has no limit"
    for number in range(30):
        (settings.agents[0].workspace / "memory" / f"folder-{number}").mkdir()
    (tmp_path / "max_user_watches").write_text("60\n")
    assert machine.watches(settings, limits=tmp_path).level is Level.OK
    (tmp_path / "max_user_watches").write_text("30\n")
    found = machine.watches(settings, limits=tmp_path)
    assert found.level is Level.WARNING
    assert "max_user_watches=64" in (found.action or "")


def test_of_both_kinds_of_search_only_a_set_extension_that_fails_is_a_fault(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def levels(path: Path | None = None) -> list[Level]:
        vector = settings.store.vector.model_copy(update={"extension_path": path})
        chosen = settings.model_copy(update={"store": settings.store.model_copy(update={"vector": vector})})
        return [found.level for found in machine.sqlite_parts(chosen)]

    assert levels() == [Level.OK, Level.OK]
    assert levels(tmp_path / "none.so") == [Level.OK, Level.WARNING]
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    assert levels() == [Level.OK, Level.OK]


def test_space_for_documents_and_for_the_largest_index_built_anew_is_asked_for(settings: Settings):
    told = machine.disk(settings, free=11_000_000)
    assert told.message.startswith("11.0 MB ")
    assert "500.0 MB" in (told.action or "")
    levels = [machine.disk(settings, free=free).level for free in (10**7, 2 * 10**8, 10**9)]
    assert levels == [Level.PROBLEM, Level.WARNING, Level.OK]
    index = settings.indexes_path / "main" / "big.sqlite"
    index.parent.mkdir(parents=True)
    with index.open("wb") as file:
        file.truncate(700_000_000)
    assert machine.disk(settings, free=1_000_000_000).level is Level.WARNING
    assert machine.disk(settings, free=0).level is Level.PROBLEM
    with pytest.raises(NoRoom):
        require_room(index, free=lambda _: machine._NO_SPACE)  # what it says holds at its bound


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


def test_more_than_a_quarter_of_messages_that_begin_alike_is_told_with_its_beginning() -> None:
    said = [f"User: question {'abcdefghij'[number % 10]} of {number}" for number in range(75)]
    machine = [f"User: [Job {number} of a program] run {number}, and so on" for number in range(26)]
    condition = alike_condition(said + machine)
    assert condition is not None
    assert condition.params == {"beginning": "User: [Job 0 of a program] run 0, and so", "percent": 26, "messages": 101}
    assert alike_condition(said + machine[:25]) is None
    assert alike_condition(["User: hi"] * 39) is None, "a few messages are not judged"


def test_beginnings_of_messages_are_taken_from_chunks_and_repeats_count_once() -> None:
    first = "[2026-02-03 09:00] User: one\n[2026-02-03 09:01] Assistant: two\nand more: of it"
    second = "[2026-02-03 09:01] Assistant: two\nand more: of it\n[2026-02-03 09:02] User: one"
    assert beginnings([first, second]) == ["User: one", "Assistant: two", "User: one"]
