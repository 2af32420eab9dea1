"""Folder of one agent's index in SQLite, for readers.

It holds files with immutable names and two small pointer files:

    CURRENT                              name of the generation that answers
    NEXT                                 name of the generation under construction, if any
    20261121T101112-3f2a9c41-9d0e.sqlite a generation (and its -wal and -shm)
    *.sqlite.corrupt-<unix time>         a damaged one, kept for inspection
    lock                                 held (flock) while pointers change

A generation never changes its name, and names are never reused: no reader has a file swapped under it.
`memory.store.sqlite.folder_writer` is the other half.
"""

from __future__ import annotations

import os
import re
import time
from calendar import timegm
from dataclasses import dataclass
from pathlib import Path

from memory.store.errors import StoreCorrupt, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.vectors import VectorShelf
from schemas.settings import Settings

CURRENT = "CURRENT"
NEXT = "NEXT"

#: The name of a damaged generation that was set aside.
CORRUPT = re.compile(r".+\.sqlite\.corrupt-\d+\Z")

# Allowed contents of a pointer.
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*\.sqlite")
_LONGEST_NAME = 256

#: Age from which a modification time shows every later change: some file systems count whole seconds.
_SETTLED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Looks:
    """State of the answering generation's files. Equal `settled` states mean that nothing was committed in between."""

    pointer: object
    files: tuple[tuple[int, int, int] | None, ...]
    settled: bool


def place_of(settings: Settings, agent_id: str) -> tuple[Path, StoreOptions]:
    """Return the folder of an agent's index and the options for opening it."""
    return settings.indexes_path / agent_id, StoreOptions.of(settings.store)


class IndexFolder:
    """Folder of one agent's index. Nothing is made or changed; the folder need not exist.

    `shelf` is where readers may hold vectors in memory.
    """

    def __init__(self, folder: Path, options: StoreOptions, *, shelf: VectorShelf | None = None) -> None:
        self._folder = folder
        self._options = options
        self._shelf = shelf
        # Token and contents of CURRENT.
        self._named: tuple[object, str | None] = (None, None)

    @property
    def place(self) -> object:
        """Return the identity of the index among all agents'."""
        return self._folder

    def pointer_token(self) -> object:
        """Return a value that differs after a flip, so that readers reopen. Costs one `stat`."""
        return self.token(CURRENT)

    def token(self, name: str) -> object:
        """Return a value that differs after a pointer or a note was replaced; None without it."""
        stat = _stat(self._folder / name)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) if stat is not None else None

    def note(self, name: str) -> str | None:
        """Return the text of a note beside the generations, None without it. Raises OSError."""
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def looks(self) -> Looks:
        """Return the state of the files without opening the index. Costs a few `stat`s.

        Raises:
            StoreUnreadable: the pointer cannot be read.
        """
        token = self.pointer_token()
        if self._named[0] != token or token is None:
            self._named = (token, self.pointer(CURRENT))
        name = self._named[1]
        # The log changes with every commit, the database when the log is copied back.
        stats = [_stat(self._folder / f"{name}{end}") for end in ("", "-wal")] if name is not None else []
        newest = max((stat.st_mtime for stat in stats if stat is not None), default=0.0)
        return Looks(
            pointer=token,
            files=tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat is not None else None for stat in stats),
            settled=abs(time.time() - newest) > _SETTLED_SECONDS,
        )

    def open_named(self, name: str) -> StoreReader | None:
        """Open a generation by its name, None if it is gone.

        Raises:
            StoreUnreadable: it cannot be opened; the message says why.
            StoreCorrupt: it is damaged; a worker sets it aside and builds a new one.
        """
        path = self._folder / name
        try:
            return SqliteReader(path, self._options, shelf=self._shelf)
        except (StoreUnreadable, StoreCorrupt):
            if path.exists():
                raise
            return None

    def leftovers(self) -> tuple[list[Path], list[Path]]:
        """Return the unreferenced generations and the damaged ones that were set aside.

        Readers may still use unreferenced generations; a sweep deletes them later. If a pointer cannot be read, none
        counts as unreferenced.
        """
        try:
            paths = sorted(self._folder.iterdir())
        except OSError:
            return [], []
        damaged = [path for path in paths if CORRUPT.match(path.name)]
        try:
            named = {self.pointer(CURRENT), self.pointer(NEXT)}
        except StoreUnreadable:
            return [], damaged
        return [path for path in paths if path.name.endswith(".sqlite") and path.name not in named], damaged

    def pointer(self, pointer: str) -> str | None:
        """Return the name in a pointer. Damaged contents count as no pointer.

        Raises:
            StoreUnreadable: it cannot be read.
        """
        try:
            with (self._folder / pointer).open("rb") as file:
                name = file.read(_LONGEST_NAME).decode("ascii", "replace").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None  # a folder counts as a damaged pointer; the writer renames it
        except OSError as error:
            raise StoreUnreadable(
                f"{self._folder / pointer} cannot be read ({error.strerror}); mend its permissions or its disk"
            ) from error
        # Only a name: a pointer must not lead out of its folder.
        return name if _NAME.fullmatch(name) else None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def begun_at(name: str) -> float | None:
    """Return the Unix time in a generation's name, None without one."""
    try:
        return float(timegm(time.strptime(name[:15], "%Y%m%dT%H%M%S")))
    except ValueError:
        return None
