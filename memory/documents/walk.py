"""List an agent's notes by name and stat. No file is opened, no link is followed."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memory.documents import scan_problems
from memory.documents.known_files import KnownFiles
from memory.documents.roots import LONG_TERM_NAMES, Root, is_folder_name, is_note_name, is_utf8, join, parts_below
from memory.documents.scan_problems import ScanProblems, printable
from schemas.documents import DocumentKey, FileStat

#: The `source` of every document of a workspace or an extra path.
MEMORY_SOURCE = "memory"

#: Nanoseconds of the earliest and of the latest time of a file that an index keeps, in 1677 and in 2262. The two
#: integers of 64 bits below are left for stats that no file has (`memory.index.transcript_slices`).
EARLIEST_NS, LATEST_NS = 2 - 2**63, 2**63 - 1

_LONG_TERM = tuple(DocumentKey(MEMORY_SOURCE, name) for name in LONG_TERM_NAMES)


#: What `Scan.left_out` calls what globs exclude.
EXCLUDED, EXCLUDED_FOLDERS = "excluded", "excluded folders"


@dataclass(frozen=True, slots=True)
class Scan:
    """What is on disk.

    `documents` are all of them, or those that are not as an index knows them, if the scan was told what it knows;
    then there are so many `unchanged` ones, and `archived` names the sessions that unchanged archives were made of.
    `complete` is False when a folder could not be listed; nothing below one of `unlisted` (absolute paths) may
    be taken for deleted then. `problems`: one sentence each for a person. `left_out` counts the files that do not
    count: those that globs exclude (`EXCLUDED`), the folders that were not looked into for that
    (`EXCLUDED_FOLDERS`), and transcripts by the kinds of their sessions.
    """

    documents: dict[DocumentKey, FileStat]
    complete: bool
    problems: tuple[str, ...]
    unlisted: tuple[str, ...]
    unchanged: int = 0
    archived: frozenset[str] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many documents there are on the disk."""
        return len(self.documents) + self.unchanged

    def hides(self, path: str | os.PathLike[str]) -> bool:
        """Whether an absolute path lies where the scan could not look, so that its absence means nothing."""
        if self.complete:
            return False
        text = os.fspath(path)
        return not self.unlisted or any(text.startswith(above.rstrip(os.sep) + os.sep) for above in self.unlisted)


@dataclass(slots=True)
class _Found:
    documents: dict[DocumentKey, FileStat] = field(default_factory=dict)
    problems: ScanProblems = field(default_factory=ScanProblems)
    unlisted: list[str] = field(default_factory=list)
    but: KnownFiles | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, key: DocumentKey, stat: FileStat) -> None:
        # The long-term memory's two names are compared with each other first.
        if self.but is None or key in _LONG_TERM or self.but.differs(key, stat):
            self.documents[key] = stat

    def count(self) -> int:
        return len(self.documents) + (self.but.unchanged if self.but is not None else 0)

    def drop_second_name(self) -> None:
        """Where file names ignore case, or with a hard link, both spellings of the long-term memory are one file."""
        documents = self.documents
        first, second = _LONG_TERM[:2]
        if first in documents and second in documents and documents[first].inode == documents[second].inode:
            del documents[second]
        for key in _LONG_TERM:
            if self.but is not None and key in documents and not self.but.differs(key, documents[key]):
                del documents[key]

    def absent(self, folder: str, problem: str) -> None:
        self.unlisted.append(folder)
        self.problems.add(problem)

    def unlistable(self, folder: str, error: OSError) -> None:
        self.unlisted.append(folder)
        self.problems.unlistable(folder, error)


def scan_roots(roots: Sequence[Root], *, but: KnownFiles | None = None) -> Scan:
    """List the documents of all roots, those aside that are as they are known. Costs a stat for each document and a
    listing for each folder."""
    found = _Found(but=but)
    for root in roots:
        if root.covered:
            continue
        if root.has_folders:
            _scan_folder(found, root)
        elif root.names:
            _scan_names(found, root)
        else:
            found.problems.add(
                f"the extra path {printable(root.configured)} is neither a folder nor a Markdown file: "
                "take it out of extra_paths"
            )
    found.drop_second_name()
    return Scan(
        documents=found.documents,
        complete=not found.unlisted,
        problems=found.problems.sentences(),
        unlisted=tuple(dict.fromkeys(found.unlisted)),
        left_out=found.left_out,
    )


