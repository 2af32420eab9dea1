"""Roots of an agent's transcripts: its session folders and imported ones, and the names of their documents.

x.jsonl                     a session; x.jsonl.zst is the same document, compressed
x.jsonl.reset.<time>        what a session was before it began anew, a document of its own (also .zst)
x.jsonl.deleted.<time>      a session that its agent has deleted, likewise
x.jsonl.bak, x.jsonl.bak-<id>, .x.jsonl, x.checkpoint.<id>.jsonl, x.trajectory.jsonl      copies, no documents
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memory.documents.imports import ImportedFolder
from memory.documents.roots import is_folder_name, is_utf8, join, parts_below
from schemas.documents import SESSIONS_SOURCE

#: What a compressed file's name ends with; it is no part of the document's name.
COMPRESSED = ".zst"

_COPY = re.compile(r"\.checkpoint\.|\.trajectory\.jsonl")

_NAME = re.compile(r"(?P<session>[^.].*\.jsonl)(?P<archived>\.(?:reset|deleted)\.[0-9][0-9TZtz:.+_-]*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SessionRoot:
    """Folder of transcripts: `folder` (may be reached through links); below it, no link is followed.

    `prefix` goes before their paths in keys. `real` is the folder without links. `covered`: another root reaches
    the same files, and names them alike. `imported`: read once on demand, neither scanned nor watched; None for
    a configured folder. `names`: of an import that named its files, their documents' paths below the folder.
    """

    folder: str
    real: str
    prefix: str
    covered: bool = False
    imported: ImportedFolder | None = None
    names: frozenset[str] | None = None

    def holds(self, parts: Sequence[str]) -> bool:
        """Return True if a path relative to this root is, by name, a transcript of it."""
        if not parts or not is_transcript_name(parts[-1]) or not self.descends(parts[:-1]):
            return False
        return self.names is None or "/".join(parts) in self.names

    @property
    def skip(self) -> int:
        """Return the number of characters of documents' paths that globs pass over: the way to an imported folder."""
        return len(self.prefix) if self.prefix.startswith("/") else 0

    @staticmethod
    def descends(parts: Sequence[str]) -> bool:
        """Return True if a walk enters a folder relative to this root."""
        return all(part and is_folder_name(part) for part in parts)

    def rest(self, path: str) -> tuple[str, ...] | None:
        """Return an absolute path's components below this root, however its folder is spelled; None if outside."""
        parts = parts_below(path, self.folder)
        return parts_below(path, self.real) if parts is None else parts


def is_transcript_name(name: str) -> bool:
    """Return True if a file of that name is a transcript."""
    if ".jsonl" not in name or _COPY.search(name) or not is_utf8(name):
        return False
    return _NAME.fullmatch(document_name(name)) is not None


def document_name(name: str) -> str:
    """Return the name of the document that a file holds."""
    return name.removesuffix(COMPRESSED)


def archived_path(path: str) -> str | None:
    """Return the path of the session that an archive was made of; None if `path` is not an archive's."""
    folder, slash, name = path.rpartition("/")
    match = _NAME.fullmatch(name)
    return folder + slash + match["session"] if match and match["archived"] else None


def session_roots_of(workspace: str, folders: Sequence[str]) -> list[SessionRoot]:
    """Return the configured folders, in their order, as the disk is now."""
    roots: list[SessionRoot] = []
    for configured in dict.fromkeys(folders):
        if not configured or "\0" in configured or not is_utf8(configured):
            continue
        folder = os.path.normpath(configured if configured.startswith("/") else join(workspace, configured))
        roots.append(SessionRoot(folder, os.path.realpath(folder), SESSIONS_SOURCE))
    named: list[SessionRoot] = []
    for number, root in enumerate(roots):
        above = [other for place, other in enumerate(roots) if place != number and _reaches(other, root, number, place)]
        outermost = min(above, key=lambda other: len(other.real), default=None)
        if outermost is None:
            named.append(root)
        else:
            parts = parts_below(root.real, outermost.real) or ()
            named.append(replace(root, prefix=join(SESSIONS_SOURCE, *parts), covered=True))
    return named


def _reaches(other: SessionRoot, root: SessionRoot, number: int, place: int) -> bool:
    parts = parts_below(root.real, other.real)
    if parts is None or not other.descends(parts):
        return False
    return bool(parts) or place < number


def imported_roots_of(imports: Sequence[ImportedFolder]) -> list[SessionRoot]:
    """Return the imported folders, the latest first. Keys of their transcripts have absolute paths, without links."""
    roots = []
    for imported in reversed(imports):
        real = os.path.realpath(imported.folder)
        names = None if imported.files is None else frozenset(map(document_name, imported.files))
        roots.append(SessionRoot(os.path.normpath(imported.folder), real, real, imported=imported, names=names))
    return roots
