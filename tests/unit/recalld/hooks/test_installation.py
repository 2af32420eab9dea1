"""Hooks get into a program's settings, and out again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.hooks import installation
from recalld.hooks.installation import is_ours, openclaw_hook
from schemas.errors import UserError
from tests.waiting import wait_until

COMMAND = "/opt/recalld/bin/recalld hook claude-code"
OURS = {"hooks": [{"type": "command", "command": COMMAND, "timeout": 10, "async": True}]}
HANDLER = {"type": "command", "command": "say hi"}
THEIRS = {"matcher": "Bash", "hooks": [HANDLER]}


def with_hooks(before: dict[str, Any], command: str | None = COMMAND) -> dict[str, Any]:
    return installation.with_hooks(before, "claude-code", command)


def change(file: Path, *, removing: bool = False) -> bool:
    return installation.change_hooks(file, "claude-code", COMMAND, removing=removing, agreed=True)


def test_other_hooks_and_settings_stay() -> None:
    before = {"model": "opus", "hooks": {"Stop": [THEIRS], "PreToolUse": [THEIRS]}, "env": {"A": "b"}}
    after = with_hooks(before)
    assert (after["hooks"]["Stop"], after["hooks"]["PreToolUse"]) == ([OURS, THEIRS], [THEIRS])
    assert (after["model"], after["env"]) == ("opus", {"A": "b"})
    assert (with_hooks(after), with_hooks(after, None)) == (after, before)


@pytest.mark.parametrize(
    ("groups", "installed", "removed"),
    [
        # Those of another installation or home are replaced.
        (
            [{"hooks": [{"command": "/old/python -m recalld --home /h hook claude-code"}]}, THEIRS],
            [OURS, THEIRS],
            [THEIRS],
        ),
        # A handler in a group of the user's is taken out of it.
        ([{"hooks": [HANDLER, OURS["hooks"][0]]}], [OURS, {"hooks": [HANDLER]}], [{"hooks": [HANDLER]}]),
        # Items that are no groups are left alone.
        ([None, 3, {"hooks": None}, {"hooks": [None]}], [OURS, None, 3, {"hooks": None}, {"hooks": [None]}], None),
    ],
)
def test_only_our_handlers_are_replaced_and_removed(
    groups: list[Any], installed: list[Any], removed: list[Any]
) -> None:
    before = {"hooks": {"Stop": groups}}
    assert with_hooks(before)["hooks"]["Stop"] == installed
    assert with_hooks(before, None) == ({"hooks": {"Stop": removed}} if removed else before)


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("/a/recalld hook claude-code", True),
        ("'/my files/recalld' hook claude-code --home '/my home'", True),
        ("/p/python3 -m recalld --home /h hook claude-code", True),
        ("/p/python3 -P /s/recalld/__main__.py hook claude-code", True),
        ("/a/recalld hook codex", False),
        ("/a/recalld hook claude-codes", False),
        ("/a/recalld-hook claude-code", False),
        ("echo recalld", False),
    ],
)
def test_our_hooks_are_told_from_others(command: str, ours: bool) -> None:
    assert is_ours({"type": "command", "command": command}, "claude-code") is ours


@pytest.mark.parametrize("program", ["claude-code", "codex"])
def test_a_program_waits_where_its_prompts_or_notes_depend_on_it(program: str) -> None:
    usual = installation.with_hooks({}, program, f"recalld hook {program}")
    beside = {event for event, [group] in usual["hooks"].items() if "async" in group["hooks"][0]}
    assert beside == ({"SessionStart", "PreCompact", "PostCompact", "Stop"} if program == "claude-code" else set())
    waits = ["UserPromptSubmit", "Stop"]
    waiting = installation.with_hooks(usual, program, f"recalld hook {program}", waiting=waits)
    assert not any("async" in waiting["hooks"][event][0]["hooks"][0] for event in waits)
    assert installation.with_hooks(waiting, program, f"recalld hook {program}") == usual


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "sk-secret",}',
        "// comment\n{}",
        "[]",
        '{"hooks": []}',
        '{"hooks": {"Stop": {}}}',
        "[" * 100_000,
        '{"a": NaN}',
        '{"a": 1e999}',
        f'{{"a": {"9" * 10_000}}}',
    ],
)
def test_a_file_that_cannot_be_written_anew_without_loss_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    for removing in (False, True):
        with pytest.raises(UserError) as refused:
            change(file, removing=removing)
        assert "sk-secret" not in str(refused.value)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("settings.json", text)]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), values, max_size=4), st.sampled_from([None, 1, 4, "\t"]), st.booleans())
def test_everything_else_keeps_its_content_and_its_order(
    tmp_path_factory: pytest.TempPathFactory, before: dict[str, Any], indent: int | str | None, plain: bool
) -> None:
    before.pop("hooks", None)
    file = tmp_path_factory.mktemp("settings") / "settings.json"
    file.write_text(json.dumps(before, indent=indent, ensure_ascii=plain), "utf-8", "replace")
    before = json.loads(file.read_text("utf-8"))
    assert change(file)
    after = json.loads(file.read_text("utf-8"))
    assert list(after.items())[:-1] == list(before.items())
    assert change(file, removing=True)
    assert list(json.loads(file.read_text("utf-8")).items()) == list(before.items())


def test_openclaws_handler_passes_on_names_and_nothing_of_what_was_said(tmp_path: Path) -> None:
    (tmp_path / "handler.mjs").write_text(openclaw_hook(f"tee {tmp_path}/got")["handler.ts"])
    entry = {"sessionId": "a", "sessionFile": "/s/a.jsonl", "summary": "secret"}
    event = {"type": "command", "action": "new", "sessionKey": "agent:a:b", "messages": ["secret"]}
    event["context"] = {**entry, "previousSessionEntry": entry, "senderId": "secret"}
    calls = f"import('{tmp_path}/handler.mjs').then((hook) => hook.default({json.dumps(event)}))"
    subprocess.run(["node", "-e", calls], check=True, timeout=60)
    names = {"sessionId": "a", "sessionFile": "/s/a.jsonl"}
    passed = {"type": "command", "action": "new", "sessionKey": "agent:a:b"}
    passed |= {"context": {**names, "previousSessionEntry": names}}
    got = tmp_path / "got"
    wait_until(lambda: got.exists() and json.loads(got.read_text() or "{}") == passed)
