"""Which of an agent's index files answers, and which one is under construction. The reading half.

One folder per agent holds immutable names and two small pointer files:

    CURRENT                              the name of the generation that answers
    NEXT                                 the name of the one being built, if any
    20261121T101112-3f2a9c41-9d0e.sqlite a generation (and its -wal and -shm)
    *.sqlite.corrupt-<unix time>         a damaged one, kept to be looked at
    lock                                 held (flock) while pointers change

A generation never changes its name and never gets another's, so no reader ever has a file swapped under
it. `memory.index.generation_writer` is the other half.
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
from memory.store.sqlite.vector_cache import VectorShelf

CURRENT = "CURRENT"
NEXT = "NEXT"

#: The name of a damaged generation that was set aside.
CORRUPT = re.compile(r".+\.sqlite\.corrupt-\d+\Z")

# What a pointer may say.
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*\.sqlite")
_LONGEST_NAME = 256

#: How often a generation is looked up anew when it went away between reading the pointer and opening the file.
_ATTEMPTS = 5


#: Seconds after which a file's time of change tells whether it was changed again: some file systems count in seconds.
_SETTLED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Looks:
    """What the files of the answering generation look like from outside. Equal looks that are `settled` mean that
    nothing was committed in between."""

    pointer: object
    files: tuple[tuple[int, int, int] | None, ...]
    settled: bool


class Generations:
    """One agent's folder, for readers. Nothing is made or changed; the folder need not exist.

    `shelf` is where readers may hold vectors in memory.
    """

    def __init__(self, folder: Path, options: StoreOptions, *, shelf: VectorShelf | None = None) -> None:
        self._folder = folder
        self._options = options
        self._shelf = shelf
        # The token of CURRENT, and what it said then.
        self._named: tuple[object, str | None] = (None, None)

    def current(self) -> str | None:
        """File name of the generation that answers, None when there is none."""
        return self._pointer(CURRENT)

    def next(self) -> str | None:
        """File name of the generation under construction, None when there is none."""
        name = self._pointer(NEXT)
        # A crash right after a flip leaves both pointers on the same file.
        return None if name is not None and name == self.current() else name

    def pointer_token(self) -> object:
        """A value that differs after a flip: readers reopen then. Costs one `stat`."""
        return self._token(CURRENT)

    def looks(self) -> Looks:
        """Look at the files without opening the index. Costs a few `stat`s.

        Raises:
            StoreUnreadable: the pointer cannot be read.
        """
        token = self.pointer_token()
        if self._named[0] != token or token is None:
            self._named = (token, self.current())
        name = self._named[1]
        # The log changes with every commit, the database when the log is copied back.
        stats = [_stat(self._folder / f"{name}{end}") for end in ("", "-wal")] if name is not None else []
        newest = max((stat.st_mtime for stat in stats if stat is not None), default=0.0)
        return Looks(
            pointer=token,
            files=tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat is not None else None for stat in stats),
            settled=abs(time.time() - newest) > _SETTLED_SECONDS,
        )

    def open_reader(self) -> StoreReader | None:
        """Open the generation that answers, None when there is none.

        Raises:
            StoreUnreadable: it cannot be opened; the message says why.
            StoreCorrupt: it is damaged; a worker sets it aside and builds it again.
        """
        return self._open(CURRENT)

    def open_named(self, name: str) -> StoreReader | None:
        """Open one generation by its file name, None when it is gone.

        Raises:
            StoreUnreadable, StoreCorrupt: like `open_reader`.
        """
        path = self._folder / name
        try:
            return SqliteReader(path, self._options, shelf=self._shelf)
        except (StoreUnreadable, StoreCorrupt):
            if path.exists():
                raise
            return None

    def target_reader(self, fingerprint: str) -> StoreReader | None:
        """Open the generation to compare the disk with: NEXT if it has this fingerprint, else CURRENT if it has.

        None when neither has: then nothing is indexed yet the way it is wanted.

        Raises:
            StoreUnreadable, StoreCorrupt: like `open_reader`.
        """
        for pointer in (NEXT, CURRENT):
            reader = self._open(pointer)
            if reader is None:
                continue
            if reader.meta("fingerprint") == fingerprint:
                return reader
            reader.close()
        return None

    def leftovers(self) -> tuple[list[Path], list[Path]]:
        """Generations that no pointer names (readers may still use them; a sweep deletes them later), and damaged ones
        that were set aside. Where a pointer cannot be read, each may be the one that it names."""
        try:
            paths = sorted(self._folder.iterdir())
        except OSError:
            return [], []
        damaged = [path for path in paths if CORRUPT.match(path.name)]
        try:
            named = {self._pointer(CURRENT), self._pointer(NEXT)}
        except StoreUnreadable:
            return [], damaged
        return [path for path in paths if path.name.endswith(".sqlite") and path.name not in named], damaged

    def _open(self, pointer: str) -> StoreReader | None:
        """Open what a pointer names; look again when it was flipped and swept in between."""
        for _ in range(_ATTEMPTS):
            name = self._pointer(pointer)
            if name is None:
                return None
            try:
                reader = self.open_named(name)
            except (StoreUnreadable, StoreCorrupt):
                if self._pointer(pointer) == name:
                    raise
            else:
                if reader is not None or self._pointer(pointer) == name:
                    return reader
        return None

    def _pointer(self, pointer: str) -> str | None:
        try:
            with (self._folder / pointer).open("rb") as file:
                name = file.read(_LONGEST_NAME).decode("ascii", "replace").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None  # a folder is as good as a spoilt pointer; the writer sets it aside
        except OSError as error:
            raise StoreUnreadable(
                f"{self._folder / pointer} cannot be read ({error.strerror}); mend its permissions or its disk"
            ) from error
        # A name, never a path: a pointer must not lead out of its folder. One that a disk spoilt names nothing.
        return name if _NAME.fullmatch(name) else None

    def _token(self, pointer: str) -> object:
        stat = _stat(self._folder / pointer)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) if stat is not None else None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def begun_at(name: str) -> float | None:
    """Unix time at which a generation was begun, by its name."""
    try:
        return float(timegm(time.strptime(name[:15], "%Y%m%dT%H%M%S")))
    except ValueError:
        return None
