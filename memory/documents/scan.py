"""Scan of folders: documents by name and stat, the documents left out, and the conditions of files.

A scan opens no file and follows no link below a folder that a user named.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memory.documents.roots import (
    Root,
    document_name,
    is_folder_name,
    is_unread_session,
    is_utf8,
    join,
    parts_below,
)
from schemas.conditions import Condition, ConditionCode, Param
from schemas.documents import DocumentKey, FileStat

if TYPE_CHECKING:
    from memory.store.reader import IndexedFile

#: Keys of `Scan.left_out` for what globs exclude.
EXCLUDED, EXCLUDED_FOLDERS = "excluded", "excluded folders"

#: Key of `Scan.left_out` for sessions that no format reads.
UNREAD = "older Gemini CLI"

#: Nanoseconds of the earliest and of the latest time of a file that an index keeps, in 1677 and in 2262. The two
#: integers of 64 bits below are left for stats that no file has (`memory.index.transcript_slices`).
EARLIEST_NS, LATEST_NS = 2 - 2**63, 2**63 - 1

#: Most documents that are found below one folder. In every process that compares files and index, a document costs
#: about 350 bytes of memory if it is a transcript or new, and 180 if it is a note that the index knows.
MAX_DOCUMENTS = 2_000_000

#: Most conditions of one code that a scan keeps; it counts the rest.
_MOST_KEPT = 20

#: Most characters of a path that messages show, half of them from either end.
_SHOWN_CHARS = 400

# Inode numbers have no sign; a size has one where it is forgotten (`memory.store.dead_letters.FORGOTTEN`).
_STAT = struct.Struct("<qqQq")


@dataclass(frozen=True, slots=True)
class Scan:
    """Documents on disk.

    `documents`: all of them, or those that differ from the index, if the scan got its `KnownFiles`; `unchanged` counts
    the others, and `archived` names the sessions whose archives are unchanged. A document below one of `unlisted`
    (absolute paths), which could not be listed, may still be there. `left_out` counts files that globs exclude
    (`EXCLUDED`), folders that globs exclude whole (`EXCLUDED_FOLDERS`), transcripts by the kinds of their sessions, and
    sessions that no format reads (`UNREAD`).
    """

    documents: dict[DocumentKey, FileStat]
    problems: tuple[Condition, ...]
    unlisted: tuple[str, ...]
    unchanged: int = 0
    archived: frozenset[str] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Return True if every folder was listed."""
        return not self.unlisted

    @property
    def count(self) -> int:
        """Return the number of documents on the disk."""
        return len(self.documents) + self.unchanged

    def hides(self, path: str | os.PathLike[str]) -> bool:
        """Return True if the scan could not look where an absolute path lies, so that its absence means nothing."""
        text = os.fspath(path)
        return any(text.startswith(above.rstrip(os.sep) + os.sep) for above in self.unlisted)


class ScanProblems:
    """Conditions of files, folders that the system does not list, and counts of documents left out.

    It keeps the first conditions of each code, and counts the rest.
    """

    def __init__(self) -> None:
        self.unlisted: dict[str, None] = {}
        self.left_out: Counter[str] = Counter()
        self._found: dict[ConditionCode, dict[str, Condition]] = {}
        self._more: Counter[ConditionCode] = Counter()

    def add(self, code: ConditionCode, path: str, **params: Param) -> None:
        """Add a condition of a file or folder, once."""
        conditions = self._found.setdefault(code, {})
        subject = printable(path)
        if subject in conditions:
            return
        if len(conditions) >= _MOST_KEPT:
            self._more[code] += 1
        else:
            conditions[subject] = Condition(code, subject, params=params)

    def add_missing(self, folder: str, code: ConditionCode, configured: str) -> None:
        """Add a configured folder that is not there."""
        self.unlisted[folder] = None
        self.add(code, configured)

    def add_unlistable(self, folder: str, error: OSError) -> None:
        """Add a folder that the system does not list."""
        self.unlisted[folder] = None
        if error.errno == errno.ENAMETOOLONG:
            self.add(ConditionCode.PATH_TOO_LONG, folder)
        else:
            self.add(ConditionCode.FOLDER_UNLISTABLE, folder, error=error.strerror or str(error))

    def conditions(self) -> tuple[Condition, ...]:
        """Return each condition once, and the numbers of those that were not kept."""
        first = [condition for kind in self._found.values() for condition in kind.values()]
        more = (
            Condition(ConditionCode.MORE_FILES, code.value, params={"count": count, "kind": code.value})
            for code, count in self._more.items()
        )
        return (*first, *more)


