"""`recalld discover`: the memories on this machine, and settings for them."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from memory.status.condition_texts import counted
from recalld.discover import machine
from recalld.discover.memories import DiscoveredMemory, Discovery, FileCount, check_settings, settings_file
from recalld.invocation import Invocation, examples, json_option, pass_unchecked_invocation, to_type
from recalld.runs.estimate import confirm_folder
from recalld.runs.status import size
from recalld.settings.load import config_to_write, program_folders
from recalld.settings.places import absolute
from recalld.settings.replacement import kept_in, replace_file
from recalld.settings.workspaces import remembered_workspaces
from recalld.terminal_text import fields, print_answer, printable_name, reading
from schemas.errors import UserError

#: The value of --write without a FILE.
_USUAL_PLACE = "\0"

#: Memories of one program that a terminal shows; it shows the number of the others.
LISTED = 40


@click.command(
    "discover", epilog=examples("recalld discover", "recalld discover --all --write", "recalld discover --pick notes")
)
@json_option
@click.option("--pick", "picks", multiple=True, metavar="NAME", help="Take this one; may be repeated.")
@click.option("--all", "takes_all", is_flag=True, help="Take everything that was found.")
@click.option(
    "--write",
    "target",
    is_flag=False,
    flag_value=_USUAL_PLACE,
    metavar="[FILE]",
    help="Write settings for what was taken: to FILE (*.toml), else to where recalld looks for them.",
)
@click.option("--force", is_flag=True, help="Replace a settings file that is there; a copy of it is kept.")
@click.option("--yes", is_flag=True, help="Take a large folder, or your home.")
@click.argument("names", nargs=-1, metavar="[NAME|DIR]...")
@pass_unchecked_invocation
def discover(
    invocation: Invocation,
    *,
    as_json: bool,
    picks: tuple[str, ...],
    takes_all: bool,
    target: str | None,
    force: bool,
    yes: bool,
    names: tuple[str, ...],
) -> None:
    """List the memories on this machine: of coding agents, Obsidian, other memory programs, folders of notes.

    The agents are OpenClaw, Claude Code, Codex, Gemini CLI, Qwen Code, GitHub Copilot CLI, Cursor and OpenCode; the
    memory programs basic-memory, QMD and memsearch.
    A DIR is a folder of notes, with MEMORY.md and memory/ or without. Conversations that are found and not read are
    named. Without --write nothing is written; with --pick or --all the
    settings are shown. OpenClaw's settings of memory are translated, with a note on each without a counterpart; keys
    are never copied.
    """
    if target != _USUAL_PLACE:
        invocation.check_config()  # with it, the named file is written
    if target not in (None, _USUAL_PLACE) and not str(target).endswith(".toml"):
        raise click.UsageError(f"--write takes a FILE that ends in .toml, not {target!r}; names go after --pick")
    picked_names = [name for text in (*picks, *names) for name in text.split(",") if name]
    paths = [name for name in picked_names if name.startswith(("~", ".")) or "/" in name]
    folders = [Path(absolute(path)) for path in paths]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise UserError(f"there is no folder {', '.join(missing)}; correct the path", exit_code=2)
    counting = partial(reading, unit="memories")
    discovery = machine.discover(program_folders(), Path.cwd(), more_folders=folders, counting=counting)
    by_folder = {memory.workspace.resolve(): memory.name for memory in reversed(discovery.memories)}
    picked_names = [name for name in picked_names if name not in paths] + [
        by_folder[folder.resolve()] for folder in folders
    ]
    picked = _with_present_ids(_picked(discovery, picked_names, takes_all=takes_all), invocation.home_path)
    if target is not None:
        if not picked:
            raise UserError(f"--write: say what to take, with --pick NAME or --all ({_names(discovery)})", exit_code=2)
        text = settings_file(picked)
        file, copy = _write(invocation, target, text, force=force, unconfirmed=() if yes else folders)
        option = "" if target == _USUAL_PLACE else f" --config {shlex.quote(str(file))}"
        written = f"{text}# written to {file}{kept_in(copy)}", to_type(f"# `recalld up{option}` starts with it")
        names_of_picked = [memory.name for memory in picked]
        answer = {"written": str(file), "kept": str(copy) if copy else None, "picked": names_of_picked}
        print_answer(answer, written, as_json=as_json)
        return
    lines = [f"{settings_file(picked)}# Nothing was written; --write does."] if picked else discovery_lines(discovery)
    print_answer(discovery_json(discovery), lines, as_json=as_json)


def _picked(discovery: Discovery, names: list[str], *, takes_all: bool) -> list[DiscoveredMemory]:
    unknown = [name for name in names if name not in {memory.name for memory in discovery.memories}]
    if unknown:
        raise UserError(f"nothing that was found is called {', '.join(unknown)} ({_names(discovery)})", exit_code=2)
    return [memory for memory in discovery.memories if takes_all or memory.name in names]


def _with_present_ids(memories: list[DiscoveredMemory], home: Path) -> list[DiscoveredMemory]:
    """Return the memories; a folder that an agent of this home has keeps that agent's id where it is free."""
    names, ids = {memory.name.lower() for memory in memories}, dict[Path, str]()
    with suppress(UserError):
        ids |= {entry.folder.resolve(): agent for agent, entry in remembered_workspaces(home).items()}
    present = [ids.get(memory.workspace.resolve(), "") for memory in memories]
    return [
        replace(memory, name=agent) if agent and agent.lower() not in names else memory
        for memory, agent in zip(memories, present, strict=True)
    ]


