"""The hooks that make a program call recalld: the command line that they call, and the edits of a settings file.

Claude Code's settings.json and Codex's hooks.json share one shape: `hooks.<event>` is a list of groups with a `matcher`
and `hooks`, each of these `{type: "command", command, timeout}` (code.claude.com/docs/en/hooks,
developers.openai.com/codex/hooks).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from recalld.file_replacing import replace_file
from recalld.invocation import Invocation
from recalld.json_editing import Edit, Step, insert_item, insert_member, remove, shown
from recalld.own_processes import own_command
from recalld.settings.load import find_config, find_home
from schemas.errors import UserError

#: Seconds after which the program stops waiting for us.
TIMEOUT_SECONDS = 10

#: Codex allows its SessionEnd-like hooks three seconds and complains about more.
CODEX_TIMEOUT_SECONDS = 3

_BOM = "\ufeff"


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
    """Return what has to change so that exactly these hooks of ours are in the file; nothing when they are already.

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
    """Return what has to change so that no hook of ours is in the file.

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
    """Return True if a handler calls `recalld hook <program>`, wherever that recalld is or was."""
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


# On the disk


def change_hooks(file: Path, program: str, command: str, *, removing: bool, agreed: bool) -> bool:
    """Install the hooks of `command`, or remove those of any recalld. True when the file was changed.

    Everything else in the file stays as it is, to the character.

    Raises:
        UserError: the file is damaged or cannot be written; exit code 2 where no person can be asked.
    """
    # What is behind a link is written, not the link.
    target = Path(os.path.realpath(file))
    before = _read(target)
    text = (before or "").removeprefix(_BOM)
    try:
        start = text if text.strip() else "{}\n"
        changes = uninstall(start, program) if removing else install(start, program, command)
    except NotEditable as error:
        raise UserError(f"{file} {error}; nothing was changed: mend it, or name another with --settings") from None
    if not changes:
        click.echo(f"{file}: {'no hooks of recalld are there' if removing else 'the hooks are there already'}")
        return False
    click.echo(f"{'---' if removing else '+++'} {file}{' (new)' if before is None else ''}")
    for change in changes:
        for line in shown(change.before, change.edit):
            click.secho(line, fg={"+": "green", "-": "red"}.get(line[0]))
    if not agreed:
        _ask(file)
    if _read(target) != before:
        raise UserError(f"{file} was changed by another program meanwhile; nothing was written, try again")
    after = changes[-1].edit.apply(changes[-1].before)
    copy = _replace(target, before, (_BOM if (before or "").startswith(_BOM) else "") + after)
    click.echo(f"{file} is written" + (f"; what was there before is in {copy.name} beside it" if copy else ""))
    return True


def _read(file: Path) -> str | None:
    """The text, None when there is no file."""
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text; nothing was changed") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})") from None


def _ask(file: Path) -> None:
    if not sys.stdin.isatty():
        raise UserError(f"{file} was not changed: say --yes to write what is shown", exit_code=2)
    if not click.confirm(f"Write this to {file}?", default=False):
        raise UserError("nothing was changed")


def _replace(file: Path, before: str | None, after: str) -> Path | None:
    try:
        return replace_file(file, after.encode(), before=None if before is None else before.encode())
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror}); nothing was changed") from None


def hook_command(invocation: Invocation, program: str) -> str:
    """`recalld hook <program>` with absolute paths, and with the options without which it would mean another home."""
    words = [*_this_program(), "hook", program]
    home = invocation.home_path
    # The program that calls us may have another environment than this shell.
    if home != find_home(environment={}):
        words += ["--home", str(home)]
    config = find_config(invocation.config, home=home)
    if config is not None and config != find_config(home=home, environment={}):
        words += ["--config", str(config)]
    if invocation.agent is not None:
        words += ["--agent", invocation.agent]
    return shlex.join(words)


def _this_program() -> list[str]:
    for script in (Path(sys.argv[0]), Path(sys.executable).with_name("recalld")):
        if script.name == "recalld" and script.is_file():
            return [str(script.absolute())]
    return own_command("recalld")
