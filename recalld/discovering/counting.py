"""How many files there are, how large and how new, in bounded time."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from memory.documents.roots import LONG_TERM_NAMES, USERS_FOLDER, is_folder_name, is_note_name
from memory.documents.session_roots import is_transcript_name
from memory.documents.walk import file_stat


class Deadline:
    """A moment after which nothing more is counted."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self._end


@dataclass(frozen=True, slots=True)
class Counted:
    """Files, their bytes, and the Unix time of the newest; not `complete`: at least so many."""

    files: int = 0
    bytes: int = 0
    newest: float | None = None
    complete: bool = True

    def __add__(self, other: Counted) -> Counted:
        times = [found for found in (self.newest, other.newest) if found is not None]
        return Counted(
            self.files + other.files,
            self.bytes + other.bytes,
            max(times, default=None),
            self.complete and other.complete,
        )


NOTHING = Counted()


def count_transcripts(folders: Iterable[str], *, deadline: Deadline) -> Counted:
    """The transcripts below these folders."""
    return sum((_count(folder, is_transcript_name, deadline) for folder in folders), NOTHING)


def count_markdown(folder: Path, *, deadline: Deadline) -> Counted:
    """All Markdown files below a folder."""
    return _count(str(folder), is_note_name, deadline)


def count_notes(workspace: Path, extra: Iterable[str] = (), *, deadline: Deadline) -> Counted:
    """The notes of a workspace and of further folders."""
    found = sum((_count(str(folder), is_note_name, deadline) for folder in (workspace / "memory", *extra)), NOTHING)
    found += _count(str(workspace / USERS_FOLDER), lambda name: name == LONG_TERM_NAMES[2], deadline)
    files: set[tuple[int, int]] = set()
    for name in LONG_TERM_NAMES:
        try:
            stat = os.lstat(workspace / name)
        except OSError:
            continue
        if (stat.st_dev, stat.st_ino) not in files:  # one file by two names where case does not count
            files.add((stat.st_dev, stat.st_ino))
            found += Counted(1, stat.st_size, file_stat(stat).mtime_ns / 1e9)
    return found


def _count(folder: str, wanted: Callable[[str], bool], deadline: Deadline) -> Counted:
    files = size = 0
    newest: float | None = None
    waiting = [folder]
    while waiting:
        if deadline.is_over():
            return Counted(files, size, newest, complete=False)
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if is_folder_name(entry.name):
                            waiting.append(entry.path)
                    elif wanted(entry.name) and entry.is_file(follow_symlinks=False):
                        stat = file_stat(entry.stat(follow_symlinks=False))
                        files, size = files + 1, size + stat.size
                        newest = max(-math.inf if newest is None else newest, stat.mtime_ns / 1e9)
        except OSError:
            continue  # locked away or just gone: nothing of it could be indexed, either
    return Counted(files, size, newest)