def _names(discovery: Discovery) -> str:
    return f"found: {', '.join(memory.name for memory in discovery.memories) or 'nothing'}"


def _write(
    invocation: Invocation, target: str, text: str, *, force: bool, unconfirmed: Collection[Path]
) -> tuple[Path, Path | None]:
    """Write the settings. Return the file, and the copy of its former content."""
    if target == _USUAL_PLACE:
        file = config_to_write(invocation.config, home=invocation.home)
    else:
        file = Path(target).expanduser().absolute()
    settings = check_settings(text)  # before anything is replaced by them
    for agent in settings.agents:
        if agent.workspace in unconfirmed:
            confirm_folder(settings, agent)
    try:
        before = file.read_bytes() if file.exists() else None
        if before is not None and not force:
            raise UserError(
                f"{file} is there already; --force replaces it and keeps a copy, --write FILE writes another"
            )
        return file, replace_file(file, text.encode(), before=before)
    except OSError as error:
        raise UserError(f"{file} cannot be written ({error.strerror})") from None


def discovery_lines(discovery: Discovery) -> Iterator[str]:
    """Yield the lines of a terminal. A remark on several memories appears at the first one."""
    width = max((len(memory.name) for memory in discovery.memories), default=0)
    indent = " " * (width + 2)
    printed_remarks: set[str] = set()
    shown_counts: Counter[str] = Counter()
    for memory in discovery.memories:
        shown_counts[memory.program] += 1
        if shown_counts[memory.program] > LISTED:
            continue
        yield f"{click.style(f'{memory.name:<{width}}', bold=True)}  {printable_name(memory.title)}"
        transcripts = f", {_count(memory.transcripts, 'transcript')}" if memory.sessions else ""
        newest = f", the newest of {time.strftime('%Y-%m-%d', time.localtime(memory.newest))}" if memory.newest else ""
        yield f"{indent}{_count(memory.notes, 'note')}{transcripts}{newest}"
        if str(memory.workspace) not in memory.title:
            yield f"{indent}workspace {printable_name(str(memory.workspace))}"
        for remark in memory.remarks:
            if remark not in printed_remarks:
                printed_remarks.add(remark)
                yield indent + click.style(f"note: {printable_name(remark)}", dim=True)
    for program, number in shown_counts.items():
        if number > LISTED:
            yield f"and {number - LISTED} more of {program} (--json lists all of them)"
    for problem in discovery.problems:
        yield click.style(printable_name(problem), fg="yellow")
    if not discovery.memories:
        yield to_type("Nothing was found. `recalld up --workspace DIR` starts with any folder of Markdown notes.")
        return
    example = discovery.memories[0].name
    how = f"`recalld discover --pick {example} --write` writes settings for {example}"
    yield to_type(f"{how}; --all takes everything.")


def discovery_json(discovery: Discovery) -> dict[str, Any]:
    """Return everything as one JSON object."""
    memories = [
        {
            **fields(memory, "name", "program", "title", "sessions", "remarks"),
            "workspace": str(memory.workspace),
            "notes": asdict(memory.notes),
            "transcripts": asdict(memory.transcripts),
            "settings": {**memory.shared, **memory.settings},
        }
        for memory in discovery.memories
    ]
    return {"found": memories, "problems": discovery.problems}


def _count(figures: FileCount, noun: str) -> str:
    number = counted(figures.files, noun)
    number = number if figures.complete else f"at least {number}"
    parts = [size(figures.bytes)] if figures.files > figures.in_database else []
    parts += [f"{figures.in_database} in a database"] if figures.in_database else []
    return f"{number} ({', '.join(parts)})" if parts else number
