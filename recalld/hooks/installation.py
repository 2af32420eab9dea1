"""Hooks that make a program call recalld, written into the program's settings.

Claude Code's settings.json and Codex's hooks.json share one shape: `hooks.<event>` is a list of groups with a `matcher`
and `hooks`, each of these `{type: "command", command, timeout}` (code.claude.com/docs/en/hooks,
developers.openai.com/codex/hooks). OpenClaw's hook is a folder with two files, which a user puts in its place.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from producers.hook_payloads import OPENCLAW_EVENTS
from recalld.settings.replacement import replace_file
from schemas.errors import UserError

#: Program -> its events that call us, and what their handlers say beside the command. Claude Code goes on beside an
#: `async` handler, but its end ends everything beside it. Codex allows its hooks three seconds.
_EVENTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "claude-code": {
        **{name: {"timeout": 10, "async": True} for name in ("SessionStart", "PreCompact", "PostCompact", "Stop")},
        "SessionEnd": {"timeout": 10},
    },
    "codex": {name: {"timeout": 3} for name in ("SessionStart", "Stop", "PreCompact", "PostCompact")},
}


#: Program -> what a handler says beside the command if the program waits for it.
_WAITING = {"claude-code": {"timeout": 10}, "codex": {"timeout": 3}}


class NotEditable(Exception):
    """Raised for a file that its program could not read either, or would lose something by being written anew."""


def wanted_hooks(program: str, command: str, *, waiting: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Return event -> the group that calls `command` for it, without a matcher: at every start of a session.

    The program waits at the events `waiting` for what the command does, and goes on beside it at others if it can.
    """
    handler = {"type": "command", "command": command}
    events = {**_EVENTS[program], **dict.fromkeys(waiting, _WAITING[program])}
    return {event: {"hooks": [{**handler, **more}]} for event, more in events.items()}


def with_hooks(
    settings: Mapping[str, Any], program: str, command: str | None, *, waiting: Collection[str] = ()
) -> dict[str, Any]:
    """Return settings whose only hooks of ours are those that call `command`, or without any.

    Groups, events and a table that removed hooks leave empty are removed, too.

    Raises:
        NotEditable: the hooks in it do not have their program's shape.
    """
    wanted = wanted_hooks(program, command, waiting=waiting) if command is not None else {}
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise NotEditable('has something else than an object under "hooks"')
    after: dict[str, list[Any]] = {}
    for event, groups in hooks.items():
        if not isinstance(groups, list):
            raise NotEditable(f'has something else than a list under "hooks.{event}"')
        others = list(_others(groups, program, wanted.get(event)))
        if others or not groups:
            after[event] = others
    for event, group in wanted.items():
        groups = after.get(event, [])
        after[event] = groups if group in groups else [group, *groups]
    changed = {**settings, "hooks": after}
    if not after and settings.get("hooks") != after:
        del changed["hooks"]
    return changed


def _others(groups: list[Any], program: str, keep: object) -> Iterator[Any]:
    """Yield the groups without our handlers; of groups that equal `keep`, yield the first."""
    for number, group in enumerate(groups):
        handlers = group.get("hooks") if isinstance(group, dict) else None
        theirs = [one for one in handlers if not is_ours(one, program)] if isinstance(handlers, list) else handlers
        if theirs == handlers or (group == keep and group not in groups[:number]):
            yield group
        elif theirs:
            yield {**group, "hooks": theirs}


def is_ours(handler: object, program: str) -> bool:
    """Return True if a handler calls `recalld hook <program>`, wherever that recalld is or was."""
    command = handler.get("command") if isinstance(handler, dict) else None
    return isinstance(command, str) and bool(re.search(rf"recalld['\"]?(\s.*)?\shook {program}(\s|$)", command))


# Settings files of Claude Code and Codex


