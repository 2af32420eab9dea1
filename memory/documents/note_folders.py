"""Folders of an agent's notes: the workspace, its `memory/` and extra folders, and the record of missing ones.

A disk that is not mounted leaves no folder, or an empty one with another identity (device, inode). Its notes stay in
the index for a day. Notes that were deleted in a folder that is still there are forgotten at once.

Comparisons write the record, `<home>/run/folders-<agent>.json`: `{folder: [device, inode, missing since]}`. Lost, it is
written again; until then only an empty workspace counts as another folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

#: Seconds for which the notes of a missing folder stay in the index.
KEPT_SECONDS = 86_400.0


class FolderEntry(NamedTuple):
    """Identity of a folder when it was last seen, and the Unix time since when it is missing."""

    device: int = 0
    inode: int = 0
    missing_since: float | None = None


FolderRecord: TypeAlias = dict[str, FolderEntry]


def folders_path(home: Path, agent: str) -> Path:
    """Return the path of an agent's record."""
    return home / "run" / f"folders-{agent}.json"


def read_record(path: Path | None) -> FolderRecord:
    """Return the record; an empty one without a readable file."""
    try:
        body = json.loads(path.read_bytes()) if path is not None else {}
        return {
            str(folder): FolderEntry(int(device), int(inode), None if since is None else float(since))
            for folder, (device, inode, since) in body.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def missing_folders(folders: Sequence[str], record: FolderRecord, *, now: float) -> dict[str, float]:
    """Return the missing ones of the folders, and the Unix time until which the notes of each stay; outermost first.

    The first of the `folders` is the workspace.
    """
    missing = {}
    for folder in sorted(folders):
        if record and folder not in record:
            continue  # new in the settings: the index holds no note of it
        entry, identity = record.get(folder, FolderEntry()), _identity(folder)
        is_other = identity != entry[:2] if entry.inode else folder == folders[0]
        if identity is None or (is_other and _is_empty(folder)):
            since = entry.missing_since
            # A time ahead counts as now: the clock was set back.
            missing[folder] = (now if since is None or since > now else since) + KEPT_SECONDS
    return missing


def next_record(
    folders: Iterable[str], record: FolderRecord, missing: Mapping[str, float], notes: Mapping[str, int]
) -> FolderRecord:
    """Return the record after a comparison. `notes`: number of notes that the index holds of the missing folders."""
    entries = {}
    for folder in sorted(folders):
        identity, before = _identity(folder), record.get(folder, FolderEntry())
        if folder in missing and notes.get(folder):
            entries[folder] = before._replace(missing_since=missing[folder] - KEPT_SECONDS)
        elif folder in missing and identity is None:
            entries[folder] = before._replace(missing_since=None)
        elif identity is not None:
            entries[folder] = FolderEntry(*identity)
    return entries


def folder_above(path: str, folders: Iterable[str]) -> str | None:
    """Return the first of the folders that a path lies in."""
    return next((folder for folder in folders if path.startswith(folder.rstrip(os.sep) + os.sep)), None)


def _identity(folder: str) -> tuple[int, int] | None:
    """Return device and inode of a folder; None if it is gone."""
    try:
        status = os.stat(folder)  # noqa: PTH116 - a plain string
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if os.path.isdir(folder) else None  # noqa: PTH112 - a plain string


def _is_empty(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return all(entry.name == "lost+found" for entry in entries)
    except OSError:
        return False  # the scan has a condition of it
