"""Removal of everything that recalld made for a home, but nothing else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from memory.status.condition_texts import counted
from memory.status.run_files import socket_path
from recalld.connect import Change, Plan, plan_removal
from recalld.discover.memories import TITLE_BEGINNING
from recalld.hooks.installation import hooks_changed, our_commands, spawned
from recalld.invocation import Invocation
from recalld.runs.status import size
from recalld.settings.home_files import files_of, remove_files, size_of
from recalld.settings.load import find_config, find_home, indexes_folder, program_folders
from recalld.up.detached import stop
from recalld.up.lock import has_processes
from recalld.up.units import Service
from schemas.errors import UserError

#: Files that stay and are listed before the rest is only counted.
_LISTED = 10

#: In the names of copies (`recalld.settings.replacement`).
_COPY = ".before-recalld-"

#: The package, in an environment or in a checkout.
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Removal:
    """Everything to remove for a home: `plan` for other programs' settings, OpenClaw's hook, files.

    `copies_beside`: settings of other programs, whose copies are removed. `staying`: sentences about other files.
    """

    home: Path
    indexes: Path
    service: Service | None
    plan: Plan
    copies_beside: tuple[Path, ...]
    openclaw: tuple[Path, ...]
    settings: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    staying: tuple[str, ...] = ()

    @classmethod
    def of(cls, invocation: Invocation, service: Service | None, *, keep_home: bool) -> Removal:
        """Look for everything that recalld made for the home of a call. Changes nothing."""
        home, folders = invocation.home_path, program_folders()
        config = find_config(invocation.config, home=home)
        indexes = indexes_folder(home, config)
        plan = plan_removal(home)
        changed_files = [Path(change.removes.file) for change in plan.changes if change.removes is not None]
        for program, file in folders.hook_files.items():
            if file not in changed_files and _plan_hooks(home, program, file, plan):
                changed_files.append(file)
        openclaw = [state / "hooks" / "recalld" for state in folders.openclaw if _is_hook(home, state)]
        removal = cls(home, indexes, service, plan, tuple(changed_files), tuple(openclaw))
        if keep_home:
            return replace(removal, staying=(*plan.remarks, f"{home} stays"))
        files, foreign_files = files_of(home, indexes)
        settings, staying = [], [*plan.remarks]
        for file in [config, *_copies(config)] if config is not None else ():
            # Settings in the user's folder belong to the home that commands use without --home.
            if _is_written_by_us(file) and (file.parent == home or home == find_home()):
                settings.append(file)
            elif file.parent != home:
                staying.append(f"{file} stays: it was not written by recalld for this home")
        staying += [
            f"{file} stays: recalld did not make it" for file in foreign_files[:_LISTED] if file not in settings
        ]
        staying += [f"{len(foreign_files) - _LISTED} more files stay"] if len(foreign_files) > _LISTED else []
        return replace(removal, settings=tuple(settings), files=tuple(files), staying=tuple(staying))

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to remove."""
        return not (self.service or self.plan.changes or self.openclaw or self.files or self.settings)

    def lines(self) -> Iterator[str]:
        """Yield a line for each file or folder to remove, and for those that stay."""
        if self.service is not None:
            yield f"- {self.service.file}: the service"
        yield from (change.line for change in self.plan.changes)
        yield from (f"- {copy}: a copy that recalld kept" for file in self.copies_beside for copy in _copies(file))
        yield from (f"- {folder}: the hook; then type `openclaw hooks disable recalld`" for folder in self.openclaw)
        yield from (f"- {file}: settings" for file in self.settings)
        if self.files:
            total = sum(size_of(file) or 0 for file in self.files)
            yield f"- {self.home}: {counted(len(self.files), 'file')}, {size(total)}"
        if self.is_empty:
            yield f"nothing of recalld is there for {self.home}"
        yield from (f"  {sentence}" for sentence in self.staying)

    def run(self) -> None:
        """Stop recalld, then remove everything of it.

        Raises:
            UserError: a process does not end, or a file cannot be changed.
        """
        if self.service is not None:
            self.service.remove()
        stop(self.home, on_wait=lambda pid: click.echo(f"stopping process {pid}"))
        if has_processes(self.home):
            raise UserError(f"processes of {self.home} that were started on their own still run; stop them first")
        for _ in self.plan.carry_out(self.home):
            pass  # its sentences name copies, which are removed as well
        handlers = [folder / name for folder in self.openclaw for name in ("HOOK.md", "handler.ts")]
        copies = [copy for file in self.copies_beside for copy in _copies(file)]
        try:
            for file in (*handlers, *copies, *self.settings):
                file.unlink(missing_ok=True)
            for folder in (*self.openclaw, *{file.parent for file in self.settings if file.parent.name == "recalld"}):
                with suppress(OSError):
                    folder.rmdir()
            if self.files:
                remove_files(list(self.files), self.home, self.indexes)
                if (socket := socket_path(self.home)).parent.parent != self.home:
                    socket.unlink(missing_ok=True)
                    socket.parent.rmdir()
        except OSError as error:
            raise UserError(f"{error.filename} cannot be removed ({error.strerror}); what is left stays") from None


def program_sentence() -> str:
    """Return a sentence about the removal of the program, for the way in which it was installed."""
    root, prefix = _PACKAGE.parent, Path(sys.prefix)
    if (root / "pyproject.toml").exists():
        return f"the program stays; it is the checkout {root}"
    receipts = {"pipx_metadata.json": "pipx uninstall recalld", "uv-receipt.toml": "uv tool uninstall recalld"}
    by_pip = f"{shlex.quote(sys.executable)} -m pip uninstall recalld"
    command = next((command for file, command in receipts.items() if (prefix / file).exists()), by_pip)
    return f"the program stays; `{command}` removes it"


def _plan_hooks(home: Path, program: str, file: Path, plan: Plan) -> bool:
    """Plan to remove hooks that `recalld hook install` wrote. Return True if there are any of this home."""
    try:
        settings, changed = hooks_changed(file, program, None)
        commands = our_commands(settings.tree, program)
    except (UserError, LookupError, TypeError, AttributeError) as error:
        plan.remarks.append(f"hooks of recalld in {file} stay, if there are any: {error}")
        return False
    if not any(_home_of(command) == home for command in commands):
        plan.remarks.extend([f"{file} stays: its hooks are of another home"] if commands else [])
        return False

    def apply() -> str:
        settings.replace(changed or None)
        return f"hooks are taken out of {file}"

    plan.changes.append(Change(f"- {file}: hooks of recalld", apply))
    return True


def _home_of(command: str) -> Path:
    with suppress(ValueError, IndexError):
        words = shlex.split(command)
        return Path(words[words.index("--home") + 1])
    return find_home(environment={})


def _is_hook(home: Path, state: Path) -> bool:
    """Return True if the folder of OpenClaw has the hook that recalld prints, for this home."""
    try:
        return _home_of(shlex.join(spawned((state / "hooks" / "recalld" / "handler.ts").read_text("utf-8")))) == home
    except (OSError, ValueError):
        return False


def _copies(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}{_COPY}*"))


def _is_written_by_us(file: Path) -> bool:
    try:
        return file.read_text("utf-8").startswith(TITLE_BEGINNING)
    except (OSError, ValueError):
        return False
