"""Writing hooks into a program's settings file: shown first, asked for, with a copy of what was there before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from recalld.file_replacing import replace_file
from recalld.hook_installing import NotEditable, install, uninstall
from recalld.json_editing import shown
from schemas.errors import UserError

_BOM = "\ufeff"


def change_hooks(file: Path, program: str, command: str, *, removing: bool, agreed: bool) -> bool:
    """Install the hooks of `command`, or remove those of any recalld. True when the file was changed.

    Everything else in the file stays as it is, to the character.

    Raises:
        UserError: the file is damaged or cannot be written; exit code 2 where nobody can be asked.
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
        raise UserError(f"{file} was changed by somebody else meanwhile; nothing was written, try again")
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