def files_of(
    root: Root,
    problems: ScanProblems,
    reason_of: Callable[[Root, str], str | None] | None,
    entering: Callable[[str], object] | None = None,
    *,
    missing: ConditionCode | None = None,
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the documents' files of a root, each by its path as in keys; count in `problems` those left out.

    `missing`: the condition of a root that is not there.
    """
    top = root.path
    if root.below and os.path.islink(top):  # noqa: PTH114 - a plain string
        # A link inside the workspace; a configured folder may be one.
        problems.add(ConditionCode.FILE_IS_LINK, top)
        return
    if not os.path.isdir(top):  # noqa: PTH112 - a plain string
        if missing is not None and not root.below:
            problems.add_missing(top, missing, root.configured)
        return
    if root.excludes(root.prefix, is_folder=True):
        problems.left_out[EXCLUDED_FOLDERS] += 1
        return

    def takes(path: str) -> bool:
        document = document_name(path)
        if root.rule.is_partial and not root.rule.holds(root.named(document) or ()):
            return False
        reason = reason_of(root, document) if reason_of is not None else None
        if reason is not None:
            problems.left_out[reason] += 1
        return reason is None

    def enters(folder: str) -> bool:
        if root.excludes(folder, is_folder=True):
            problems.left_out[EXCLUDED_FOLDERS] += 1
            return False
        return root.rule.reaches(root.named(folder) or ())

    takes_all = reason_of is None and not root.rule.is_partial
    start = join(root.prefix, "*")[:-1]
    yield from walk(
        top, start, root.rule.is_name, problems, takes=None if takes_all else takes, enters=enters, entering=entering
    )


def walk(
    top: str,
    start: str,
    is_document: Callable[[str], bool],
    problems: ScanProblems,
    *,
    takes: Callable[[str], bool] | None = None,
    enters: Callable[[str], bool] | None = None,
    entering: Callable[[str], object] | None = None,
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path and stat of each document below a folder. Costs a stat per document and a listing per folder.

    A path is as in keys: `start`, then the way below `top`. `is_document` judges a file by its name, `takes` a document
    and `enters` a folder by its path; both count what they leave out. No walk enters a hidden or ignored folder.
    `entering` gets each folder before it is listed. `problems` get the odd entries and the folders that the system does
    not list.
    """
    waiting = [(top, start)]
    count = 0
    while waiting:
        folder, start = waiting.pop()
        if count > MAX_DOCUMENTS:
            problems.unlisted[top] = None
            problems.add(ConditionCode.TOO_MANY_DOCUMENTS, folder, most=MAX_DOCUMENTS)
            return
        if entering is not None:
            entering(folder)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = entry.name
                    has_name = is_document(name)
                    if has_name and entry.is_file(follow_symlinks=False):
                        if takes is None or takes(start + name):
                            try:
                                result = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue
                            except OSError as error:
                                if error.errno != errno.ENAMETOOLONG:
                                    raise
                                problems.add(ConditionCode.PATH_TOO_LONG, entry.path)
                                continue
                            count += 1
                            yield start + name, result
                    elif is_folder_name(name) and entry.is_dir(follow_symlinks=False):
                        if enters is None or enters(start + name):
                            waiting.append((entry.path, f"{start}{name}/"))
                    else:
                        _add_odd_entry(problems, entry, top, is_document=has_name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problems.add_unlistable(folder, error)


def _add_odd_entry(problems: ScanProblems, entry: os.DirEntry[str], top: str, *, is_document: bool) -> None:
    """Add the condition of an entry that a user may miss: neither a document nor a folder that the walk enters.

    `is_document`: by its name. A link to what lies below `top` anyway is no loss.
    """
    name = entry.name
    if not is_utf8(name):
        if not name.startswith("."):
            problems.add(ConditionCode.FILE_NAME_NOT_UTF8, entry.path)
    elif entry.is_symlink():
        if is_document or (is_folder_name(name) and os.path.isdir(entry.path)):  # noqa: PTH112 - Path raises for a loop of links
            target = os.path.realpath(entry.path)
            if parts_below(target, os.path.realpath(top)) is None or not os.path.exists(target):  # noqa: PTH110 - a plain string
                problems.add(ConditionCode.FILE_IS_LINK, entry.path)
    elif is_document and not entry.is_dir(follow_symlinks=False):
        problems.add(ConditionCode.FILE_NOT_REGULAR, entry.path)
    elif is_unread_session(entry.path):
        problems.left_out[UNREAD] += 1


class KnownFiles:
    """Documents of an index without their names, about 170 bytes each, to compare a scan with.

    The scan shows every document on the disk to `differs`. `absent` then reads the index once more, only for documents
    that were not shown.

    A document is known by the 64-bit hash that Python gives its key, another one in every process. Two of a million
    documents share one in one of forty million processes; recalld looks at one of them in vain there.
    """

    def __init__(self, files: Iterable[IndexedFile] = ()) -> None:
        # None: it was shown.
        self._stats: dict[int, bytes | None] = {hash(file.key): packed(file.stat) for file in files}
        #: Number of known documents that were not shown.
        self.absentees = len(self._stats)
        #: Number of shown documents that are as the index knows them.
        self.unchanged = 0

    def __len__(self) -> int:
        return len(self._stats)

    def __contains__(self, key: DocumentKey) -> bool:
        return hash(key) in self._stats

    def differs(self, key: DocumentKey, stat: FileStat) -> bool:
        """Return True if a document on the disk is new or changed since the last look, at first since the index."""
        name = hash(key)
        packed_stat = self._stats.get(name)
        if packed_stat is None:
            return name not in self._stats
        self._stats[name] = None
        self.absentees -= 1
        if packed_stat != packed(stat) and not FileStat(*_STAT.unpack(packed_stat)).agrees_with(stat):
            return True
        self.unchanged += 1
        return False

    def absent(self, files: Iterable[IndexedFile]) -> list[DocumentKey]:
        """Return the known documents that were never shown. Reads `files`, of the same index, only if there are any."""
        if not self.absentees:
            return []
        return [file.key for file in files if self._stats.get(hash(file.key)) is not None]


def packed(stat: FileStat) -> bytes:
    """Return a stat in 32 bytes: size, write time, inode, change time."""
    return _STAT.pack(stat.size, stat.mtime_ns, stat.inode, stat.ctime_ns)


def file_stat(result: os.stat_result) -> FileStat:
    """Return the part of a stat that an index remembers, for all resolutions of times.

    A write time stays in order. A change time is only a fingerprint: it tells one edit from the next though the clock
    is centuries off.
    """
    mtime_ns = result.st_mtime_ns
    if not EARLIEST_NS <= mtime_ns <= LATEST_NS:
        mtime_ns = EARLIEST_NS if mtime_ns < 0 else LATEST_NS
    ctime_ns = result.st_ctime_ns & LATEST_NS
    # Mostly they are equal, and one number for both: of a million files that is 32 MB less.
    return FileStat(result.st_size, mtime_ns, result.st_ino, mtime_ns if mtime_ns == ctime_ns else ctime_ns)


def printable(path: str) -> str:
    """Return a path in a form that can be written and shown: control characters are escaped."""
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can hold and no file system gives.
        text = path.encode("utf-8", "backslashreplace").decode()
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    half = _SHOWN_CHARS // 2
    return text if len(text) <= _SHOWN_CHARS else f"{text[:half]}...{text[-half:]}"
