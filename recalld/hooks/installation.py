"""Hooks that make a program call recalld, written into the program's settings.

Claude Code's settings.json and Codex's hooks.json share one shape: `hooks.<event>` is a list of groups with a `matcher`
and `hooks`, each of these `{type: "command", command, timeout}` (code.claude.com/docs/en/hooks,
developers.openai.com/codex/hooks). OpenClaw's hook is a folder with two files, which a user puts in its place.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from producers.hook_events import OPENCLAW_EVENTS
from recalld.settings.replacement import JsonSettings, kept_in
from schemas.errors import UserError
from schemas.settings import Context

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


def our_commands(settings: Mapping[str, Any], program: str) -> list[str]:
    """Return the command of each handler of ours. Settings of another shape raise TypeError and the like."""
    groups = [group for groups in settings.get("hooks", {}).values() for group in groups]
    handlers = [handler for group in groups for handler in group.get("hooks", [])]
    return [handler["command"] for handler in handlers if is_ours(handler, program)]


def waiting_events(contexts: Collection[Context]) -> list[str]:
    """Return the events at which a program waits for recalld, by the context settings of all agents."""
    waiting = ["SessionStart", "UserPromptSubmit"] if any(context.injection.enabled for context in contexts) else []
    if any(context.session_notes.enabled for context in contexts):
        # `claude -p` tells no end of a session while a hook still runs beside it.
        waiting.append("Stop")
    return waiting


def change_hooks(
    file: Path, program: str, command: str, *, removing: bool, agreed: bool, waiting: Collection[str] = ()
) -> bool:
    """Install the hooks of `command`, or remove those of any recalld. Return True if the file was changed.

    The rest of the file keeps its content and its indentation; a copy keeps the file as it was.

    Raises:
        UserError: the file cannot be read as JSON or written; exit code 2 where no user can be asked.
    """
    settings, changed = hooks_changed(file, program, None if removing else command, waiting=waiting)
    if changed == settings.tree:
        click.echo(f"{file}: {'no hooks of recalld are there' if removing else 'the hooks are there already'}")
        return False
    click.echo(f"- {file}: hooks of recalld" if removing else f"+ {file}: {hooks_at(program, command, waiting)}")
    if not agreed and not sys.stdin.isatty():
        raise UserError(f"{file} was not changed: say --yes to write what is shown", exit_code=2)
    if not agreed and not click.confirm(f"Write this to {file}?", default=False):
        raise UserError("nothing was changed")
    click.echo(f"{file} is written{kept_in(settings.replace(changed))}")
    return True


def hooks_changed(
    file: Path, program: str, command: str | None, *, waiting: Collection[str] = ()
) -> tuple[JsonSettings, dict[str, Any]]:
    """Return a settings file as it is, and its content with the hooks of `command`; None removes those of any recalld.

    Raises:
        UserError: the file cannot be read, or not be written anew without loss.
    """
    settings = JsonSettings.read(file)
    try:
        return settings, with_hooks(settings.tree, program, command, waiting=waiting)
    except ValueError as error:
        raise UserError(f"{file} was left as it is: {error}") from None


def hooks_at(program: str, command: str, waiting: Collection[str] = ()) -> str:
    """Return the description of a program's hooks that call `command`."""
    return f"hooks at {', '.join(dict.fromkeys((*_EVENTS[program][0], *waiting)))} call {command}"


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
