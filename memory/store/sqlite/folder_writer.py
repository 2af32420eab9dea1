"""Folder of one agent's index in SQLite: the writing half of `memory.store.sqlite.folder`."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memory.store.errors import NoRoom, StoreFull, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.sqlite.folder import CURRENT, NEXT, IndexFolder
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import Store

#: Possible size of a new generation relative to the present one: other chunks, wider vectors.
GROWTH = 1.5

#: Extra bytes for its write-ahead log and for other programs that write meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024

#: Damaged files that are kept for inspection.
KEPT_CORRUPT_FILES = 2

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LOCK = "lock"
_COMPANIONS = ("", "-wal", "-shm")


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user may still write to a folder; None if the system does not report them."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def require_room(current: Path, *, free: Callable[[Path], int | None] = free_bytes) -> None:
    """Check that a new generation fits on the disk beside the file `current`.

    Raises:
        NoRoom: too few bytes are free.
    """
    left = free(current.parent)
    present = sum(
        part.stat().st_size for end in ("", "-wal") if (part := current.with_name(current.name + end)).exists()
    )
    needed = int(present * GROWTH) + RESERVE_BYTES
    if left is not None and left < needed:
        raise NoRoom(
            f"a new index beside the present one needs about {needed / 1e6:,.0f} MB, and {left / 1e6:,.0f} MB are free "
            f"in {current.parent}; free some and it is built (the present one answers meanwhile)"
        )


class WritableFolder(IndexFolder):
    """Folder of one agent's index, for the owner and its workers. It is made on demand.

    Stores stay open until `close`, also those of replaced generations: running jobs finish with them.

    Raises, from every method:
        StoreUnreadable: the folder cannot be read or written.
        StoreFull: the disk is full.
    """

    def __init__(self, folder: Path, options: StoreOptions, *, free: Callable[[Path], int | None] = free_bytes) -> None:
        super().__init__(folder, options)
        self._free = free
        self._lock = threading.RLock()
        self._stores: dict[str, Store] = {}

    def existing(self, pointer: str) -> str | None:
        """Return the name in a pointer if that generation exists."""
        name = self.pointer(pointer)
        return name if name is not None and (self._folder / name).exists() else None

    def store(self, name: str) -> Store:
        """Return the open store of a generation."""
        with self._lock:
            if name not in self._stores or not (self._folder / name).exists():
                self._stores[name] = SqliteStore(self._folder / name, self._options)
            return self._stores[name]

    def create(self, fingerprint: str, description: str) -> str:
        """Make an empty generation; return its name."""
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{when}-{re.sub('[^0-9A-Za-z]', '', fingerprint)[:8] or '0'}-{secrets.token_hex(2)}.sqlite"
        create_generation(self._folder / name, self._options, fingerprint=fingerprint, description=description)
        return name

    def point(self, pointer: str, name: str) -> None:
        """Replace a pointer atomically and durably."""
        self.set_note(pointer, f"{name}\n")

    def unpoint(self, pointer: str) -> None:
        """Remove a pointer."""
        self.set_note(pointer, None)

    def set_note(self, name: str, text: str | None) -> None:
        """Replace or remove a note beside the generations, atomically and durably."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / name
        if path.is_dir():
            path.rename(path.with_name(f"{name}.damaged-{time.time_ns()}"))
        if text is None:
            path.unlink(missing_ok=True)
        else:
            draft = path.with_name(f"{name}.tmp")
            with draft.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def require_room(self, current: str) -> None:
        """Check that a new generation fits beside this one, after a sweep if need be. The caller holds `locked`.

        Raises:
            NoRoom: it does not.
        """
        try:
            require_room(self._folder / current, free=self._free)
        except NoRoom:
            self._sweep(older_than_seconds=0.0, kept_corrupt=KEPT_CORRUPT_FILES)
            require_room(self._folder / current, free=self._free)

    def replaced(self, name: str) -> None:
        """Let the age of a replaced generation count from now."""
        os.utime(self._folder / name)

    def set_aside(self, name: str) -> Path:
        """Rename a damaged generation, drop the pointers to it and return its new path.

        Do nothing if another process has already renamed it.
        """
        with self._lock, self.locked():
            aside = self._folder / f"{name}.corrupt-{int(time.time())}"
            for pointer in (CURRENT, NEXT):
                if self.pointer(pointer) == name:
                    self.unpoint(pointer)
            for companion in _COMPANIONS:
                source = self._folder / f"{name}{companion}"
                if source.exists():
                    source.rename(f"{aside}{companion}")
            return aside

    def sweep(self, *, older_than_seconds: float, kept_corrupt: int | None = KEPT_CORRUPT_FILES) -> None:
        """Delete unreferenced generations of this age, and all but the newest corrupt ones (None: keep all).

        A deleted file disappears from the folder at once. Its readers go on reading; its space returns when the last
        one closes.
        """
        if self._folder.is_dir():
            with self.locked():
                self._sweep(older_than_seconds=older_than_seconds, kept_corrupt=kept_corrupt)

    def _sweep(self, *, older_than_seconds: float, kept_corrupt: int | None) -> None:
        unused, corrupt = self.leftovers()
        # Without CURRENT, one of the unreferenced generations was the live one: keep them all.
        for path in unused if self.existing(CURRENT) is not None else ():
            if time.time() - path.stat().st_mtime >= older_than_seconds:
                _delete(path)
        if kept_corrupt is not None:
            corrupt.sort(key=lambda path: int(path.name.rpartition("-")[2]))
            for path in corrupt[: max(0, len(corrupt) - kept_corrupt)]:
                _delete(path)

    def close(self) -> None:
        """Close all stores. Another call opens them again."""
        with self._lock:
            for store in self._stores.values():
                store.close()
            self._stores.clear()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, which is made if needed. It excludes other processes and threads."""
        try:
            # Memory is private to its owner, like the transcripts.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # With a new descriptor each time, flock also excludes threads of this process.
            descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise StoreFull(f"no space left for {self._folder}; free some and indexing goes on") from error
            raise StoreUnreadable(
                f"{self._folder} cannot be changed ({error.strerror}); check that it exists and its permissions"
            ) from error


def _delete(path: Path) -> None:
    for companion in _COMPANIONS:
        path.with_name(f"{path.name}{companion}").unlink(missing_ok=True)
