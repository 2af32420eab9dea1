"""Folders of notes that no agent's program made: plain ones around the current folder, and Obsidian's vaults."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from memory.documents.roots import LONG_TERM_NAMES, is_folder_name
from recalld.discovering.counting import Deadline, count_markdown, count_notes
from recalld.discovering.finding import Discovery, Found

#: Folders inside one that are looked at.
_MAX_INSIDE = 1000

#: Bytes of Obsidian's list of vaults that are read: one entry has about 100.
_MAX_LIST_BYTES = 1024 * 1024

#: What makes a folder a vault.
_VAULT = ".obsidian"


def find_folders(here: Path, *, deadline: Deadline) -> Discovery:
    """The current folder, those above it and right inside it that have MEMORY.md or Markdown files in memory/."""
    found = []
    for folder in _around(here):
        if deadline.is_over():
            break
        if not any((folder / name).exists() for name in ("memory", *LONG_TERM_NAMES)):
            continue
        notes = count_notes(folder, deadline=deadline)
        if notes.files:
            found.append(
                Found(name=folder.name, program="folder", title=f"Notes in {folder}", workspace=folder, notes=notes)
            )
    return Discovery(tuple(found))


def find_vaults(lists: Iterable[Path], places: Iterable[Path], here: Path, *, deadline: Deadline) -> Discovery:
    """Obsidian's vaults: those of its own lists, those in the usual places and those around the current folder.

    All Markdown files of a vault are notes; Obsidian's settings and its trash are in hidden folders.
    """
    found: dict[str, Found] = {}
    for folder in _perhaps_vaults(lists, places, here):
        if deadline.is_over():
            break
        if (folder / _VAULT).is_dir() and (real := os.path.realpath(folder)) not in found:
            found[real] = Found(
                name=folder.name,
                program="obsidian",
                title=f"Obsidian's vault {folder}",
                workspace=folder,
                notes=count_markdown(folder, deadline=deadline),
                settings={"extra_paths": ["."]},
            )
    return Discovery(tuple(vault for vault in found.values() if vault.notes.files or not vault.notes.complete))


def _perhaps_vaults(lists: Iterable[Path], places: Iterable[Path], here: Path) -> Iterator[Path]:
    for file in lists:
        yield from _listed(file)
    yield from _around(here)
    for place in places:
        yield place
        yield from _inside(place)


def _listed(file: Path) -> Iterator[Path]:
    """Yield the vaults of a list that Obsidian keeps; none of one that cannot be read."""
    try:
        with file.open("rb") as opened:
            vaults = json.loads(opened.read(_MAX_LIST_BYTES))["vaults"]
        paths = [vault["path"] for vault in vaults.values()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return
    for path in paths:
        if isinstance(path, str) and path.startswith("/") and "\0" not in path:
            yield Path(os.path.normpath(path))


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
