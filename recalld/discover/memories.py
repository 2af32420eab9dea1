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
    notes: Counted = Counted()
    transcripts: Counted = Counted()
    settings: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def newest(self) -> float:
        """Unix time of the newest file, 0 when there is none."""
        return max(self.notes.newest or 0.0, self.transcripts.newest or 0.0)

    @property
    def is_empty(self) -> bool:
        """Return True if all files were counted and there is none."""
        return not any(counted.files or not counted.complete for counted in (self.notes, self.transcripts))

    def counted(self, until: float) -> Found:
        """Return the memory with its files counted, until that moment of the monotonic clock."""
        extra = [path["path"] if isinstance(path, Mapping) else path for path in self.settings.get("extra_paths", ())]
        users: Callable[[str], bool] = LONG_TERM_NAMES[2:].__contains__
        below = [os.path.expanduser(path) for path in ("memory", *extra)]  # noqa: PTH111 - Path's own raises
        notes = [(self.workspace / USERS_FOLDER, users), *((self.workspace / path, is_note_name) for path in below)]
        transcripts = [(Path(folder), is_transcript_name) for folder in self.sessions]
        return replace(
            self,
            notes=_count(notes, until, files=[self.workspace / name for name in LONG_TERM_NAMES]),
            transcripts=_count(transcripts, until),
        )


@dataclass(frozen=True, slots=True)
class Discovery:
    """All memories of a machine, and sentences about places that could not be searched."""

    found: tuple[Found, ...] = ()
    problems: tuple[str, ...] = ()


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


def _count(
    folders: Iterable[tuple[Path, Callable[[str], bool]]], until: float, *, files: Iterable[Path] = ()
) -> Counted:
    """Count the wanted files below folders and some more files, each once, whatever the number of its names."""
    found: dict[tuple[int, int], os.stat_result] = {}
    complete = True

    def goes_on(_: str) -> bool:
        nonlocal complete
        complete = time.monotonic() < until
        return complete

    for file in files:
        with suppress(OSError):
            entry = os.lstat(file)
            found[entry.st_dev, entry.st_ino] = entry
    for folder, wanted in folders:
        # A folder that cannot be listed has nothing that could be indexed.
        for _, entry in walk(str(folder), "", wanted, ScanProblems(), goes_on=goes_on):
            found[entry.st_dev, entry.st_ino] = entry
    return Counted(
        len(found),
        sum(entry.st_size for entry in found.values()),
        max((file_stat(entry).mtime_ns / 1e9 for entry in found.values()), default=None),
        complete,
    )