def change_hooks(
    file: Path, program: str, command: str, *, removing: bool, agreed: bool, waiting: Collection[str] = ()
) -> bool:
    """Install the hooks of `command`, or remove those of any recalld. Return True if the file was changed.

    The rest of the file keeps its content and gets an indentation of two spaces; a copy keeps the file as it was.

    Raises:
        UserError: the file cannot be read as JSON or written; exit code 2 where no user can be asked.
    """
    # A link stays a link: its target is written.
    target = Path(os.path.realpath(file))
    before = _content(target)
    try:
        settings = _parsed(before or b"{}")
        changed = with_hooks(settings, program, None if removing else command, waiting=waiting)
        shown, text = _rendered(settings), _rendered(changed)
    except NotEditable as error:
        raise UserError(f"{file} {error}; nothing was changed: mend it, or name another with --settings") from None
    if changed == settings:
        click.echo(f"{file}: {'no hooks of recalld are there' if removing else 'the hooks are there already'}")
        return False
    click.echo(f"{'---' if removing else '+++'} {file}{' (new)' if before is None else ''}")
    for line in _difference(shown, text):
        click.secho(line, fg={"+": "green", "-": "red"}.get(line[0]))
    if before is not None and before.decode("utf-8-sig") != shown:
        click.echo("The rest of the file keeps its content; its lines get an indentation of two spaces.")
    if not agreed and not sys.stdin.isatty():
        raise UserError(f"{file} was not changed: say --yes to write what is shown", exit_code=2)
    if not agreed and not click.confirm(f"Write this to {file}?", default=False):
        raise UserError("nothing was changed")
    if _content(target) != before:
        raise UserError(f"{file} was changed by another program meanwhile; nothing was written, try again")
    try:
        # Half a character, which UTF-8 does not have, is written as an escape.
        copy = replace_file(target, text.encode("utf-8", "backslashreplace"), before=before)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); nothing was changed") from None
    click.echo(f"{file} is written" + (f"; what was there before is in {copy.name} beside it" if copy else ""))
    return True


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})") from None


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content.decode("utf-8-sig").strip() or "{}", object_pairs_hook=_unique)
        _rendered(found)
    except (ValueError, RecursionError) as error:
        line = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise NotEditable(
            f"is not plain JSON{line}: comments, members of one name, infinite or very long numbers and very deep "
            "nesting would be lost"
        ) from None
    if not isinstance(found, dict):
        raise NotEditable("does not hold a JSON object")
    return found


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(members)) < len(members):
        raise ValueError
    return found


def _rendered(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _difference(before: str, after: str) -> Iterator[str]:
    """Yield the changed lines alone: other lines may hold keys. A comma at the end of a line is no change."""
    old, new = before.splitlines(), after.splitlines()
    first, second = ([line.rstrip(",") for line in lines] for lines in (old, new))
    for tag, start, end, at, to in difflib.SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag != "equal":
            yield f"@@ line {at + 1} @@"
            yield from (f"-{line}" for line in old[start:end])
            yield from (f"+{line}" for line in new[at:to])


# OpenClaw's hook


def openclaw_hook(command: str) -> dict[str, str]:
    """Return file name -> content. The handler passes on the session's name, and nothing of its content."""
    program, *arguments = shlex.split(command)
    metadata = {"openclaw": {"events": list(OPENCLAW_EVENTS)}}
    return {
        "HOOK.md": (
            "---\n"
            "name: recalld\n"
            'description: "Tell recalld that a session grew, was compacted or ended"\n'
            f"metadata: {json.dumps(metadata)}\n"
            "---\n"
        ),
        "handler.ts": _HANDLER.format(program=json.dumps(program), arguments=json.dumps(arguments)),
    }


def spawned(handler: str) -> list[str]:
    """Return the command that a handler of ours calls.

    Raises:
        ValueError: it is another program's handler.
    """
    found = re.search(r'spawn\(("(?:[^"\\]|\\.)*"), (\[.*?\]), ', handler)
    if found is None:
        raise ValueError("this handler calls nothing")
    return [str(json.loads(found[1])), *map(str, json.loads(found[2]))]


_HANDLER = """\
import {{ spawn }} from "node:child_process";

const session = (entry) => entry && {{ sessionId: entry.sessionId, sessionFile: entry.sessionFile }};

export default async function handler(event) {{
  const context = event.context ?? {{}};
  const child = spawn({program}, {arguments}, {{ stdio: ["pipe", "ignore", "ignore"] }});
  child.on("error", () => {{}});
  child.stdin.on("error", () => {{}});
  child.stdin.end(
    JSON.stringify({{
      type: event.type,
      action: event.action,
      sessionKey: event.sessionKey,
      context: {{
        ...session(context),
        sessionEntry: session(context.sessionEntry),
        previousSessionEntry: session(context.previousSessionEntry),
      }},
    }}),
  );
  child.unref();
}}
"""
