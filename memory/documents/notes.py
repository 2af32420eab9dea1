"""Notes of an agent: its long-term memory, memory/, what it knows of people, and its extra paths."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from memory.documents.content import SourceText, decode, read_steadily
from memory.documents.roots import LONG_TERM_NAMES, Root, is_note_name, join, parts_below, roots_of
from memory.documents.safe_open import DocumentGone, opened_below, stat_below
from memory.documents.scan import EXCLUDED, EXCLUDED_FOLDERS, KnownFiles, Scan, ScanProblems, file_stat
from memory.documents.source import DocumentSource, existing_folder
from memory.documents.walk import FolderRules, walk
from memory.store.reader import StoreReader
from schemas.conditions import ConditionCode
from schemas.documents import MEMORY_SOURCE, DocumentKey, FileStat
from schemas.errors import Transient
from schemas.globs import compiled
from schemas.settings import AgentSettings, ExtraPath

#: Times a file that changes while it is read is read again.
_MAX_READS = 3

_LONG_TERM = tuple(DocumentKey(MEMORY_SOURCE, name) for name in LONG_TERM_NAMES)


class Notes(DocumentSource):
    """Notes of one agent. Safe to use from several threads."""

    def __init__(self, agent: AgentSettings) -> None:
        self._workspace = os.path.normpath(agent.workspace)
        self._globs = compiled(agent.include, agent.exclude)
        extras = [ExtraPath(path=extra) if isinstance(extra, str) else extra for extra in agent.extra_paths]
        self._extra_paths = {extra.path: compiled(extra.include, extra.exclude) for extra in extras}

    def scan(
        self,
        *,
        imported: bool = False,  # noqa: ARG002 - no notes are
        but: KnownFiles | None = None,
        entering: Callable[[str], object] | None = None,
    ) -> Scan:
        return _scan_roots(self._roots(), but, entering)

    def personal(self) -> dict[DocumentKey, FileStat]:
        """Return the files on what is known of each of several people, and their stat now."""
        return _scan_roots([root for root in roots_of(self._workspace, {}) if root.in_each], None).documents

    def key_of(self, path: str) -> DocumentKey | None:
        best: Root | None = None
        best_parts: tuple[str, ...] = ()
        for root in self._roots():
            parts = root.rest(path)
            # The nearest root: a folder further up may hold the path only through a link.
            if parts is not None and root.holds(parts) and (best is None or len(parts) < len(best_parts)):
                best, best_parts = root, parts
        if best is None:
            return None
        key = DocumentKey(MEMORY_SOURCE, join(best.prefix, *best_parts))
        return _LONG_TERM[0] if self._is_second_name(key) else key

    def reason_of(self, path: str) -> str | None:
        held = (root.is_note(parts) for root in self._roots() if (parts := root.rest(path)) is not None)
        return EXCLUDED if any(held) and self.key_of(path) is None else None

    def path_of(self, key: DocumentKey) -> Path | None:
        located = self._located(key)
        return None if located is None else Path(located[0].path, *located[1])

    def stat(self, key: DocumentKey) -> FileStat | None:
        located = self._located(key)
        if located is None or self._is_second_name(key):
            return None
        root, parts = located
        result = stat_below(root.folder, (*root.below, *parts), name=key.path)
        return None if result is None else file_stat(result)

    def read(self, key: DocumentKey) -> SourceText:
        located = self._located(key)
        if located is None or self._is_second_name(key):
            raise DocumentGone(f"{key.path} is no document of this agent (any more)")
        root, parts = located
        for _ in range(_MAX_READS):
            with opened_below(root.folder, (*root.below, *parts), name=key.path) as descriptor:
                data, found = read_steadily(descriptor, key.path)
            if found is not None:
                decoded = decode(data)
                return SourceText(decoded.text, found, hashlib.sha256(data).hexdigest(), decoded.notes)
        raise Transient(f"{key.path} changes while it is read; it is read again later", retry_after=1.0)

    def root_is_there(self, key: DocumentKey) -> bool:
        folder = self.folder_of(key)
        return folder is None or os.path.isdir(folder)  # noqa: PTH112 - Path may raise

    def forgets(self, key: DocumentKey, reader: StoreReader | None = None) -> bool:  # noqa: ARG002 - of no interest
        return self.root_is_there(key)

    def configured_folders(self) -> dict[str, bool]:
        """Return the folders that hold notes, as they were configured, and whether each is the workspace."""
        folders = {self._workspace: True}
        for root in self._roots():
            if root.names is None and not root.below:
                folders.setdefault(root.folder, False)
        return folders

    def folder_of(self, key: DocumentKey) -> str | None:
        """Return the one of `configured_folders` that may hold a note; None for what is no note of them."""
        located = self._located(key)
        return located[0].folder if located is not None else None

    def watch_roots(self) -> Iterator[tuple[str, bool]]:
        yield existing_folder(self._workspace), False
        for root in self._roots():
            if root.covered or (not root.has_folders and (not root.names or root.folder == self._workspace)):
                continue
            if root.has_folders and root.closes(root.prefix):
                continue
            if root.below and not _is_plain_folder(root.path):
                continue  # the workspace itself is watched
            if root.has_folders:
                recursive = os.path.isdir(root.path)  # noqa: PTH112 - Path raises for what is locked away
                yield root.path if recursive else existing_folder(root.path), recursive
            else:
                for name in sorted(root.names or ()):
                    file = join(root.folder, name)
                    yield file if os.path.lexists(file) else existing_folder(root.folder), False

    def _roots(self) -> list[Root]:
        return roots_of(self._workspace, self._extra_paths, globs=self._globs)

    def _located(self, key: DocumentKey) -> tuple[Root, tuple[str, ...]] | None:
        """Return the root that reaches a note, and the note's components below it."""
        if key.source != MEMORY_SOURCE or "\0" in key.path:
            return None
        best: tuple[Root, tuple[str, ...]] | None = None
        for root in self._roots():
            if root.covered:
                continue
            parts = tuple(key.path.split("/")) if not root.prefix else parts_below(key.path, root.prefix)
            if parts and root.holds(parts) and (best is None or len(root.prefix) >= len(best[0].prefix)):
                best = root, parts
        return best

    def _is_second_name(self, key: DocumentKey) -> bool:
        """Return True for memory.md if it is the same file as MEMORY.md."""
        if key.path != LONG_TERM_NAMES[1]:
            return False
        try:
            first, second = (os.lstat(join(self._workspace, name)) for name in LONG_TERM_NAMES[:2])
        except OSError:
            return False
        return os.path.samestat(first, second)


