"""`recalld discover`: what is on this machine, and settings for it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recalld.invocation import Invocation, pass_unchecked_invocation, to_type
from recalld.local.fallback import print_json
from schemas.errors import UserError

if TYPE_CHECKING:
    from recalld.discovering.finding import Discovery, Found

#: What --write has without a FILE.
_USUAL_PLACE = "\0"


@click.command("discover")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
def command(
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
    settings are translated; what has no counterpart is said, and keys are never copied.
    """
    from recalld.discovering.everything import discover
    from recalld.discovering.listing import discovery_json, discovery_lines
    from recalld.discovering.settings_writing import settings_file
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
    """The file that was written, and the copy of what was there before."""
    from recalld.file_replacing import replace_file
    from recalld.settings.load import place_for_config

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
    """See that the settings can be used before anything is replaced by them."""
    from tempfile import TemporaryDirectory

    from recalld.settings.load import load

    with TemporaryDirectory(prefix="recalld-") as folder:
        file = Path(folder) / "recalld.toml"
        file.write_text(text, encoding="utf-8")
        load(config=str(file), home=folder, environment={})
