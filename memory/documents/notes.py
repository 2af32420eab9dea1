"""Notes: Markdown files of the workspace and of extra paths, and the record of their folders that are missing.

A disk that is not mounted leaves no folder, or an empty one with another identity (device, inode). Its notes stay in
the index for a day. Notes that were deleted in a folder that is still there are forgotten at once.

Comparisons write the record, `<home>/run/folders-<agent>.json`: `{folder: [device, inode, missing since]}`. Lost, it is
written again; until then only an empty workspace counts as another folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat as modes
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from memory.documents.content import DocumentRefused, OpenTranscript, SourceText, decode, read_steadily
from memory.documents.roots import (
    LONG_TERM_NAMES,
    USERS_FOLDER,
    Area,
    FileRule,
    Place,
    Root,
    absolute,
    existing_folder,
    is_note_name,
    is_utf8,
    join,
    named_alike,
    parts_below,
)
from memory.documents.scan import EXCLUDED, Scan, ScanProblems, file_stat, files_of
from memory.documents.sources import Documents, DocumentSource, Entering, excluded
from schemas.conditions import ConditionCode
from schemas.documents import MEMORY_SOURCE, DocumentKey, FileStat
from schemas.errors import Transient
from schemas.globs import Globs, compiled
from schemas.settings import AgentSettings, ExtraPath

if TYPE_CHECKING:
    from memory.store.reader import StoreReader

#: Times a note that changes while it is read is read again.
_MAX_READS = 3

_NOTES = FileRule(is_note_name)

_LONG_TERM, _SECOND_NAME = (DocumentKey(MEMORY_SOURCE, name) for name in LONG_TERM_NAMES[:2])


class Notes(DocumentSource):
    """Notes of one agent. `record` is the path of the record of their folders (`missing_folders`)."""

    name = MEMORY_SOURCE
    missing = ConditionCode.EXTRA_PATH_MISSING

    def __init__(self, agent: AgentSettings, *, record: Path | None) -> None:
        self.record = record
        self._workspace = os.path.normpath(agent.workspace)
        self._globs = compiled(agent.include, agent.exclude)
        extras = [ExtraPath(path=extra) if isinstance(extra, str) else extra for extra in agent.extra_paths]
        self._extra_paths = {extra.path: compiled(extra.include, extra.exclude) for extra in extras}

    def roots(self) -> list[Root]:
        return note_roots(self._workspace, self._extra_paths, self._globs)

    def listed(self, root: Root, problems: ScanProblems, entering: Entering = None) -> Documents:
        if root.rule.depth == 0:
            files = _listed_by_name(root, problems)
        else:
            files = files_of(root, problems, excluded if root.areas else None, entering, missing=self.missing)
        for path, result in files:
            # One file with both names of the long-term memory: a hard link, or file names that ignore case.
            if path != _SECOND_NAME.path or not self._is_one_long_term_memory():
                yield DocumentKey(self.name, path), file_stat(result)

    def personal(self) -> dict[DocumentKey, FileStat]:
        """Return the files about each of several people, and their stat now, without regard to globs."""
        roots = (root for root in note_roots(self._workspace, {}, None) if root.rule.depth)
        return {key: stat for root in roots for key, stat in self.listed(root, ScanProblems())}

    def key_of(self, path: str) -> tuple[DocumentKey, str | None] | None:
        naming = super().key_of(path)
        if naming is not None and naming[0] == _SECOND_NAME and self._is_one_long_term_memory():
            return _LONG_TERM, naming[1]
        return naming

    def places(self, key: DocumentKey) -> list[Place]:
        if key == _SECOND_NAME and self._is_one_long_term_memory():
            return []
        # The longest prefix wins, of equal ones the last.
        return sorted(super().places(key), key=lambda place: len(place[0].prefix))[-1:]

    def read(self, key: DocumentKey) -> SourceText:
        for _ in range(_MAX_READS):
            with ExitStack() as stack:
                _, _, descriptor = self.enter(stack, key)
                data, stat = read_steadily(descriptor, key.path)
            if stat is not None:
                text, notes = decode(data)
                return SourceText(text, stat, hashlib.sha256(data).hexdigest(), notes)
        raise Transient(f"{key.path} changes while it is read; it is read again later", retry_after=1.0)

    def opened(self, key: DocumentKey, *, settled: bool = True) -> AbstractContextManager[OpenTranscript]:  # noqa: ARG002 - as in transcripts
        raise DocumentRefused(f"{key.path} is a note, which is read as a whole")

    def forgets(self, keys: Collection[DocumentKey], reader: StoreReader | None, scan: Scan | None) -> set[DocumentKey]:  # noqa: ARG002 - as in transcripts
        """Return the absent notes, without those of a folder that is missing for less than a day."""
        if scan is not None:
            return {key for key in keys if not self.hides(key, scan)}
        now = time.time()
        missing = self.missing_folders(now=now)
        folders = {key: self.missing_folder_of(key, missing) for key in keys}
        return {
            key for key, folder in folders.items() if (self.is_there(key) if folder is None else missing[folder] <= now)
        }

    def folders(self) -> list[str]:
        """Return the folders that hold notes, as they were configured: the workspace, its `memory/`, extra folders."""
        extras = (root.folder for root in self.roots() if root.rule.depth is None and not root.below)
        return [*dict.fromkeys((self._workspace, join(self._workspace, "memory"), *extras))]

    def missing_folders(self, *, now: float) -> dict[str, float]:
        """Return the missing folders, and the Unix time until which the notes of each stay."""
        return missing_folders(self.folders(), read_record(self.record), now=now)

    def missing_folder_of(self, key: DocumentKey, missing: Mapping[str, float]) -> str | None:
        """Return the missing folder that holds a note."""
        places = self.places(key) if missing else ()
        return next((folder_above(join(root.path, *parts), missing) for root, parts in places), None)

    def watched_of(self, root: Root) -> Iterator[tuple[str, bool]]:
        if root.rule.depth != 0:
            yield from super().watched_of(root)
        elif root.folder != self._workspace:  # which is watched itself
            for name in sorted(root.rule.only or ()):
                file = join(root.folder, name)
                yield file if os.path.lexists(file) else existing_folder(root.folder), False

    def _is_one_long_term_memory(self) -> bool:
        """Return True if memory.md is the same file as MEMORY.md."""
        try:
            first, second = (os.lstat(join(self._workspace, name)) for name in LONG_TERM_NAMES[:2])
        except OSError:
            return False
        return os.path.samestat(first, second)


def every_note(agent: AgentSettings, *, most: int, most_folders: int) -> list[FileStat]:
    """Return the stats of Markdown files below a workspace, as a memory of the whole folder: bounded, in no order."""
    number = count()

    def enter(_: str) -> None:
        if next(number) >= most_folders:
            raise _Enough

    stats: list[FileStat] = []
    notes = Notes(agent.model_copy(update={"extra_paths": (".",)}), record=None)
    with suppress(_Enough):
        stats += (stat for _, stat in islice(notes.walk(ScanProblems(), enter), most))
    return stats


class _Enough(Exception):
    """Raised when enough folders were listed."""


def note_roots(workspace: str, extra_paths: Mapping[str, Globs | None], globs: Globs | None) -> list[Root]:
    """Return the roots of notes as the disk is now. All roots that reach a file give it the same name.

    `globs` hold for all documents, those of an extra path for the documents below it, whichever root reaches that.

    An extra path that is not there counts as a file if it ends in ".md", else as a folder. A file of another kind is a
    root without names.
    """
    real = os.path.realpath(workspace)
    top = Root(workspace, real, "", _NOTES, workspace)
    memory, people = (
        replace(top, below=(name,), prefix=name, real=join(real, name)) for name in ("memory", USERS_FOLDER)
    )
    extras: list[Root] = []
    ways: dict[str, str] = {}
    for configured in extra_paths:
        extra = _extra_root(workspace, real, configured)
        inside = parts_below(real, extra.real)
        if inside and extra.rule.depth is None and extra.rule.reaches(inside):
            # The workspace lies in it: what is in the workspace is named relative to the workspace.
            ways[configured] = "/".join(inside) + "/"
            extras += [replace(extra, rule=FileRule(is_note_name, hole=inside)), replace(top, configured=configured)]
        else:
            extras.append(extra)
    long_term = replace(top, rule=_named(*LONG_TERM_NAMES))
    # Folders before what they hold, so that the outermost root names a file.
    extras.sort(key=lambda root: (root.rule.depth is not None, root.real))
    extra_roots = named_alike(extras, [long_term, memory])
    outermost = (root for root in extra_roots if root.rule.depth is None and root.covering is None)
    roots = [
        long_term,
        replace(memory, covering=next((root for root in outermost if root.covers(memory)), None)),
        replace(people, rule=FileRule(LONG_TERM_NAMES[2:].__contains__, depth=1)),
        *extra_roots,
    ]
    areas = [Area(globs)] if globs is not None else []
    areas += [
        Area(extra_globs, root.prefix, ways.get(root.configured, "") if root.real == real else "")
        for root in extra_roots
        if root.rule.depth is None and (extra_globs := extra_paths[root.configured]) is not None
    ]
    return [replace(root, areas=tuple(areas)) for root in roots] if areas else roots


def _named(*names: str) -> FileRule:
    """Return the rule for files of these names, right in a folder."""
    return FileRule(names.__contains__, depth=0, only=frozenset(names))


def _extra_root(workspace: str, workspace_real: str, configured: str) -> Root:
    path = absolute(workspace, configured)
    if "\0" in path or not is_utf8(path):
        return Root(workspace, workspace_real, "", _named(), configured)
    is_markdown = path[-3:].lower() == ".md"
    folder, rule = path, _NOTES
    # os.path answers where Path, for a path that is too long or locked away, raises.
    if not os.path.isdir(path) and (is_markdown or os.path.exists(path)):  # noqa: PTH110, PTH112 - see above
        folder, name = os.path.split(path)
        rule = _named(name) if is_markdown else _named()
    real = os.path.realpath(folder)
    inside = parts_below(folder, workspace)
    if inside is None:
        inside = parts_below(real, workspace_real)
    return Root(folder, real, folder if inside is None else "/".join(inside), rule, configured)


def _listed_by_name(root: Root, problems: ScanProblems) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the notes of a root whose names are configured."""
    if not root.rule.only:
        problems.add(ConditionCode.EXTRA_PATH_INVALID, root.configured)
    for name in sorted(root.rule.only or ()):
        path, key_path = join(root.folder, name), join(root.prefix, name)
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
        if root.excludes(key_path):
            problems.left_out[EXCLUDED] += 1
        elif modes.S_ISREG(result.st_mode):
            yield key_path, result
        elif not modes.S_ISDIR(result.st_mode):
            is_link = modes.S_ISLNK(result.st_mode)
            problems.add(ConditionCode.FILE_IS_LINK if is_link else ConditionCode.FILE_NOT_REGULAR, path)


# Missing folders -------------------------------------------------------------------------------------

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
