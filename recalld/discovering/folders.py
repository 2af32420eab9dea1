"""Plain folders of notes around the current one: itself, those above it, and those right inside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from memory.document_roots import LONG_TERM_NAMES, is_folder_name
from recalld.discovering.counting import Deadline, count_notes
from recalld.discovering.finding import Discovery, Found

#: Folders inside the current one that are looked at.
_MAX_INSIDE = 1000


def find_folders(here: Path, *, deadline: Deadline) -> Discovery:
    """Every one of these folders that has MEMORY.md or Markdown files in memory/."""
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


def _around(here: Path) -> Iterator[Path]:
    yield here
    yield from here.parents
    try:
        with os.scandir(here) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in sorted(filter(is_folder_name, names))[:_MAX_INSIDE]:
        yield here / name
