"""Memories of the whole machine, with the finders of Claude Code, Codex, Obsidian and plain folders."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memory.documents.roots import LONG_TERM_NAMES, is_folder_name, is_transcript_name, is_utf8
from recalld.discover.memories import (
    Discovery,
    Found,
    absolute_path,
    count_markdown,
    count_notes,
    count_transcripts,
    is_over,
    with_unique_names,
)
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

#: The folder by which a vault is known.
_VAULT = ".obsidian"


def discover(folders: ProgramFolders, here: Path, *, seconds: float = COUNTING_SECONDS) -> Discovery:
    """Return every memory of the machine, named by agents' ids. `here` is the current folder."""
    until = time.monotonic() + seconds
    everything = (
        find_openclaw(folders.openclaw, folders.openclaw_config, until=until)
        + _claude_code(folders.claude_code, until)
        + Discovery(tuple(_codex(folders.codex, until)))
        + Discovery(tuple(_vaults(folders.obsidian, folders.vault_places, here, until)))
        + Discovery(tuple(_folders_of_notes(here, until)))
    )
    problems = list(everything.problems)
    found = []
    for one in _one_for_each_folder(everything.found, until):
        if all(map(is_utf8, (str(one.workspace), *one.sessions))):
            found.append(one)
        else:
            problems.append(f"{one.title}: the folder's name is not UTF-8, so it cannot be written into settings")
    return Discovery(with_unique_names(found), tuple(problems))


def _one_for_each_folder(found: Sequence[Found], until: float) -> Iterator[Found]:
    """Leave out folders and vaults that are the workspace of an agent.

    Claude Code works in all of a vault, so its workspace gets all notes of that vault. OpenClaw's settings name the
    notes of its own workspaces.
    """
    vaults = {os.path.realpath(one.workspace): one for one in found if one.program == "obsidian"}
    known: set[str] = set()
    for one in found:
        place = os.path.realpath(one.workspace)
        if one.program not in ("folder", "obsidian") or place not in known:
            whole = one.program == "claude-code" and place in vaults
            yield _with_vault(one, vaults[place], until) if whole else one
        known.add(place)


def _with_vault(one: Found, vault: Found, until: float) -> Found:
    own = one.settings.get("extra_paths", [])
    notes = sum((count_markdown(Path(folder), until=until) for folder in own), vault.notes)
    return replace(one, notes=notes, settings={**one.settings, "extra_paths": [*vault.settings["extra_paths"], *own]})


# Claude Code: one folder of sessions for each project, named after the folder that it works in. The name has dashes
# for slashes and cannot be read back, but lines of a session hold the folder as `cwd`. Claude Code's own notes about a
# project lie in `memory/` of its folder (code.claude.com/docs/en/memory).


def _claude_code(folder: Path, until: float) -> Discovery:
    """Return all projects with sessions or notes, the latest first."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder / "projects") if entry.is_dir())
    except FileNotFoundError:
        return Discovery()
    except OSError as error:
        return Discovery(problems=(f"{folder / 'projects'} cannot be listed ({error.strerror})",))
    found = [one for name in names if (one := _project(folder / "projects" / name, until)) is not None]
    return Discovery(tuple(sorted(found, key=lambda one: -one.newest)))


def _project(project: Path, until: float) -> Found | None:
    transcripts = count_transcripts((str(project),), until=until)
    notes = project / "memory"
    if not transcripts.files and not notes.is_dir() and transcripts.complete:
        return None
    cwd = working_folder(project)
    workspace, extra, remark = project, [], None
    if cwd is None:
        remark = "the folder it worked in is not known; its sessions' folder stands in for it"
    elif not cwd.is_dir():
        remark = f"{cwd}, where it worked, is gone; its sessions' folder stands in for it"
    else:
        workspace, extra = cwd, [str(notes)] if notes.is_dir() else []
    return Found(
        name=(cwd or project).name,
        program="claude-code",
        title=f"Claude Code in {cwd or project}",
        workspace=workspace,
        sessions=(str(project),),
        notes=count_notes(workspace, extra, until=until),
        transcripts=transcripts,
        settings=_extra_paths(extra),
        remarks=(remark,) if remark else (),
    )


def working_folder(project: Path) -> Path | None:
    """Return the folder in which the project's latest sessions began; None where no session names one."""
    try:
        with os.scandir(project) as entries:
            files = [
                (entry.stat(follow_symlinks=False).st_mtime, entry.path)
                for entry in entries
                if is_transcript_name(entry.name)
                and entry.name.endswith(".jsonl")
                and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return None
    folders = (_cwd(Path(path)) for _, path in sorted(files, reverse=True)[:_OPENED])
    return next(filter(None, folders), None)


def _cwd(session: Path) -> Path | None:
    try:
        with session.open("rb") as file:
            head = file.read(_READ_BYTES)
    except OSError:
        return None
    for line in head.splitlines():
        if b'"cwd"' not in line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line is cut off
        if folder := absolute_path(entry.get("cwd") if isinstance(entry, dict) else None):
            return folder
    return None


# Codex: one tree of sessions by date for all folders that it worked in, one folder of archived sessions, its own notes


def _codex(folder: Path, until: float) -> Iterator[Found]:
    """Yield one memory of all sessions."""
    sessions = tuple(str(folder / name) for name in ("sessions", "archived_sessions") if (folder / name).is_dir())
    transcripts = count_transcripts(sessions, until=until)
    extra = [str(folder / "memories")] if (folder / "memories").is_dir() else []
    notes = count_notes(folder, extra, until=until)
    if transcripts.files or notes.files or not transcripts.complete:
        yield Found(
            name="codex",
            program="codex",
            title=f"Codex in {folder}",
            workspace=folder,
            sessions=sessions,
            notes=notes,
            transcripts=transcripts,
            settings=_extra_paths(extra if notes.files else []),
        )


# Obsidian: all Markdown files of a vault are notes; its settings and its trash are in hidden folders


def _vaults(lists: Iterable[Path], places: Iterable[Path], here: Path, until: float) -> Iterator[Found]:
    """Yield the vaults of Obsidian's own lists, those around the current folder and those in the usual places."""
    seen: set[str] = set()
    for folder in _perhaps_vaults(lists, places, here):
        if is_over(until):
            return
        if not (folder / _VAULT).is_dir() or (real := os.path.realpath(folder)) in seen:
            continue
        seen.add(real)
        notes = count_markdown(folder, until=until)
        if notes.files or not notes.complete:
            yield Found(
                name=folder.name,
                program="obsidian",
                title=f"Obsidian's vault {folder}",
                workspace=folder,
                notes=notes,
                settings=_extra_paths(["."]),
            )


def _perhaps_vaults(lists: Iterable[Path], places: Iterable[Path], here: Path) -> Iterator[Path]:
    for file in lists:
        yield from _listed(file)
    yield from _around(here)
    for place in places:
        yield place
        yield from _inside(place)


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


def _folders_of_notes(here: Path, until: float) -> Iterator[Found]:
    """Yield the current folder, its parents and its folders that have MEMORY.md or Markdown files in memory/."""
    for folder in _around(here):
        if is_over(until):
            return
        if any((folder / name).exists() for name in ("memory", *LONG_TERM_NAMES)):
            notes = count_notes(folder, until=until)
            if notes.files:
                yield Found(
                    name=folder.name, program="folder", title=f"Notes in {folder}", workspace=folder, notes=notes
                )


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


def _extra_paths(folders: list[str]) -> dict[str, Any]:
    return {"extra_paths": folders} if folders else {}
