"""The hooks that make a program call recalld, as edits of its settings file. Pure: see `hook_files` for the disk.

Claude Code's settings.json and Codex's hooks.json share one shape: `hooks.<event>` is a list of groups with a `matcher`
and `hooks`, each of these `{type: "command", command, timeout}` (code.claude.com/docs/en/hooks,
developers.openai.com/codex/hooks).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recalld.json_editing import Edit, Step, insert_item, insert_member, remove

#: Seconds after which the program stops waiting for us.
TIMEOUT_SECONDS = 10

#: Codex allows its SessionEnd-like hooks three seconds and complains about more.
CODEX_TIMEOUT_SECONDS = 3


class NotEditable(ValueError):
    """The file is not what its program would read; the message says what is wrong, without its content."""


@dataclass(frozen=True, slots=True)
class Change:
    """An edit, and the text that it was made for."""

    before: str
    edit: Edit


def wanted_hooks(program: str, command: str) -> dict[str, dict[str, Any]]:
    """Event -> the group that calls `command` for it."""
    if program == "codex":
        handler = {"type": "command", "command": command, "timeout": CODEX_TIMEOUT_SECONDS}
        return {event: {"hooks": [handler]} for event in ("SessionStart", "Stop", "PreCompact", "PostCompact")}
    waiting = {"type": "command", "command": command, "timeout": TIMEOUT_SECONDS}
    beside = {**waiting, "async": True}
    return {
        "SessionStart": {"hooks": [beside]},  # without a matcher: however it starts
        "PreCompact": {"hooks": [beside]},
        "PostCompact": {"hooks": [beside]},
        "Stop": {"hooks": [beside]},
        # Not beside the program, which ends now and takes with it what runs beside.
        "SessionEnd": {"hooks": [waiting]},
    }


def install(text: str, program: str, command: str) -> list[Change]:
    """What has to change so that exactly these hooks of ours are in the file; nothing when they are already.

    Raises:
        NotEditable: the file is damaged.
    """
    wanted = wanted_hooks(program, command)
    changes = _removed(text, program, keep=wanted)
    text = _after(text, changes)
    for event, group in reversed(wanted.items()):
        hooks = _hooks(text)
        if group in hooks.get(event, []):
            continue
        if event in hooks:
            edit = insert_item(text, ["hooks", event], group)
        elif "hooks" in json.loads(text):
            edit = insert_member(text, ["hooks"], event, [group])
        else:
            # All of them at once: fewer places to look at.
            edit = insert_member(text, [], "hooks", {name: [found] for name, found in wanted.items()})
        changes.append(Change(text, edit))
        text = edit.apply(text)
    return changes


def uninstall(text: str, program: str) -> list[Change]:
    """What has to change so that no hook of ours is in the file.

    Raises:
        NotEditable: the file is damaged.
    """
    return _removed(text, program, keep={})


def _removed(text: str, program: str, *, keep: Mapping[str, Any]) -> list[Change]:
    """Take out our handlers, and every group, event and table that they leave empty; `keep` names groups that stay."""
    changes: list[Change] = []
    while (path := next(_ours(_hooks(text), program, keep), None)) is not None:
        edit = remove(text, path)
        changes.append(Change(text, edit))
        text = edit.apply(text)
    return changes


def _ours(hooks: Mapping[str, list[Any]], program: str, keep: Mapping[str, Any]) -> Iterator[list[Step]]:
    """Paths of what is to go, the outermost that holds nothing else first."""
    places: list[list[Step]] = []
    others = False
    for event, groups in hooks.items():
        stay = 0
        found: list[list[Step]] = []
        seen = False
        for number, group in enumerate(groups):
            if group == keep.get(event) and not seen:
                seen = True  # a second one is one too many
                stay += 1
                continue
            handlers = group.get("hooks") if isinstance(group, dict) else None
            mine = [i for i, handler in enumerate(handlers or []) if is_ours(handler, program)]
            if not mine:
                stay += 1
            elif len(mine) == len(handlers or []):
                found.append(["hooks", event, number])
            else:
                stay += 1
                found += [["hooks", event, number, "hooks", index] for index in mine]
        if found and not stay:
            found = [["hooks", event]]
        others = others or stay > 0 or not found
        places += found
    if places and not others and not keep:
        places = [["hooks"]]
    return iter(places)


def is_ours(handler: object, program: str) -> bool:
    """Whether a handler calls `recalld hook <program>`, wherever that recalld is or was."""
    command = handler.get("command") if isinstance(handler, dict) else None
    return isinstance(command, str) and bool(re.search(rf"recalld['\"]?(\s.*)?\shook {program}(\s|$)", command))


def _hooks(text: str) -> dict[str, list[Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise NotEditable(f"is not valid JSON{where}") from None
    if not isinstance(found, dict):
        raise NotEditable("does not hold a JSON object")
    hooks = found.get("hooks", {})
    if not isinstance(hooks, dict):
        raise NotEditable('has something else than an object under "hooks"')
    for event, groups in hooks.items():
        if not isinstance(groups, list):
            raise NotEditable(f'has something else than a list under "hooks.{event}"')
    return hooks


def _after(text: str, changes: list[Change]) -> str:
    return changes[-1].edit.apply(changes[-1].before) if changes else text
