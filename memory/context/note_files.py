"""Writing of notes into a workspace: append to a day's note, or create a note under a name that is free.

Two writers meet without a loss: a line is appended by one write under a lock of the file, and a new file is created
exclusively. No link is followed. Nothing that a note holds is ever replaced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from schemas.errors import Permanent

_HEADING = re.compile(r"#{1,6}\s")
_MEMORY = "memory"

#: Names that are tried for a new note.
_MAX_NAMES = 1_000


class WriteRefused(Permanent):
    """Write that a turn of the memory may not make: another file than its own, or no regular file."""


def append_note(workspace: Path, path: str, content: str, *, allowed: str) -> str:
    """Append what a day's note does not hold yet, and return the appended text, empty if there is nothing new.

    `path` and `allowed` are relative to the workspace; only the allowed one may be written. Missing folders are made.

    Raises:
        WriteRefused: another path, a link, or not a regular file.
        OSError: the file system refuses.
    """
    if path.removeprefix("./") != allowed:
        raise WriteRefused(f"this turn may write {allowed} only, and only append to it; write the text there")
    with _folder(workspace) as folder:
        try:
            descriptor = os.open(
                allowed.partition("/")[2], os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder
            )
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
                raise WriteRefused(f"{allowed} is not a regular file") from error
            raise
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            held = file.read().decode("utf-8", "replace")
            new = new_text(held, content)
            if new:
                file.write((new if not held or held.endswith("\n") else f"\n{new}").encode("utf-8", "replace"))
            return new


def create_note(workspace: Path, name: str, content: str) -> str:
    """Create memory/`name`.md, or with a number behind the name if that is taken. Return the path in the workspace.

    Raises:
        OSError: the file system refuses.
    """
    data = content.encode("utf-8", "replace")
    with _folder(workspace) as folder:
        for number in count(1):
            file_name = f"{name}.md" if number == 1 else f"{name}-{number}.md"
            try:
                descriptor = os.open(file_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            except FileExistsError:
                if number < _MAX_NAMES:
                    continue
                raise
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            return f"{_MEMORY}/{file_name}"
    raise AssertionError("unreachable")


def new_text(held: str, content: str) -> str:
    """Return what of `content` a note does not hold yet, ready to be appended. No line of the content gets lost.

    A line counts as held if the section of the same heading has it, a line without a heading if any section has it.
    Headings come again above what is new.
    """
    known: dict[str, set[str]] = {}
    for heading, lines in _sections(held):
        known.setdefault(heading, set()).update(lines)
    # What is appended without a heading stands below the last one.
    known[""] = set().union(*known.values())
    new: list[str] = []
    for heading, lines in _sections(content):
        have = known.get(heading, set())
        fresh = [line for line in lines if not line.strip() or line.rstrip() not in have]
        text = "\n".join(fresh).strip("\n")
        if text.strip() or (heading and heading not in known):
            new += [part for part in (heading, text) if part.strip()]
    return "\n".join(new) + "\n" if new else ""


def _sections(text: str) -> list[tuple[str, list[str]]]:
    """Return headings, the first one empty, and the lines below each, without white space at their ends."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines():
        if _HEADING.match(line):
            sections.append((line.rstrip(), []))
        else:
            sections[-1][1].append(line.rstrip())
    return sections


@contextmanager
def _folder(workspace: Path) -> Iterator[int]:
    """Yield a descriptor of the workspace's folder memory/, which is made if it is missing."""
    top = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(FileExistsError):
            os.mkdir(_MEMORY, 0o700, dir_fd=top)
        try:
            folder = os.open(_MEMORY, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        except OSError as error:
            raise WriteRefused(f"{workspace / _MEMORY} is not a folder of the workspace") from error
    finally:
        os.close(top)
    try:
        yield folder
    finally:
        os.close(folder)
