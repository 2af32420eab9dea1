"""Removal of everything that recalld made for a home, but nothing else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from memory.status.condition_texts import counted
from memory.status.run_files import socket_path
from recalld.discover.memories import TITLE
from recalld.hooks.installation import change_hooks, our_commands, spawned
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

#: The package, in an environment or in a checkout.
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Removal:
    """Files to remove: `hooks` by program, folders of OpenClaw's hook, those of the home, and copies of settings.

    `staying`: sentences about files that recalld did not make, or that other homes use.
    """

    home: Path
    indexes: Path
    service: Service | None
    hooks: dict[str, Path]
    openclaw: tuple[Path, ...]
    files: tuple[Path, ...]
    settings: tuple[Path, ...]
    staying: tuple[str, ...]

    @classmethod
    def of(cls, invocation: Invocation, service: Service | None, *, keep_home: bool) -> Removal:
        """Look for everything that recalld made for the home of a call. Changes nothing."""
        home = invocation.home_path
        config = find_config(invocation.config, home=home)
        indexes, folders = indexes_folder(home, config), program_folders()
        staying: list[str] = []
        hooks = {program: file for program, file in folders.hook_files.items() if _calls(home, file, program, staying)}
        openclaw = [state / "hooks" / "recalld" for state in folders.openclaw if _is_hook(home, state)]
        copies = [copy for file in hooks.values() for copy in _copies(file)]
        if keep_home:
            return cls(home, indexes, service, hooks, tuple(openclaw), (), tuple(copies), (*staying, f"{home} stays"))
        files, others = files_of(home, indexes)
        for file in [config, *_copies(config)] if config is not None else ():
            # Settings in the user's folder belong to the home that commands use without --home.
            if _is_written_by_us(file) and (file.parent == home or home == find_home()):
                copies.append(file)
            elif file.parent != home:
                staying.append(f"{file} stays: it was not written by recalld for this home")
        staying += [f"{file} stays: recalld did not make it" for file in others[:_LISTED] if file not in copies]
        staying += [f"{len(others) - _LISTED} more files stay"] if len(others) > _LISTED else []
        return cls(home, indexes, service, hooks, tuple(openclaw), tuple(files), tuple(copies), tuple(staying))

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to remove."""
        return not (self.service or self.hooks or self.openclaw or self.files or self.settings)

    def lines(self) -> Iterator[str]:
        """Yield what is removed, a line each, and what stays."""
        if self.service is not None:
            yield f"- service: {self.service.file}"
        for program, file in self.hooks.items():
            yield f"- hooks of {program} in {file}"
        for folder in self.openclaw:
            yield f"- hook of openclaw: {folder} (then `openclaw hooks disable recalld`)"
        for file in self.settings:
            yield f"- settings: {file}"
        if self.files:
            total = sum(size_of(file) or 0 for file in self.files)
            yield f"- home: {self.home} ({counted(len(self.files), 'file')}, {size(total)}: indexes, paid embeddings, logs)"
        if self.is_empty:
            yield f"nothing of recalld is there for {self.home}"
        yield from (f"  {sentence}" for sentence in self.staying)

    def run(self) -> None:
        """Stop what runs, then remove it all.

        Raises:
            UserError: a process does not end, or a file cannot be changed.
        """
        if self.service is not None:
            self.service.remove()
        stop(self.home, on_wait=lambda pid: click.echo(f"stopping process {pid}"))
        if has_processes(self.home):
            raise UserError(f"processes of {self.home} that were started on their own still run; stop them first")
        for program, file in self.hooks.items():
            change_hooks(file, program, "", removing=True, agreed=True)
        try:
            made = [copy for file in self.hooks.values() for copy in _copies(file)]
            made += [folder / name for folder in self.openclaw for name in ("HOOK.md", "handler.ts")]
            for file in (*made, *self.settings):
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

    @staticmethod
    def program_command() -> str:
        """Return the command that removes the program, for the way in which it was installed."""
        root, prefix = _PACKAGE.parent, Path(sys.prefix)
        if (prefix / "pipx_metadata.json").exists():
            return "`pipx uninstall recalld`"
        if (prefix / "uv-receipt.toml").exists():
            return "`uv tool uninstall recalld`"
        if (root / "pyproject.toml").exists():
            return f"`rm -r {shlex.quote(str(root))}`"
        return f"`{shlex.quote(sys.executable)} -m pip uninstall recalld`"


def _calls(home: Path, file: Path, program: str, staying: list[str]) -> bool:
    """Return True if a program's hooks call recalld for this home. Hooks of another home stay."""
    try:
        commands = our_commands(file, program)
    except (OSError, ValueError):
        staying.append(f"{file} cannot be read: look yourself for hooks of recalld")
        return False
    is_of_home = any(_home_of(command) == home for command in commands)
    if commands and not is_of_home:
        staying.append(f"{file} stays: its hooks are of another home")
    return is_of_home


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
    return sorted(file.parent.glob(f"{file.name}.before-recalld-*"))


def _is_written_by_us(file: Path) -> bool:
    try:
        return file.read_text("utf-8").startswith(TITLE.splitlines()[0])
    except (OSError, ValueError):
        return False
