"""Memories of the whole machine, with the finders of Claude Code, Codex, Obsidian and plain folders."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from memory.documents.roots import LONG_TERM_NAMES, is_folder_name, is_transcript_name, is_utf8
from recalld.discover.memories import Discovery, Found, absolute_path, with_unique_names
from recalld.discover.openclaw import find_openclaw
from recalld.settings.program_folders import ProgramFolders

#: Seconds that counting files may take; memories not counted by then are listed all the same.
COUNTING_SECONDS = 10.0

#: Claude Code's sessions that are opened to learn a project's folder, and bytes that are read of each.
_OPENED = 5
_READ_BYTES = 256 * 1024

#: Folders inside a folder that are searched for notes and vaults.
_MAX_INSIDE = 1000

#: Bytes of Obsidian's list of vaults that are read: one entry has about 100.
_MAX_LIST_BYTES = 1024 * 1024


def discover(folders: ProgramFolders, here: Path, *, seconds: float = COUNTING_SECONDS) -> Discovery:
    """Return every memory of the machine, named by agents' ids. `here` is the current folder."""
    until = time.monotonic() + seconds
    problems: list[str] = []
    every = [one for find in _FINDERS.values() for one in find(folders, here, problems)]
    found = []
    for one in _one_for_each_folder(every):
        if not all(map(is_utf8, (str(one.workspace), *one.sessions))):
            problems.append(f"{one.title}: the folder's name is not UTF-8, so it cannot be written into settings")
        elif not (counted := one.counted(until)).is_empty or one.program == "openclaw":
            found.append(counted)
    order = list(_FINDERS)
    # Claude Code's projects, the latest first.
    found.sort(key=lambda one: (order.index(one.program), -one.newest if one.program == "claude-code" else 0))
    return Discovery(with_unique_names(found), tuple(problems))


def _one_for_each_folder(found: Sequence[Found]) -> Iterator[Found]:
    """Leave out folders and vaults that are the workspace of an agent.

    Claude Code works in all of a vault, so its workspace gets all notes of that vault. OpenClaw's settings name the
    notes of its own workspaces.
    """
    vaults = {os.path.realpath(one.workspace) for one in found if one.program == "obsidian"}
    known: set[str] = set()
    for one in found:
        place = os.path.realpath(one.workspace)
        if one.program == "claude-code" and place in vaults:
            yield replace(one, settings=_extra_paths(".", *one.settings.get("extra_paths", ())))
        elif one.program not in ("folder", "obsidian") or place not in known:
            yield one
        known.add(place)


# Claude Code: one folder of sessions for each project, named after the folder that it works in. The name has dashes
# for slashes and cannot be read back, but lines of a session hold the folder as `cwd`. Claude Code's own notes about a
# project lie in `memory/` of its folder (code.claude.com/docs/en/memory).


def _claude_code(folders: ProgramFolders, _: Path, problems: list[str]) -> Iterator[Found]:
    projects = folders.claude_code / "projects"
    try:
        places = [Path(entry.path) for entry in os.scandir(projects) if entry.is_dir()]
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{projects} cannot be listed ({error.strerror})")
        return
    for project in sorted(places):
        notes, cwd = project / "memory", working_folder(project)
        there = cwd is not None and cwd.is_dir()
        why = "the folder it worked in is not known" if cwd is None else f"{cwd}, where it worked, is gone"
        yield Found(
            name=(cwd or project).name,
            program="claude-code",
            title=f"Claude Code in {cwd or project}",
            workspace=cwd if cwd is not None and there else project,
            sessions=(str(project),),
            settings=_extra_paths(notes) if there and notes.is_dir() else {},
            remarks=() if there else (f"{why}; its sessions' folder stands in for it",),
        )


def working_folder(project: Path) -> Path | None:
    """Return the folder in which the project's latest sessions began; None where no session names one."""
    try:
        files = [file for file in project.glob("*.jsonl") if is_transcript_name(file.name) and not file.is_symlink()]
        for file in sorted(files, key=lambda file: file.lstat().st_mtime, reverse=True)[:_OPENED]:
            with file.open("rb") as session:
                lines = session.read(_READ_BYTES).splitlines()
            if folder := next(filter(None, map(_cwd, lines)), None):
                return folder
    except OSError:
        pass  # as where no session names one
    return None


def _cwd(line: bytes) -> Path | None:
    try:
        entry = json.loads(line) if b'"cwd"' in line else None
    except (ValueError, RecursionError):
        return None  # the last line is cut off
    return absolute_path(entry.get("cwd")) if isinstance(entry, dict) else None


# Codex: one tree of sessions by date for all folders that it worked in, one folder of archived sessions, its own notes


def _codex(folders: ProgramFolders, _: Path, __: list[str]) -> Iterator[Found]:
    home, notes = folders.codex, folders.codex / "memories"
    yield Found(
        name="codex",
        program="codex",
        title=f"Codex in {home}",
        workspace=home,
        sessions=tuple(str(home / name) for name in ("sessions", "archived_sessions") if (home / name).is_dir()),
        settings=_extra_paths(notes) if notes.is_dir() else {},
    )


# Obsidian: all Markdown files of a vault are notes; its settings and its trash are in hidden folders


def _obsidian(folders: ProgramFolders, here: Path, _: list[str]) -> Iterator[Found]:
    """Yield the vaults of Obsidian's own lists, those around the current folder and those in the usual places."""
    listed = (path for file in folders.obsidian for path in _listed(file))
    usual = (path for place in folders.vault_places for path in (place, *_inside(place)))
    for folder in chain(listed, _around(here), usual):
        if (folder / ".obsidian").is_dir():
            title = f"Obsidian's vault {folder}"
            yield Found(folder.name, "obsidian", title, workspace=folder, settings=_extra_paths("."))


def _listed(file: Path) -> Iterator[Path]:
    """Yield the vaults of a list that Obsidian keeps; none where the list cannot be read."""
    try:
        with file.open("rb") as opened:
            vaults = json.loads(opened.read(_MAX_LIST_BYTES))["vaults"]
        paths = [vault["path"] for vault in vaults.values()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return
    yield from filter(None, map(absolute_path, paths))


# Folders of notes


def _folders_of_notes(_: ProgramFolders, here: Path, __: list[str]) -> Iterator[Found]:
    """Yield the current folder, its parents and its folders that have MEMORY.md or Markdown files in memory/."""
    for folder in _around(here):
        if any((folder / name).exists() for name in ("memory", *LONG_TERM_NAMES)):
            yield Found(folder.name, "folder", f"Notes in {folder}", workspace=folder)


def _around(here: Path) -> Iterator[Path]:
    yield here
    yield from here.parents
    yield from _inside(here)


def _inside(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in sorted(filter(is_folder_name, names))[:_MAX_INSIDE]:
        yield folder / name


def _extra_paths(*folders: str | Path) -> dict[str, Any]:
    return {"extra_paths": [str(folder) for folder in folders]}


#: Program -> its finder, in the order of the list. What several find, the first one has.
_FINDERS: Mapping[str, Callable[[ProgramFolders, Path, list[str]], Iterator[Found]]] = {
    "openclaw": find_openclaw,
    "claude-code": _claude_code,
    "codex": _codex,
    "obsidian": _obsidian,
    "folder": _folders_of_notes,
}
