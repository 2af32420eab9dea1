"""Hooks that make a program call recalld, written into the program's settings.

Claude Code's settings.json and Codex's hooks.json share one shape: `hooks.<event>` is a list of groups with a `matcher`
and `hooks`, each of these `{type: "command", command, timeout}` (code.claude.com/docs/en/hooks,
developers.openai.com/codex/hooks). OpenClaw's hook is a folder with two files, which a user puts in its place.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from producers.hook_events import OPENCLAW_EVENTS
from recalld.settings.replacement import kept_in, replace_file
from schemas.errors import UserError

#: Program -> its events that call us, and seconds that it gives a hook.
_EVENTS = {
    "claude-code": (("SessionStart", "PreCompact", "PostCompact", "Stop", "SessionEnd"), 10),
    "codex": (("SessionStart", "PreCompact", "PostCompact", "Stop"), 3),
}


def with_hooks(
    settings: Mapping[str, Any], program: str, command: str | None, *, waiting: Collection[str] = ()
) -> dict[str, Any]:
    """Return the settings with hooks that call `command` in place of all hooks of ours; None removes them.

    The program waits for the command at the events `waiting`, and goes on beside it at others if it can.
    Hooks of ours come first. Groups, events and a table that are empty are removed, too.

    Raises:
        ValueError: the hooks in it do not have their program's shape.
    """
    events, seconds = _EVENTS[program]
    handler = {"type": "command", "command": command, "timeout": seconds}
    handlers_by_event: dict[str, list[object]] = {}
    for event in (*events, *waiting) if command is not None else ():
        # Claude Code goes on beside an `async` handler, but its end ends everything beside it.
        beside = program == "claude-code" and event not in ("SessionEnd", *waiting)
        handlers_by_event[event] = [{"hooks": [{**handler, "async": True} if beside else handler]}]
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(groups, list) for groups in hooks.values()):
        raise ValueError('there are no lists of hooks under "hooks"')
    after: dict[str, list[object]] = {}
    for event in dict.fromkeys([*hooks, *handlers_by_event]):
        groups = [*handlers_by_event.get(event, ()), *_others(hooks.get(event, ()), program)]
        if groups:
            after[event] = groups
    rest = {key: value for key, value in settings.items() if after or key != "hooks"}
    return {**rest, "hooks": after} if after else rest


def _others(groups: Iterable[Any], program: str) -> Iterator[object]:
    """Yield the groups without our handlers."""
    for group in groups:
        handlers = group.get("hooks") if isinstance(group, dict) else None
        theirs = (
            [handler for handler in handlers if not is_ours(handler, program)]
            if isinstance(handlers, list)
            else handlers
        )
        if theirs == handlers:
            yield group
        elif theirs:
            yield {**group, "hooks": theirs}


def is_ours(handler: object, program: str) -> bool:
    """Return True if a handler calls `recalld hook <program>`, wherever that recalld is or was."""
    command = handler.get("command") if isinstance(handler, dict) else None
    pattern = rf"recalld(/__main__\.py)?['\"]?(\s.*)?\shook {program}(\s|$)"
    return isinstance(command, str) and bool(re.search(pattern, command))


def change_hooks(
    file: Path, program: str, command: str, *, removing: bool, agreed: bool, waiting: Collection[str] = ()
) -> bool:
    """Install the hooks of `command`, or remove those of any recalld. Return True if the file was changed.

    The rest of the file keeps its content and gets an indentation of two spaces; a copy keeps the file as it was.

    Raises:
        UserError: the file cannot be read as JSON or written; exit code 2 where no user can be asked.
    """
    target = Path(os.path.realpath(file))  # a link stays a link
    try:
        before = target.read_bytes() if target.exists() else None
        settings = json.loads((before or b"{}").decode("utf-8-sig").strip() or "{}")
        changed = with_hooks(settings, program, None if removing else command, waiting=waiting)
        text = json.dumps(changed, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{file} is not a plain JSON object ({error}); comments would be lost, so nothing was changed: mend it, or "
            "name another with --settings"
        ) from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})") from None
    if changed == settings:
        click.echo(f"{file}: {'no hooks of recalld are there' if removing else 'the hooks are there already'}")
        return False
    events = ", ".join(dict.fromkeys((*_EVENTS[program][0], *waiting)))
    click.echo(f"- {file}: hooks of recalld" if removing else f"+ {file}: hooks at {events} call {command}")
    if not agreed and not sys.stdin.isatty():
        raise UserError(f"{file} was not changed: say --yes to write what is shown", exit_code=2)
    if not agreed and not click.confirm(f"Write this to {file}?", default=False):
        raise UserError("nothing was changed")
    try:
        if (target.read_bytes() if target.exists() else None) != before:
            raise UserError(f"{file} was changed by another program meanwhile; nothing was written, try again")
        # Half a character, which UTF-8 does not have, is written as an escape.
        copy = replace_file(target, text.encode("utf-8", "backslashreplace"), before=before)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); nothing was changed") from None
    click.echo(f"{file} is written{kept_in(copy)}")
    return True


# OpenClaw's hook


def openclaw_hook(command: str) -> dict[str, str]:
    """Return file name -> content. The handler passes on the session's name, and nothing of its content."""
    program, *arguments = map(json.dumps, shlex.split(command))
    return {
        "HOOK.md": _DESCRIPTION.format(events=json.dumps(OPENCLAW_EVENTS)),
        "handler.ts": _HANDLER.format(program=program, arguments=", ".join(arguments)),
    }


_TEXT = r'"(?:[^"\\\n]|\\.)*+"'
_SPAWN = re.compile(rf"spawn\(({_TEXT}), (\[(?:{_TEXT}(?:, )?)*+\]), ")


def spawned(handler: str) -> list[str]:
    """Return the command that a handler of ours calls.

    Raises:
        ValueError: it is another program's handler.
    """
    match = _SPAWN.search(handler)
    if match is None:
        raise ValueError("this handler calls nothing")
    return [str(json.loads(match[1])), *map(str, json.loads(match[2]))]


_DESCRIPTION = """\
---
name: recalld
description: "Tell recalld that a session grew, was compacted or ended"
metadata: {{"openclaw": {{"events": {events}}}}}
---
"""

_HANDLER = """\
import {{ spawn }} from "node:child_process";

const kept =
  "type action sessionKey context sessionEntry previousSessionEntry sessionId sessionFile".split(" ");

export default async function handler(event) {{
  const child = spawn({program}, [{arguments}], {{ stdio: ["pipe", "ignore", "ignore"] }});
  child.on("error", () => {{}});
  child.stdin.on("error", () => {{}});
  child.stdin.end(JSON.stringify(event, kept));
  child.unref();
}}
"""
