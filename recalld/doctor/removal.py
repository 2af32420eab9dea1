"""Removal of everything that recalld made for a home, but nothing else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from glob import escape
from pathlib import Path

from memory.status.condition_texts import counted
from memory.status.run_files import socket_path
from recalld.connect import Change, Plan
from recalld.discover.memories import TITLE_BEGINNING
from recalld.hooks.installation import hooks_changed, our_commands, spawned
from recalld.invocation import Invocation
from recalld.runs.status import size
from recalld.settings.home_files import files_of, remove_files, size_of
from recalld.settings.load import find_config, find_home, indexes_folder, program_folders
from schemas.errors import UserError

#: End of the names of copies (`recalld.settings.replacement`).
_COPIES = ".before-recalld-*"

#: Files that stay and are listed before the rest is only counted.
_LISTED = 10


def plan_hooks(home: Path, connections: Plan) -> Plan:
    """Plan to remove the hooks of this home that `recalld hook install` wrote, and the copies of all settings files."""
    plan, folders = Plan(), program_folders()
    files = [Path(change.removes.file) for change in connections.changes if change.removes is not None]
    for program, file in folders.hook_files.items():
        if file in files:
            continue
        try:
            settings, changed = hooks_changed(file, program, None)
            commands = our_commands(settings.tree, program)
        except (UserError, LookupError, TypeError, AttributeError) as error:
            plan.remarks.append(f"hooks of recalld in {file} stay, if there are any: {error}")
            continue
        if any(_home_of(command) == home for command in commands):
            files.append(file)
            _add(plan, f"{file}: hooks of recalld", partial(settings.replace, changed or None))
        elif commands:
            plan.remarks.append(f"{file} stays: its hooks are of another home")
    for folder in (state / "hooks" / "recalld" for state in folders.openclaw):
        with suppress(OSError, ValueError):
            if _home_of(shlex.join(spawned((folder / "handler.ts").read_text("utf-8")))) == home:
                advice = "then type `openclaw hooks disable recalld`"
                _add(plan, f"{folder}: the hook; {advice}", partial(_remove, folder, "HOOK.md", "handler.ts"))
    for file in files:
        # This removal leaves copies, too.
        _add(plan, f"{file}{_COPIES}: copies", partial(_remove, file.parent, escape(file.name) + _COPIES))
    return plan


def plan_home(invocation: Invocation) -> Plan:
    """Plan to remove the home, and its settings file if recalld wrote it. Other files stay, and are named."""
    plan, home = Plan(), invocation.home_path
    config = find_config(invocation.config, home=home)
    indexes = indexes_folder(home, config)
    files, foreign_files = files_of(home, indexes)
    for file in [config, *config.parent.glob(escape(config.name) + _COPIES)] if config is not None else ():
        # Settings in the user's folder belong to the home that commands use without --home.
        if _is_written_by_us(file) and (file.parent == home or home == find_home()):
            _add(plan, f"{file}: settings", partial(_remove, file.parent, escape(file.name)))
            foreign_files = [foreign for foreign in foreign_files if foreign != file]
        elif file.parent != home:
            plan.remarks.append(f"{file} stays: it was not written by recalld for this home")
    if files:

        def remove_home() -> None:
            # Processes that ended since the plan left files.
            remove_files(files_of(home, indexes)[0], home, indexes)
            if (socket := socket_path(home)).parent.parent != home:
                _remove(socket.parent, socket.name)

        total = size(sum(size_of(file) or 0 for file in files))
        _add(plan, f"{home}: {counted(len(files), 'file')}, {total}", remove_home)
    plan.remarks.extend(f"{file} stays: recalld did not make it" for file in foreign_files[:_LISTED])
    if len(foreign_files) > _LISTED:
        plan.remarks.append(f"{len(foreign_files) - _LISTED} more files stay")
    return plan


def program_sentence() -> str:
    """Return a sentence about the removal of the program, for the way in which it was installed."""
    root, prefix = Path(__file__).resolve().parents[2], Path(sys.prefix)
    if (root / "pyproject.toml").exists():
        return f"the program stays; it is the checkout {root}"
    receipts = {"pipx_metadata.json": "pipx uninstall recalld", "uv-receipt.toml": "uv tool uninstall recalld"}
    by_pip = f"{shlex.quote(sys.executable)} -m pip uninstall recalld"
    command = next((command for file, command in receipts.items() if (prefix / file).exists()), by_pip)
    return f"the program stays; `{command}` removes it"


def _add(plan: Plan, line: str, act: Callable[[], object]) -> None:
    def apply() -> str:
        try:
            act()
        except OSError as error:
            raise UserError(f"{error.filename} cannot be removed ({error.strerror}); the rest stays") from None
        return f"removed {line}"

    plan.changes.append(Change(f"- {line}", apply))


def _remove(folder: Path, *patterns: str) -> None:
    """Remove files, and a folder of ours that becomes empty."""
    for file in [file for pattern in patterns for file in folder.glob(pattern)]:
        file.unlink(missing_ok=True)
    with suppress(OSError):
        if folder.name.startswith("recalld"):
            folder.rmdir()


def _home_of(command: str) -> Path:
    with suppress(ValueError, IndexError):
        words = shlex.split(command)
        return Path(words[words.index("--home") + 1])
    return find_home(environment={})


def _is_written_by_us(file: Path) -> bool:
    try:
        return file.read_text("utf-8").startswith(TITLE_BEGINNING)
    except (OSError, ValueError):
        return False
