"""Configured folders that hold nothing at all any more: a disk that is not mounted looks just like that.

Files are the truth, and a note that was deleted is forgotten. But a mount point without its disk is an empty folder,
and a whole memory must not go with it. Who did delete everything says so by putting any file there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from memory.documents.agent_files import AgentFiles
from memory.documents.scan_problems import printable
from memory.documents.walk import MEMORY_SOURCE, Scan
from schemas.documents import DocumentKey

#: Notes of an extra folder that are taken for deleted, though nothing else is left in it. A workspace is never empty.
FEW_NOTES = 10


def emptied(files: AgentFiles, indexed: Iterable[DocumentKey]) -> dict[str, int]:
    """Folder -> how many notes of it the index holds, of the folders that were emptied. Cheap while there is none."""
    empty = {folder: workspace for folder, workspace in files.configured_folders() if _is_empty(folder)}
    if not empty:
        return {}
    held = Counter(files.folder_of(key) for key in indexed if key.source == MEMORY_SOURCE)
    return {
        folder: held[folder] for folder, workspace in empty.items() if held[folder] > (0 if workspace else FEW_NOTES)
    }


def with_emptied(scan: Scan, files: AgentFiles, indexed: Iterable[DocumentKey]) -> Scan:
    """The scan, in which folders that were emptied count as not listed: nothing in them is known to be gone.

    `indexed`: all that the index holds, or only what of it is absent, as all of an emptied folder is.
    """
    found = emptied(files, indexed)
    if not found:
        return scan
    return replace(
        scan,
        complete=False,
        problems=(*scan.problems, *(_problem(folder, notes) for folder, notes in found.items())),
        unlisted=(*scan.unlisted, *found),
    )


def _is_empty(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return all(entry.name == "lost+found" for entry in entries)
    except OSError:
        return False  # the scan says so


def _problem(folder: str, notes: int) -> str:
    held = f"{notes} note{'' if notes == 1 else 's'}"
    return (
        f"the folder {printable(folder)} is empty, while the index holds {held} of it: mount its disk; until then they "
        f"are kept. If you deleted them, put any file there, and they are forgotten"
    )
