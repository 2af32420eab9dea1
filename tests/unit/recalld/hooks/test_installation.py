"""Hooks get into a program's settings, and out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recalld.hooks import installation
from recalld.hooks.installation import is_ours, wanted_hooks
from schemas.errors import UserError

COMMAND = "/opt/recalld/bin/recalld hook claude-code"
THEIRS = {"matcher": "Bash", "hooks": [{"type": "command", "command": "say hi"}]}


def installed(before: dict[str, Any], command: str = COMMAND, program: str = "claude-code") -> dict[str, Any]:
    return installation.with_hooks(before, program, command)


def removed(before: dict[str, Any], program: str = "claude-code") -> dict[str, Any]:
    return installation.with_hooks(before, program, None)


def changed(file: Path, *, removing: bool = False) -> bool:
    return installation.change_hooks(file, "claude-code", COMMAND, removing=removing, agreed=True)


def test_codex_has_no_hooks_that_run_beside_it() -> None:
    hooks = installed({}, "recalld hook codex", "codex")["hooks"]
    assert set(hooks) == {"SessionStart", "Stop", "PreCompact", "PostCompact"}
    assert all("async" not in groups[0]["hooks"][0] for groups in hooks.values())


def test_other_hooks_and_settings_stay() -> None:
    before = {"model": "opus", "hooks": {"Stop": [THEIRS], "PreToolUse": [THEIRS]}, "env": {"A": "b"}}
    after = installed(before)
    assert after["hooks"]["Stop"] == [wanted_hooks("claude-code", COMMAND)["Stop"], THEIRS]
    assert after["hooks"]["PreToolUse"] == [THEIRS]
    assert (after["model"], after["env"]) == ("opus", {"A": "b"})
    assert (installed(after), removed(after)) == (after, before)
    assert removed({"hooks": {"Stop": []}}) == {"hooks": {"Stop": []}}


def test_hooks_of_another_installation_or_home_are_replaced() -> None:
    old = installed({"hooks": {"Stop": [THEIRS]}}, "/old/python -m recalld hook claude-code --home /h")
    new = installed(old)
    assert "/old/" not in json.dumps(new)
    assert new == installed({"hooks": {"Stop": [THEIRS]}})


def test_a_handler_that_somebody_put_into_a_group_of_theirs_is_taken_out_of_it() -> None:
    (theirs,) = THEIRS["hooks"]
    mixed = {"hooks": [theirs, {"type": "command", "command": COMMAND}]}
    assert removed({"hooks": {"Stop": [mixed]}}) == {"hooks": {"Stop": [{"hooks": [theirs]}]}}


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("/a/recalld hook claude-code", True),
        ("'/my files/recalld' hook claude-code --home '/my home'", True),
        ("/p/python3 -m recalld --home /h hook claude-code", True),
        ("/a/recalld hook codex", False),
        ("/a/recalld hook claude-codes", False),
        ("/a/recalld-hook claude-code", False),
        ("echo recalld", False),
    ],
)
def test_our_hooks_are_told_from_others(command: str, ours: bool) -> None:
    assert is_ours({"type": "command", "command": command}, "claude-code") is ours


def test_items_that_are_no_groups_are_left_alone() -> None:
    odd = {"hooks": {"Stop": [None, 3, "x", {"hooks": None}, {"hooks": [None, 4]}]}}
    assert installed(odd)["hooks"]["Stop"][1:] == odd["hooks"]["Stop"]
    assert removed(odd) == odd


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1,}',
        "// comment\n{}",
        "[]",
        '{"hooks": []}',
        '{"hooks": {"Stop": {}}}',
        "[" * 100_000,
        '{"a": NaN}',
        '{"a": 1e999}',
        f'{{"a": {"9" * 10_000}}}',
        '{"a": {"b": "sk-secret", "b": 2}}',
    ],
)
def test_a_file_that_cannot_be_written_anew_without_loss_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text)
    for removing in (False, True):
        with pytest.raises(UserError) as refused:
            changed(file, removing=removing)
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
    assert changed(file)
    after = json.loads(file.read_text("utf-8"))
    assert list(after.items())[:-1] == list(before.items())
    assert changed(file, removing=True)
    assert list(json.loads(file.read_text("utf-8")).items()) == list(before.items())


@pytest.mark.parametrize("program", ["claude-code", "codex"])
def test_a_program_waits_where_its_prompts_or_notes_depend_on_it(program: str) -> None:
    command = f"recalld hook {program}"
    usual = installation.with_hooks({}, program, command)
    waiting = installation.with_hooks(usual, program, command, waiting=["UserPromptSubmit", "Stop"])
    for event in ("UserPromptSubmit", "Stop"):
        [group] = waiting["hooks"][event]
        assert "async" not in group["hooks"][0]
    assert installation.with_hooks(waiting, program, command) == usual
