"""Which hooks get into a program's settings, and out again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recalld.hooks.installation import NotEditable, install, is_ours, uninstall, wanted_hooks

COMMAND = "/opt/recalld/bin/recalld hook claude-code"
THEIRS = {"matcher": "Bash", "hooks": [{"type": "command", "command": "say hi"}]}


def installed(before: Any, command: str = COMMAND, program: str = "claude-code") -> Any:
    text = before if isinstance(before, str) else json.dumps(before, indent=2)
    changes = install(text, program, command)
    return json.loads(changes[-1].edit.apply(changes[-1].before)) if changes else json.loads(text)


def removed(before: Any, program: str = "claude-code") -> Any:
    text = json.dumps(before, indent=2)
    changes = uninstall(text, program)
    return json.loads(changes[-1].edit.apply(changes[-1].before)) if changes else before


def test_all_hooks_join_an_empty_file_and_only_the_last_one_is_waited_for() -> None:
    hooks = installed({})["hooks"]
    assert set(hooks) == {"SessionStart", "PreCompact", "PostCompact", "Stop", "SessionEnd"}
    handlers = {event: groups[0]["hooks"][0] for event, groups in hooks.items()}
    assert {handler["command"] for handler in handlers.values()} == {COMMAND}
    assert {event for event, handler in handlers.items() if not handler.get("async")} == {"SessionEnd"}


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
    assert removed(after) == before


def test_installing_twice_changes_nothing() -> None:
    after = installed({"hooks": {"Stop": [THEIRS]}})
    assert install(json.dumps(after), "claude-code", COMMAND) == []


def test_hooks_of_another_installation_or_home_are_replaced() -> None:
    old = installed({"hooks": {"Stop": [THEIRS]}}, "/old/python -m recalld hook claude-code --home /h")
    new = installed(old)
    assert "/old/" not in json.dumps(new)
    assert new == installed({"hooks": {"Stop": [THEIRS]}})


def test_a_handler_that_somebody_put_into_a_group_of_theirs_is_taken_out_of_it() -> None:
    (theirs,) = THEIRS["hooks"]
    mixed = {"hooks": [theirs, {"type": "command", "command": COMMAND}]}
    assert removed({"hooks": {"Stop": [mixed]}}) == {"hooks": {"Stop": [{"hooks": [theirs]}]}}


def test_doubled_hooks_become_single() -> None:
    group = wanted_hooks("claude-code", COMMAND)["Stop"]
    assert installed({"hooks": {"Stop": [group, group]}}) == installed({"hooks": {"Stop": [group]}})


def test_what_removing_leaves_empty_goes_too_and_what_was_empty_stays() -> None:
    assert removed(installed({"a": 1})) == {"a": 1}
    assert removed({"hooks": {"Stop": []}}) == {"hooks": {"Stop": []}}


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1,}', "not valid JSON"),
        ("// comment\n{}", "not valid JSON"),
        ("[]", "JSON object"),
        ('{"hooks": []}', '"hooks"'),
        ('{"hooks": {"Stop": {}}}', '"hooks.Stop"'),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_file_that_is_not_what_its_program_reads_is_refused(text: str, words: str) -> None:
    for change in (lambda: install(text, "claude-code", COMMAND), lambda: uninstall(text, "claude-code")):
        with pytest.raises(NotEditable, match=words):
            change()


def test_items_that_are_no_groups_are_left_alone() -> None:
    odd = {"hooks": {"Stop": [None, 3, "x", {"hooks": None}, {"hooks": [None, 4]}]}}
    assert installed(odd)["hooks"]["Stop"][1:] == odd["hooks"]["Stop"]
    assert removed(odd) == odd