class _Found:
    """Notes that a scan has found, without those that are as they are known."""

    def __init__(self, but: KnownFiles | None) -> None:
        self.documents: dict[DocumentKey, FileStat] = {}
        self.problems = ScanProblems()
        self._but = but
        self._known_before = but.unchanged if but is not None else 0

    def add(self, key: DocumentKey, stat: FileStat) -> None:
        # The long-term memory's two names are compared with each other first.
        if self._but is None or key in _LONG_TERM or self._but.differs(key, stat):
            self.documents[key] = stat

    def unchanged(self) -> int:
        return self._but.unchanged - self._known_before if self._but is not None else 0

    def count(self) -> int:
        return len(self.documents) + self.unchanged()

    def scan(self) -> Scan:
        """Return the scan, with one name of a long-term memory that is one file.

        It is where file names ignore case, and with a hard link.
        """
        documents = self.documents
        first, second = _LONG_TERM[:2]
        if first in documents and second in documents and documents[first].inode == documents[second].inode:
            del documents[second]
        for key in _LONG_TERM:
            if self._but is not None and key in documents and not self._but.differs(key, documents[key]):
                del documents[key]
        return self.problems.scan_of(documents, unchanged=self.unchanged())


def _scan_roots(roots: list[Root], but: KnownFiles | None, entering: Callable[[str], object] | None = None) -> Scan:
    """Return the notes of all roots. Costs a stat for each note and a listing for each folder."""
    found = _Found(but)
    for root in roots:
        if root.covered:
            continue
        if root.has_folders:
            _scan_folder(found, root, entering)
        elif root.names:
            _scan_names(found, root)
        else:
            found.problems.add(ConditionCode.EXTRA_PATH_INVALID, root.configured)
    return found.scan()


