"""Generations of an agent's index as SQLite files in one folder. The reading half.

    CURRENT                              name of the generation that answers
    NEXT                                 name of the generation under construction, if any
    20261121T101112-3f2a9c41-9d0e.sqlite a generation (and its -wal and -shm)
    *.sqlite.corrupt-<unix time>         a damaged one, kept for inspection
    lock                                 held (flock) while pointers change

No reader has a file swapped under it. `memory.index.file_generation_writer` is the other half.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import closing, suppress
from pathlib import Path

from memory.index.fingerprint import embedding_of
from memory.index.generations import CURRENT, NEXT, GenerationFacts, Generations
from memory.store.errors import StoreCorrupt, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.vectors import VectorShelf
from schemas.errors import RecalldError

#: The name of a damaged generation that was set aside.
_CORRUPT = re.compile(r".+\.sqlite\.corrupt-\d+\Z")

# Allowed contents of a pointer.
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]*\.sqlite")
_LONGEST_NAME = 256

#: Age from which a modification time shows every later change: some file systems count whole seconds.
_SETTLED_SECONDS = 2.0

#: Facts of generations, by folder and name, which is never reused.
_facts: dict[tuple[Path, str], GenerationFacts] = {}


class FileGenerations(Generations):
    """Generations of one agent in a folder, which need not exist."""

    def __init__(self, folder: Path, options: StoreOptions, *, shelf: VectorShelf | None = None) -> None:
        self.folder = folder
        self._options = options
        self._shelf = shelf
        # Token and contents of CURRENT.
        self._named: tuple[object, str | None] = (None, None)

    def pointer(self, pointer: str) -> str | None:
        # Damaged contents count as no pointer.
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
        # Costs one `stat`.
        stat = _stat(self.folder / pointer)
        return (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) if stat is not None else None

    def looks(self) -> object:
        # Costs a few `stat`s.
        token = self.token()
        if self._named[0] != token or token is None:
            self._named = (token, self.current())
        name = self._named[1]
        # The log changes with every commit, the database when the log is copied back.
        stats = [_stat(self.folder / f"{name}{end}") for end in ("", "-wal")] if name is not None else []
        newest = max((stat.st_mtime for stat in stats if stat is not None), default=0.0)
        states = tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat is not None else None for stat in stats)
        return (token, states) if abs(time.time() - newest) > _SETTLED_SECONDS else None

    def used_at(self) -> float:
        try:
            return max(path.stat().st_mtime for path in self.folder.iterdir())
        except (OSError, ValueError):
            return 0.0

    def leftovers(self) -> tuple[list[str], list[str]]:
        try:
            names = sorted(path.name for path in self.folder.iterdir())
        except OSError:
            return [], []
        damaged = [name for name in names if _CORRUPT.match(name)]
        try:
            referenced = {self.pointer(CURRENT), self.pointer(NEXT)}
        except StoreUnreadable:
            return [], damaged
        return [name for name in names if name.endswith(".sqlite") and name not in referenced], damaged

    def open_named(self, name: str, *, any_format: bool = False) -> StoreReader | None:
        path = self.folder / name
        try:
            return SqliteReader(path, self._options, shelf=self._shelf, any_format=any_format)
        except (StoreUnreadable, StoreCorrupt):
            if path.exists():
                raise
            return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
