"""List an agent's notes by name and stat. No file is opened, no link is followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from memory.document_roots import LONG_TERM_NAMES, Root, is_folder_name, is_note_name, is_utf8, join
from schemas.documents import DocumentKey, FileStat

#: The `source` of every document of a workspace or an extra path.
MEMORY_SOURCE = "memory"


@dataclass(frozen=True, slots=True)
class Scan:
    """What is on disk.

    `complete` is False when a folder could not be listed; nothing below one of `unlisted` (absolute paths) may
    be taken for deleted then. `problems`: one sentence each for a person.
    """

    documents: dict[DocumentKey, FileStat]
    complete: bool
    problems: tuple[str, ...]
    unlisted: tuple[str, ...]


@dataclass(slots=True)
class _Found:
    documents: dict[DocumentKey, FileStat] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)

    def unlistable(self, folder: str, problem: str) -> None:
        self.unlisted.append(folder)
        self.problems.append(problem)


def scan_roots(roots: Sequence[Root]) -> Scan:
    """List the documents of all roots. Costs a stat for each document and a listing for each folder."""
    found = _Found()
    for root in roots:
        if root.covered:
            continue
        if root.names is None:
            _scan_folder(found, root)
        elif root.names:
            _scan_names(found, root)
        else:
            found.problems.append(
                f"the extra path {printable(root.configured)} is neither a folder nor a Markdown file: "
                "take it out of extra_paths"
            )
    _drop_second_name(found.documents)
    return Scan(
        documents=found.documents,
        complete=not found.unlisted,
        problems=tuple(dict.fromkeys(found.problems)),
        unlisted=tuple(dict.fromkeys(found.unlisted)),
    )


def file_stat(result: os.stat_result) -> FileStat:
    """What is remembered of a stat."""
    return FileStat(size=result.st_size, mtime_ns=result.st_mtime_ns, inode=result.st_ino)


def printable(path: str) -> str:
    """A path as it can be written down, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _scan_names(found: _Found, root: Root) -> None:
    for name in sorted(root.names or ()):
        path = join(root.folder, name)
        try:
            result = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.isdir(root.folder):  # noqa: PTH112 - a plain string, many times
                found.unlistable(root.folder, f"the folder {printable(root.folder)} is not there: create it")
            elif name not in LONG_TERM_NAMES or root.prefix:
                found.problems.append(_absent(root))
            continue
        except OSError as error:
            found.unlistable(root.folder, unlisted_problem(root.folder, error))
            continue
        if stat.S_ISREG(result.st_mode):
            found.documents[DocumentKey(MEMORY_SOURCE, join(root.prefix, name))] = file_stat(result)
        elif stat.S_ISLNK(result.st_mode):
            found.problems.append(_link(path))


def _scan_folder(found: _Found, root: Root) -> None:
    top = root.path
    if root.below:
        # A link inside the workspace; a configured folder may be one.
        if os.path.islink(top):  # noqa: PTH114 - a plain string
            found.problems.append(_link(top))
            return
        if not os.path.lexists(top):
            return
    elif not os.path.isdir(top):  # noqa: PTH112 - a plain string
        found.unlistable(top, _absent(root))
        return
    hole = join(root.prefix, *root.hole) if root.hole else None
    documents = found.documents
    waiting = [(top, root.prefix)]
    while waiting:
        folder, prefix = waiting.pop()
        start = prefix if not prefix or prefix.endswith("/") else prefix + "/"
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if is_folder_name(name):
                            if start + name != hole:
                                waiting.append((entry.path, start + name))
                            continue
                    elif is_note_name(name) and entry.is_file(follow_symlinks=False):
                        try:
                            result = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        documents[DocumentKey(MEMORY_SOURCE, start + name)] = FileStat(
                            result.st_size, result.st_mtime_ns, result.st_ino
                        )
                        continue
                    if not is_utf8(name) and not name.startswith("."):
                        found.problems.append(f"{printable(entry.path)} is left out: its name is not UTF-8; rename it")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found.unlistable(folder, unlisted_problem(folder, error))


def _drop_second_name(documents: dict[DocumentKey, FileStat]) -> None:
    """Where file names ignore case, or with a hard link, both spellings of the long-term memory are one file."""
    first, second = (DocumentKey(MEMORY_SOURCE, name) for name in LONG_TERM_NAMES)
    if first in documents and second in documents and documents[first].inode == documents[second].inode:
        del documents[second]


def unlisted_problem(folder: str, error: OSError) -> str:
    """What to say of a folder that the system does not let us list."""
    return f"{printable(folder)} cannot be listed: {error.strerror or error}; check its permissions"


def _absent(root: Root) -> str:
    return f"the extra path {printable(root.configured)} is not there: create it or take it out of extra_paths"


def _link(path: str) -> str:
    return (
        f"{printable(path)} is a symbolic link, which is not followed: put the file or folder itself there, "
        "or name its target in extra_paths"
    )
