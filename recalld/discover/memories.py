"""Memories that recalld could keep, with the number, size and age of their files, counted in bounded time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memory.documents.roots import LONG_TERM_NAMES, USERS_FOLDER, is_note_name, is_transcript_name
from memory.documents.scan import ScanProblems, file_stat, walk
from schemas.settings import AGENT_ID_PATTERN

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_CHARS = 40


@dataclass(frozen=True, slots=True)
class Counted:
    """Number of files, their bytes, and the Unix time of the newest. Unless `complete`, there may be more."""

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


def is_over(until: float) -> bool:
    """Return True from this moment (of the monotonic clock) on: then no more files are counted."""
    return time.monotonic() >= until


@dataclass(frozen=True, slots=True)
class Found:
    """One memory that recalld could keep.

    `name` becomes the agent's id; a user picks the memory by it. `settings` are the agent's own and `shared` those of
    all agents, both as nested tables in recalld's names. `remarks` are sentences for the user.
    """

    name: str
    program: str
    title: str
    workspace: Path
    sessions: tuple[str, ...] = ()
    notes: Counted = NOTHING
    transcripts: Counted = NOTHING
    settings: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def newest(self) -> float:
        """Unix time of the newest file, 0 when there is none."""
        return max(self.notes.newest or 0.0, self.transcripts.newest or 0.0)


@dataclass(frozen=True, slots=True)
class Discovery:
    """All memories of a machine, and sentences about places that could not be searched."""

    found: tuple[Found, ...] = ()
    problems: tuple[str, ...] = ()

    def __add__(self, other: Discovery) -> Discovery:
        return Discovery(self.found + other.found, self.problems + other.problems)


def with_unique_names(found: Iterable[Found]) -> tuple[Found, ...]:
    """Return the memories, each with a name that is an agent's id. Of equal names the first stays as it is."""
    taken: set[str] = set()
    named = []
    for one in found:
        plain = _NOT_IN_A_NAME.sub("-", one.name).strip("-._")[:_MAX_NAME_CHARS].rstrip("-._") or one.program
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.lower())
        assert re.match(AGENT_ID_PATTERN, name)  # noqa: S101 - made so above
        named.append(replace(one, name=name))
    return tuple(named)


def absolute_path(value: object) -> Path | None:
    """Return an absolute path that another program wrote, `~` expanded; None for everything else."""
    if not isinstance(value, str) or "\0" in value:
        return None
    text = os.path.expanduser(value.strip())  # noqa: PTH111 - Path's own raises for a user without a home
    return Path(os.path.normpath(text)) if text.startswith("/") else None


def count_transcripts(folders: Iterable[str], *, until: float) -> Counted:
    """Count the transcripts below these folders."""
    return sum((_count(folder, is_transcript_name, until) for folder in folders), NOTHING)


def count_markdown(folder: Path, *, until: float) -> Counted:
    """Count all Markdown files below a folder."""
    return _count(str(folder), is_note_name, until)


def count_notes(workspace: Path, extra: Iterable[str] = (), *, until: float) -> Counted:
    """Count the notes of a workspace and of further folders."""
    found = sum((_count(str(folder), is_note_name, until) for folder in (workspace / "memory", *extra)), NOTHING)
    found += _count(str(workspace / USERS_FOLDER), lambda name: name == LONG_TERM_NAMES[2], until)
    # One file has two of these names where a file system ignores case.
    files = {}
    for name in LONG_TERM_NAMES:
        with suppress(OSError):
            entry = os.lstat(workspace / name)
            files[entry.st_dev, entry.st_ino] = entry
    return sum(map(_counted, files.values()), found)


def _count(folder: str, wanted: Callable[[str], bool], until: float) -> Counted:
    found, complete = NOTHING, True

    def goes_on(_: str) -> bool:
        nonlocal complete
        complete = not is_over(until)
        return complete

    # A folder that cannot be listed has nothing that could be indexed.
    for _, entry in walk(folder, "", wanted, ScanProblems(), goes_on=goes_on):
        found += _counted(entry)
    return replace(found, complete=complete)


def _counted(entry: os.stat_result) -> Counted:
    return Counted(1, entry.st_size, file_stat(entry).mtime_ns / 1e9)
