"""`recalld discover`: the memories on this machine, and settings for them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recalld.invocation import Invocation, json_option, pass_unchecked_invocation, to_type
from recalld.runs.status import size
from recalld.terminal_text import print_json, printable_name
from schemas.errors import UserError

if TYPE_CHECKING:
    from recalld.discover.memories import Counted, Discovery, Found

#: The value of --write without a FILE.
_USUAL_PLACE = "\0"

#: Memories of one program that a terminal shows; it shows the number of the others.
LISTED = 40


@click.command("discover")
@json_option
@click.option("--pick", "picks", multiple=True, metavar="NAME", help="Take this one; may be repeated.")
@click.option("--all", "everything", is_flag=True, help="Take everything that was found.")
@click.option(
    "--write",
    "target",
    is_flag=False,
    flag_value=_USUAL_PLACE,
    metavar="[FILE]",
    help="Write settings for what was taken: to FILE (*.toml), else to where recalld looks for them.",
)
@click.option("--force", is_flag=True, help="Replace a settings file that is there; a copy of it is kept.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@pass_unchecked_invocation
def discover(
    invocation: Invocation,
    *,
    as_json: bool,
    picks: tuple[str, ...],
    everything: bool,
    target: str | None,
    force: bool,
    names: tuple[str, ...],
) -> None:
    """List the memories on this machine: of OpenClaw, Claude Code and Codex, Obsidian's vaults, folders of notes.

    Without --write nothing is written; with --pick or --all the settings are shown. OpenClaw's memory.search
    settings are translated, with a note on each without a counterpart; keys are never copied.
    """
    from recalld.discover.machine import discover
    from recalld.discover.settings_file import settings_file
    from recalld.settings.load import program_folders

    if target != _USUAL_PLACE:
        invocation.check_config()  # with it, the named file is written
    if target not in (None, _USUAL_PLACE) and not str(target).endswith(".toml"):
        raise click.UsageError(f"--write takes a FILE that ends in .toml, not {target!r}; names go after --pick")
    discovery = discover(program_folders(), Path.cwd())
    picked = _picked(discovery, (*picks, *names), everything=everything)
    if target is not None:
        if not picked:
            raise UserError(f"--write: say what to take, with --pick NAME or --all ({_names(discovery)})", exit_code=2)
        text = settings_file(picked)
        file, copy = _write(invocation, target, text, force=force)
        if as_json:
            print_json(
                {"written": str(file), "kept": str(copy) if copy else None, "picked": [one.name for one in picked]}
            )
            return
        click.echo(text, nl=False)
        click.echo(f"# written to {file}" + (f"; what was there before is in {copy.name} beside it" if copy else ""))
        named = "" if target == _USUAL_PLACE else f" --config {shlex.quote(str(file))}"
        click.echo(to_type(f"# `recalld up{named}` starts with it"))
    elif as_json:
        print_json(discovery_json(discovery))
    elif picked:
        click.echo(settings_file(picked), nl=False)
        click.echo("# Nothing was written; --write does.")
    else:
        for line in discovery_lines(discovery):
            click.echo(line)
        click.echo(to_type(_what_next(discovery)))


def _picked(discovery: Discovery, names: tuple[str, ...], *, everything: bool) -> list[Found]:
    wanted = [name for text in names for name in text.split(",") if name]
    known = {one.name for one in discovery.found}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UserError(f"nothing that was found is called {', '.join(unknown)} ({_names(discovery)})", exit_code=2)
    return [one for one in discovery.found if everything or one.name in wanted]


def _names(discovery: Discovery) -> str:
    return f"found: {', '.join(one.name for one in discovery.found) or 'nothing'}"


def _what_next(discovery: Discovery) -> str:
    if not discovery.found:
        return "Nothing was found. `recalld up --workspace DIR` starts with any folder of Markdown notes."
    example = discovery.found[0].name
    return f"`recalld discover --pick {example} --write` writes settings for {example}; --all takes everything."


def _write(invocation: Invocation, target: str, text: str, *, force: bool) -> tuple[Path, Path | None]:
    """Write the settings. Return the file, and the copy of its former content."""
    from recalld.settings.load import place_for_config
    from recalld.settings.replacement import replace_file

    if target == _USUAL_PLACE:
        file = place_for_config(invocation.config, home=invocation.home)
    else:
        file = Path(target).expanduser().absolute()
    _check(text)
    try:
        before = file.read_bytes() if file.exists() else None
        if before is not None and not force:
            raise UserError(
                f"{file} is there already; --force replaces it and keeps a copy, --write FILE writes another"
            )
        return file, replace_file(file, text.encode(), before=before)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror})") from None


def _check(text: str) -> None:
    """Load the settings before anything is replaced by them.

    Raises:
        UserError: they cannot be used.
    """
    from tempfile import TemporaryDirectory

    from recalld.settings.load import load

    with TemporaryDirectory(prefix="recalld-") as folder:
        file = Path(folder) / "recalld.toml"
        file.write_text(text, encoding="utf-8")
        load(config=str(file), home=folder, environment={})


# The list


def discovery_lines(discovery: Discovery) -> Iterator[str]:
    """Yield the lines of a terminal. A remark on several memories appears at the first one."""
    width = max((len(one.name) for one in discovery.found), default=0)
    seen: set[str] = set()
    shown: dict[str, int] = {}
    for one in discovery.found:
        shown[one.program] = shown.get(one.program, 0) + 1
        if shown[one.program] > LISTED:
            continue
        yield f"{click.style(f'{one.name:<{width}}', bold=True)}  {printable_name(one.title)}"
        indent = " " * (width + 2)
        yield f"{indent}{_counts(one)}"
        if str(one.workspace) not in one.title:
            yield f"{indent}workspace {printable_name(str(one.workspace))}"
        for remark in one.remarks:
            if remark not in seen:
                seen.add(remark)
                yield indent + click.style(f"note: {printable_name(remark)}", dim=True)
    for program, number in shown.items():
        if number > LISTED:
            yield f"and {number - LISTED} more of {program} (--json lists all of them)"
    for problem in discovery.problems:
        yield click.style(printable_name(problem), fg="yellow")


def discovery_json(discovery: Discovery) -> dict[str, Any]:
    """Return everything as one JSON object."""
    return {"found": [_body(one) for one in discovery.found], "problems": list(discovery.problems)}


def _body(one: Found) -> dict[str, Any]:
    return {
        "name": one.name,
        "program": one.program,
        "title": one.title,
        "workspace": str(one.workspace),
        "notes": asdict(one.notes),
        "sessions": list(one.sessions),
        "transcripts": asdict(one.transcripts),
        "settings": {**one.shared, **one.settings},
        "remarks": list(one.remarks),
    }


def _counts(one: Found) -> str:
    parts = [_count(one.notes, "note")]
    if one.sessions:
        parts.append(_count(one.transcripts, "transcript"))
    if one.newest:
        parts.append(f"the newest of {time.strftime('%Y-%m-%d', time.localtime(one.newest))}")
    return ", ".join(parts)


def _count(counted: Counted, noun: str) -> str:
    number = f"{'' if counted.complete else 'at least '}{counted.files:,} {noun}{'' if counted.files == 1 else 's'}"
    return f"{number} ({size(counted.bytes)})" if counted.files else number
