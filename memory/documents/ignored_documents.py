"""Documents that a person left out: they could not be read, and their dead letter was dropped.

What was dropped stays away as long as its file is as it was, whatever compares disk and index. A new index knows
nothing of it: made with other settings, it may be able to read the document. `recalld.runs.dead_letters` notes them.
"""

from __future__ import annotations

import json

from memory.documents.agent_files import AgentFiles
from memory.store.reader import StoreReader
from schemas.documents import DocumentKey

#: Entry of `meta`: a JSON array of [source, path, what the system says of the file].
NOTED = "left_out"


def left_out(reader: StoreReader, files: AgentFiles) -> set[DocumentKey]:
    """The documents that are left out, and whose files have not changed since."""
    return {key for key, state in noted(reader).items() if state == file_state(files, key)}


def noted(reader: StoreReader) -> dict[DocumentKey, list[int]]:
    """All that were left out, with the state of their files at that time."""
    raw = reader.meta(NOTED)
    return {DocumentKey(source, path): state for source, path, state in json.loads(raw)} if raw else {}


def file_state(files: AgentFiles, key: DocumentKey) -> list[int] | None:
    """Size, times of the last write and of the last change of any kind (ns), and inode; None when there is no file.

    They differ when it is written, replaced, or may be read from now on.
    """
    try:
        found = files.path_of(key).lstat()
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
