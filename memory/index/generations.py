"""Generations of an agent's index: the answering one and the one under construction. The reading half.

The folder of an agent's index holds files with immutable names and two small pointer files:

    CURRENT                              name of the generation that answers
    NEXT                                 name of the generation under construction, if any
    20261121T101112-3f2a9c41-9d0e.sqlite a generation (and its -wal and -shm)
    *.sqlite.corrupt-<unix time>         a damaged one, kept for inspection
    lock                                 held (flock) while pointers change

A generation never changes its name, and names are never reused: no reader has a file swapped under it.
`memory.index.generation_writer` is the other half.
"""

from __future__ import annotations

import os
import re
import time
from calendar import timegm
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from memory.index.fingerprint import embedding_of
from memory.store.errors import OtherFormat, StoreCorrupt, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.vectors import VectorShelf
from schemas.errors import RecalldError
from schemas.settings import Settings

__all__ = ["CURRENT", "NEXT", "GenerationFacts", "Generations", "Looks", "VectorShelf", "begun_at"]

CURRENT = "CURRENT"
NEXT = "NEXT"

#: Attempts to open a generation that is replaced and deleted after its pointer was read.
_ATTEMPTS = 5

#: The name of a damaged generation that was set aside.
_CORRUPT = re.compile(r".+\.sqlite\.corrupt-\d+\Z")

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


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """Facts of a generation that never change: the identity of its vectors, and the record of a takeover."""

    identity: str
    takeover: str | None


#: Facts of generations, by folder and name, which is never reused.
_facts: dict[tuple[Path, str], GenerationFacts] = {}


class Generations:
    """Generations of one agent, for readers. Nothing is made or changed; the folder need not exist.

    `shelf` is where readers may hold vectors in memory.
    """

    def __init__(self, folder: Path, options: StoreOptions, *, shelf: VectorShelf | None = None) -> None:
        self.folder = folder
        self._options = options
        self._shelf = shelf
        # Token and contents of CURRENT.
        self._named: tuple[object, str | None] = (None, None)

    @classmethod
    def of(cls, settings: Settings, agent_id: str, *, shelf: VectorShelf | None = None) -> Self:
        """Return the generations of an agent."""
        return cls(settings.indexes_path / agent_id, StoreOptions.of(settings.store), shelf=shelf)

    def current(self) -> str | None:
        """Return the name of the answering generation, None without one."""
        return self.pointer(CURRENT)

    def next(self) -> str | None:
        """Return the name of the generation under construction, None without one."""
        name = self.pointer(NEXT)
        # A crash right after a flip leaves both pointers on the same file.
        return None if name is not None and name == self.current() else name

    def pointer(self, pointer: str) -> str | None:
        """Return the name in a pointer. Damaged contents count as no pointer.

        Raises:
            StoreUnreadable: it cannot be read.
        """
        try:
            with (self.folder / pointer).open("rb") as file:
                name = file.read(_LONGEST_NAME).decode("ascii", "replace").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None  # a folder counts as a damaged pointer; the writer renames it
        except OSError as error:
            raise StoreUnreadable(
                f"{self.folder / pointer} cannot be read ({error.strerror}); mend its permissions or its disk"
            ) from error
        # Only a name: a pointer must not lead out of its folder.
        return name if _NAME.fullmatch(name) else None

    def facts(self, pointer: str) -> GenerationFacts | None:
        """Return the facts of the generation that a pointer names, None if it cannot be read."""
        with suppress(RecalldError):
            if (name := self.pointer(pointer)) is None:
                return None
            key = (self.folder, name)
            if key not in _facts and (reader := self.open_named(name, any_format=True)) is not None:
                with closing(reader):
                    _facts[key] = GenerationFacts(embedding_of(reader.meta("identity")), reader.meta("takeover"))
            return _facts.get(key)
        return None

    def token(self, pointer: str = CURRENT) -> object:
        """Return a value that differs after a pointer was replaced; None without it. Costs one `stat`."""
        stat = _stat(self.folder / pointer)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) if stat is not None else None

    def tokens(self) -> object:
        """Return a value that differs after CURRENT or NEXT was replaced. Costs two `stat`s."""
        return self.token(CURRENT), self.token(NEXT)

    def looks(self) -> Looks:
        """Return the state of the files without opening the index. Costs a few `stat`s.

        Raises:
            StoreUnreadable: the pointer cannot be read.
        """
        token = self.token()
        if self._named[0] != token or token is None:
            self._named = (token, self.current())
        name = self._named[1]
        # The log changes with every commit, the database when the log is copied back.
        stats = [_stat(self.folder / f"{name}{end}") for end in ("", "-wal")] if name is not None else []
        newest = max((stat.st_mtime for stat in stats if stat is not None), default=0.0)
        return Looks(
            pointer=token,
            files=tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat is not None else None for stat in stats),
            settled=abs(time.time() - newest) > _SETTLED_SECONDS,
        )

    def leftovers(self) -> tuple[list[Path], list[Path]]:
        """Return the unreferenced generations and the damaged ones that were set aside.

        Readers may still use unreferenced generations; a sweep deletes them later. If a pointer cannot be read, none
        counts as unreferenced.
        """
        try:
            paths = sorted(self.folder.iterdir())
        except OSError:
            return [], []
        damaged = [path for path in paths if _CORRUPT.match(path.name)]
        try:
            referenced = {self.pointer(CURRENT), self.pointer(NEXT)}
        except StoreUnreadable:
            return [], damaged
        return [path for path in paths if path.name.endswith(".sqlite") and path.name not in referenced], damaged

    def open_named(self, name: str, *, any_format: bool = False) -> StoreReader | None:
        """Open a generation by its name, None if it is gone. `any_format`: see `StoreReader`.

        Raises:
            StoreUnreadable: it cannot be opened, or has another format; the message says why.
            StoreCorrupt: it is damaged; a worker sets it aside and builds a new one.
        """
        path = self.folder / name
        try:
            return SqliteReader(path, self._options, shelf=self._shelf, any_format=any_format)
        except (StoreUnreadable, StoreCorrupt):
            if path.exists():
                raise
            return None

    def open_reader(self, *, any_format: bool = False) -> StoreReader | None:
        """Open the answering generation, None without one. Raises like `open_named`."""
        return self._open(CURRENT, any_format=any_format)

    def target_reader(self, fingerprint: str) -> StoreReader | None:
        """Open the generation to compare with the disk: NEXT if it has this fingerprint, else CURRENT if it has.

        Return None if neither has, or in another format. Raises like `open_named`.
        """
        for pointer in (NEXT, CURRENT):
            reader = None
            with suppress(OtherFormat):
                reader = self._open(pointer)
            if reader is None:
                continue
            if reader.meta("fingerprint") == fingerprint:
                return reader
            reader.close()
        return None

    def _open(self, pointer: str, *, any_format: bool = False) -> StoreReader | None:
        """Open the generation that a pointer names; try again if it was flipped and swept in between."""
        for _ in range(_ATTEMPTS):
            name = self.pointer(pointer)
            if name is None:
                return None
            try:
                reader = self.open_named(name, any_format=any_format)
            except (StoreUnreadable, StoreCorrupt):
                if self.pointer(pointer) == name:
                    raise
            else:
                if reader is not None or self.pointer(pointer) == name:
                    return reader
        return None


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