def file_stat(result: os.stat_result) -> FileStat:
    """Return what is remembered of a stat, whatever the times that the file system gives.

    A write time stays in order. A change time is a fingerprint alone, so that a clock that is centuries off still tells
    one edit from the next.
    """
    mtime_ns = min(max(result.st_mtime_ns, EARLIEST_NS), LATEST_NS)
    ctime_ns = result.st_ctime_ns & LATEST_NS
    # Mostly they are equal, and one number for both: of a million files that is 32 MB less.
    return FileStat(result.st_size, mtime_ns, result.st_ino, mtime_ns if mtime_ns == ctime_ns else ctime_ns)


def _scan_names(found: _Found, root: Root) -> None:
    out: set[int] = set()
    for name in sorted(root.names or ()):
        path = join(root.folder, name)
        try:
            result = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.isdir(root.folder):  # noqa: PTH112 - a plain string, many times
                found.absent(root.folder, f"the folder {printable(root.folder)} is not there: create it")
            elif name not in LONG_TERM_NAMES or root.prefix:
                found.problems.add(_absent(root))
            continue
        except OSError as error:
            found.unlistable(root.folder, error)
            continue
        if root.areas and not root.admits(join(root.prefix, name)):
            out.add(result.st_ino)
            found.left_out[EXCLUDED] += 1
        elif stat.S_ISREG(result.st_mode):
            if result.st_ino not in out:  # the same file by its second name
                found.add(DocumentKey(MEMORY_SOURCE, join(root.prefix, name)), file_stat(result))
        elif stat.S_ISLNK(result.st_mode):
            found.problems.link(path)
        elif not stat.S_ISDIR(result.st_mode):
            found.problems.no_file(path)


def _scan_folder(found: _Found, root: Root) -> None:
    top = root.path
    if root.below:
        # A link inside the workspace; a configured folder may be one.
        if os.path.islink(top):  # noqa: PTH114 - a plain string
            found.problems.link(top)
            return
        if not os.path.lexists(top):
            return
    elif not os.path.isdir(top):  # noqa: PTH112 - a plain string
        found.absent(top, _absent(root))
        return
    hole = join(root.prefix, *root.hole) if root.hole else None
    if root.closes(root.prefix):
        found.left_out[EXCLUDED_FOLDERS] += 1
        return
    limited = bool(root.areas)
    waiting = [(top, root.prefix)]
    while waiting:
        folder, prefix = waiting.pop()
        if found.count() > scan_problems.MAX_DOCUMENTS:
            found.unlisted.append(top)
            found.problems.too_many(folder, scan_problems.MAX_DOCUMENTS)
            return
        start = prefix if not prefix or prefix.endswith("/") else prefix + "/"
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    wanted = is_note_name(name) and (root.names is None or (folder != top and name in root.names))
                    if entry.is_dir(follow_symlinks=False):
                        if is_folder_name(name):
                            if limited and root.closes(start + name):
                                found.left_out[EXCLUDED_FOLDERS] += 1
                            elif start + name != hole and (root.names is None or folder == top):
                                waiting.append((entry.path, start + name))
                            continue
                    elif wanted and entry.is_file(follow_symlinks=False):
                        if limited and not root.admits(start + name):
                            found.left_out[EXCLUDED] += 1
                            continue
                        try:
                            result = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        except OSError as error:
                            if error.errno != errno.ENAMETOOLONG:
                                raise
                            found.problems.too_long(entry.path)
                            continue
                        found.add(DocumentKey(MEMORY_SOURCE, start + name), file_stat(result))
                        continue
                    tell_odd_entry(found.problems, entry, root.real, is_document=wanted)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found.unlistable(folder, error)


def tell_odd_entry(problems: ScanProblems, entry: os.DirEntry[str], top: str, *, is_document: bool) -> None:
    """Say of an entry that is neither a document nor a folder to look into why it is left out, if anybody may wonder.

    `is_document`: by its name. A link that leads to what lies below `top` anyway is no loss.
    """
    name = entry.name
    if not is_utf8(name):
        if not name.startswith("."):
            problems.not_utf8(entry.path)
    elif entry.is_symlink():
        if is_document or (is_folder_name(name) and os.path.isdir(entry.path)):  # noqa: PTH112 - Path raises for a loop of links
            target = os.path.realpath(entry.path)
            if parts_below(target, top) is None or not os.path.exists(target):  # noqa: PTH110 - a plain string
                problems.link(entry.path)
    elif is_document and not entry.is_dir(follow_symlinks=False):
        problems.no_file(entry.path)


def _absent(root: Root) -> str:
    return f"the extra path {printable(root.configured)} is not there: create it or take it out of extra_paths"