def _scan_names(found: _Found, root: Root) -> None:
    problems = found.problems
    out: set[int] = set()
    for name in sorted(root.names or ()):
        path = join(root.folder, name)
        try:
            result = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.isdir(root.folder):  # noqa: PTH112 - a plain string, many times
                problems.add_missing(root.folder, ConditionCode.FOLDER_MISSING, root.folder)
            elif name not in LONG_TERM_NAMES or root.prefix:
                problems.add(ConditionCode.EXTRA_PATH_MISSING, root.configured)
            continue
        except OSError as error:
            problems.add_unlistable(root.folder, error)
            continue
        if root.areas and not root.admits(join(root.prefix, name)):
            out.add(result.st_ino)
            problems.left_out[EXCLUDED] += 1
        elif stat.S_ISREG(result.st_mode):
            if result.st_ino not in out:  # the same file by its second name
                found.add(DocumentKey(MEMORY_SOURCE, join(root.prefix, name)), file_stat(result))
        elif stat.S_ISLNK(result.st_mode):
            problems.add(ConditionCode.FILE_IS_LINK, path)
        elif not stat.S_ISDIR(result.st_mode):
            problems.add(ConditionCode.FILE_NOT_REGULAR, path)


def _scan_folder(found: _Found, root: Root, entering: Callable[[str], object] | None) -> None:
    problems, top = found.problems, root.path
    if root.below:
        # A link inside the workspace; a configured folder may be one.
        if os.path.islink(top):  # noqa: PTH114 - a plain string
            problems.add(ConditionCode.FILE_IS_LINK, top)
            return
        if not os.path.lexists(top):
            return
    elif not os.path.isdir(top):  # noqa: PTH112 - a plain string
        problems.add_missing(top, ConditionCode.EXTRA_PATH_MISSING, root.configured)
        return
    if root.closes(root.prefix):
        problems.left_out[EXCLUDED_FOLDERS] += 1
        return
    start = root.prefix if not root.prefix or root.prefix.endswith("/") else root.prefix + "/"
    rules, goes_on = _rules(root, start, problems), problems.has_room(top, found.count)
    for path, result in walk(top, start, rules, problems, goes_on=goes_on, entering=entering):
        found.add(DocumentKey(MEMORY_SOURCE, path), file_stat(result))


def _rules(root: Root, start: str, problems: ScanProblems) -> Callable[[str], FolderRules]:
    """Return the rules of the folders below a root, whose keys begin with `start`."""
    hole = join(root.prefix, *root.hole) if root.hole else None
    names = root.names

    def takes(path: str) -> bool:
        if root.admits(path):
            return True
        problems.left_out[EXCLUDED] += 1
        return False

    def enters(folder: str) -> bool:
        if root.areas and root.closes(folder):
            problems.left_out[EXCLUDED_FOLDERS] += 1
            return False
        return folder != hole and (names is None or "/" not in folder[len(start) :])

    inside = FolderRules(is_note_name if names is None else names.__contains__, takes if root.areas else None, enters)
    if names is None:
        return lambda _: inside
    above = FolderRules(lambda _: False, enters=enters)  # documents lie in the folders of this one
    return lambda folder: above if folder == start else inside


def _is_plain_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114 - Path may raise
