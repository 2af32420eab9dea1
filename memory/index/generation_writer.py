"""Creation, completion, quarantine and removal of generations: the writing half of `memory.index.generations`."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from memory.index.generations import CORRUPT, CURRENT, NEXT, Generations, begun_at
from memory.store.errors import (
    NoRoom,
    OtherVersion,
    SettingsOlder,
    StoreCorrupt,
    StoreFull,
    StoreUnreadable,
    Superseded,
)
from memory.store.options import StoreOptions
from memory.store.sqlite.reader import SqliteReader
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import Store

#: Possible size of a new generation relative to the present one: other chunks, wider vectors.
GROWTH = 1.5

#: Extra bytes for its write-ahead log and for other programs that write meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024

_FILE_AND_LOG = ("", "-wal")


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
    needed = int(sum(_size(current.with_name(current.name + end)) for end in _FILE_AND_LOG) * GROWTH) + RESERVE_BYTES
    if left is not None and left < needed:
        raise NoRoom(
            f"a new index beside the present one needs about {_megabytes(needed)}, and {_megabytes(left)} are free in "
            f"{current.parent}; free some and it is built (the present one answers meanwhile)"
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _megabytes(amount: int) -> str:
    return f"{amount / 1_000_000:,.0f} MB"


#: Damaged files that are kept for inspection.
KEPT_CORRUPT_FILES = 2

#: Seconds after which a replaced store is closed. A job takes about a minute.
RETIREMENT_SECONDS = 600.0

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LOCK = "lock"
_SUFFIX = ".sqlite"
_COMPANIONS = ("", "-wal", "-shm")


class GenerationWriter(Generations):
    """Generations of one agent, for workers. The folder is made on demand.

    `free` returns the bytes free in a folder. `outdated` returns True if the pointers changed after the fingerprint was
    computed. `decided_at` returns the Unix time of the settings: generations begun later with other settings are left
    alone.

    A lock across processes protects changes of the pointers. Stores stay open between calls. The store of a replaced
    generation stays usable for `RETIREMENT_SECONDS`, so that running jobs can finish; readers no longer see its
    changes.

    Raises, from every method:
        StoreUnreadable: the folder cannot be read or written.
        StoreFull: the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        options: StoreOptions,
        *,
        free: Callable[[Path], int | None] = free_bytes,
        outdated: Callable[[], bool] = lambda: False,
        decided_at: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(folder, options)
        self._free = free
        self._outdated = outdated
        self._decided_at = decided_at
        self._lock = threading.RLock()
        self._open_stores: dict[str, Store] = {}
        self._retired: list[tuple[float, Store]] = []
        # Last result of `open_writer`, with its fingerprint and pointers.
        self._last: tuple[object, list[Store]] | None = None

    def open_writer(self, fingerprint: str, description: str) -> list[Store]:
        """Return the generations that a worker writes to, the target first. The caller must not close them.

        Without a generation, a new one is made and answers at once. If NEXT has this fingerprint: NEXT, then CURRENT,
        which keeps answering and is kept up to date. If CURRENT has it: CURRENT alone. Otherwise a new NEXT is made,
        followed by CURRENT.

        Raises:
            StoreCorrupt: a generation is damaged; `generation` on the error names it.
            NoRoom: a new NEXT does not fit on the disk; CURRENT keeps answering.
            Superseded: NEXT would be dropped or begun for an `outdated` fingerprint.
            SettingsOlder: the settings are older than these generations.
        """
        with self._lock:
            if self._last is not None and self._last[0] == (fingerprint, self._writer_token()):
                return list(self._last[1])
            with self._locked():
                names = self._choose(fingerprint, description)
            stores = [self._store(names[0]), *self._readable(names[1:])]
            self._retire(keep=names)
            self._last = (fingerprint, self._writer_token()), stores
            return list(stores)

    def is_first(self, store: Store) -> bool:
        """Return True if a store is still the target. Changes written to another store alone may be lost."""
        name = self._existing(NEXT) or self._existing(CURRENT)
        return name is not None and self._open_stores.get(name) is store

    def open_stores(self) -> list[Store]:
        """Return the stores that `open_writer` has open, in any order."""
        with self._lock:
            return list(self._open_stores.values())

    def open_existing(self) -> list[Store]:
        """Return NEXT and CURRENT, as far as they exist and this version can read them. The caller must not close them.

        Raises:
            StoreCorrupt: like `open_writer`.
        """
        with self._lock:
            names = dict.fromkeys((self._existing(NEXT), self._existing(CURRENT)))
            return list(self._readable([name for name in names if name is not None]))

    def close(self) -> None:
        """Close all stores. Another call opens them again."""
        with self._lock:
            self._retire(keep=())
            for _, store in self._retired:
                store.close()
            self._retired.clear()

    def _choose(self, fingerprint: str, description: str) -> list[str]:
        """Return the names of the generations to write, making missing ones. The caller holds the folder's lock."""
        current = self._existing(CURRENT)
        target = self._existing(NEXT)
        if target is not None and target == current:
            self._unpoint(NEXT)  # a crash right after a flip
            target = None
        if current is None and (found := self._left_behind(fingerprint, but=target)) is not None:
            self._point(CURRENT, found)
            current = found
        if current is None and target is not None and self._has(target, fingerprint):
            self._point(CURRENT, target)  # half an index is better than none
            self._unpoint(NEXT)
            current, target = target, None
        if current is None:
            current = self._create(fingerprint, description)
            self._point(CURRENT, current)
        if target is not None and self._has(target, fingerprint):
            return [target, current]
        wanted = self._has(current, fingerprint)
        if wanted and target is None:
            return [current]
        # The folder is locked: no other process begins a generation between this check and the change.
        if self._outdated():
            raise Superseded("another generation was begun or put in place meanwhile; this is looked at again")
        if self._decided_at() < (begun_at(target or current) or 0.0) <= time.time():
            raise SettingsOlder(
                f"process {os.getpid()} read its settings before those were there that the index is made with, and "
                "leaves it to the processes that have these: start it again"
            )
        if target is not None:
            self._unpoint(NEXT)  # the settings went back before it was finished, or its space may be needed
        if wanted:
            return [current]
        self._make_room(current)
        target = self._create(fingerprint, description)
        self._point(NEXT, target)
        return [target, current]

    def _left_behind(self, fingerprint: str, *, but: str | None) -> str | None:
        """Return the name of the unreferenced generation that a lost CURRENT most probably named, None without any.

        Generations with this fingerprint come first, then those with the most files. The result may hold documents that
        are no longer on the disk.
        """
        best: tuple[tuple[bool, int, str], str] | None = None
        for path in self.leftovers()[0]:
            if path.name == but:
                continue
            try:
                reader = SqliteReader(path, self._options)
            except (StoreCorrupt, StoreUnreadable):
                continue
            try:
                files, same = reader.counts().files, reader.meta("fingerprint") == fingerprint
            except (StoreCorrupt, StoreUnreadable):
                continue
            finally:
                reader.close()
            rank = (same, files, path.name)
            if files and (best is None or rank > best[0]):
                best = rank, path.name
        return best[1] if best is not None else None

    def start_rebuild(self, fingerprint: str, description: str) -> None:
        """Begin a new NEXT in any case, even with little free space. `sweep` deletes the previous NEXT."""
        with self._locked():
            self._point(NEXT, self._create(fingerprint, description))

    def go_on_rebuilding(self, fingerprint: str, description: str) -> bool:
        """Begin a NEXT with this fingerprint unless there is one; return True if there was.

        Raises:
            NoRoom: like `open_writer`.
        """
        with self._locked():
            current, target = self._existing(CURRENT), self._existing(NEXT)
            if target is not None and target != current and self._has(target, fingerprint):
                return True
            if current is not None:
                self._make_room(current)
            self._point(NEXT, self._create(fingerprint, description))
            return False

    def _make_room(self, current: str) -> None:
        """Check that a copy of the current generation fits beside it, sweeping if needed. The caller holds the folder's
        lock."""
        try:
            require_room(self._folder / current, free=self._free)
        except NoRoom:
            self._sweep(older_than_seconds=0.0, kept_corrupt=KEPT_CORRUPT_FILES)
            require_room(self._folder / current, free=self._free)

    def complete(self, fingerprint: str) -> bool:
        """Make NEXT the answering generation if it has this fingerprint; return True if it was made so.

        The replaced generation stays on the disk for its readers until `sweep`.
        """
        with self._locked():
            target = self._existing(NEXT)
            current = self._existing(CURRENT)
            if target is None or target == current or not self._has(target, fingerprint):
                return False
            self._point(CURRENT, target)
            self._unpoint(NEXT)
            if current is not None:
                os.utime(self._folder / current)  # its age as a replaced generation counts from now
            return True

    def set_aside(self, name: str) -> Path:
        """Rename a damaged generation, drop the pointers to it and return its new path.

        Do nothing if another process has already renamed it.
        """
        with self._lock, self._locked():
            aside = self._folder / f"{name}.corrupt-{int(time.time())}"
            for pointer in (CURRENT, NEXT):
                if self._pointer(pointer) == name:
                    self._unpoint(pointer)
            for companion in _COMPANIONS:
                source = self._folder / f"{name}{companion}"
                if source.exists():
                    source.rename(f"{aside}{companion}")
            self._retire(keep=[open_name for open_name in self._open_stores if open_name != name])
            return aside

    def set_aside_damaged(self, *, suspect: str | None = None) -> list[Path]:
        """Set aside the suspect and every damaged generation that a pointer names; return their new paths.

        `suspect` is `StoreCorrupt.generation`.
        """
        damaged = {} if suspect is None or not (self._folder / suspect).exists() else {suspect: None}
        for name in (self._existing(CURRENT), self._existing(NEXT)):
            if name is not None and not self._is_sound(name):
                damaged[name] = None
        return [self.set_aside(name) for name in damaged]

    def sweep(self, *, older_than_seconds: float, kept_corrupt: int = KEPT_CORRUPT_FILES) -> None:
        """Delete unreferenced generations of this age, and all but the newest corrupt ones.

        A deleted file disappears from the folder at once. Its readers go on reading; its space returns when the last
        one closes.
        """
        if not self._folder.is_dir():
            return
        with self._locked():
            self._sweep(older_than_seconds=older_than_seconds, kept_corrupt=kept_corrupt)

    def _sweep(self, *, older_than_seconds: float, kept_corrupt: int) -> None:
        named = {self._pointer(CURRENT), self._pointer(NEXT)}
        # CURRENT is missing, so one of the unreferenced generations was the live one: keep them all.
        lost = self._existing(CURRENT) is None
        corrupt: list[tuple[int, Path]] = []
        now = time.time()
        for path in self._folder.iterdir():
            if CORRUPT.match(path.name):
                corrupt.append((int(path.name.rpartition("-")[2]), path))
            elif not path.name.endswith(_SUFFIX) or path.name in named or lost:
                continue
            elif now - path.stat().st_mtime >= older_than_seconds:
                _delete(path)
        for _, path in sorted(corrupt)[: max(0, len(corrupt) - kept_corrupt)]:
            _delete(path)

    def sweep_unused(self, *, older_than_seconds: float) -> None:
        """Delete unreferenced generations of this age; damaged ones stay."""
        with self._locked():
            for path in self.leftovers()[0] if self._existing(CURRENT) is not None else ():
                if time.time() - path.stat().st_mtime >= older_than_seconds:
                    _delete(path)

    def _create(self, fingerprint: str, description: str) -> str:
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{when}-{re.sub('[^0-9A-Za-z]', '', fingerprint)[:8] or '0'}-{secrets.token_hex(2)}{_SUFFIX}"
        create_generation(self._folder / name, self._options, fingerprint=fingerprint, description=description)
        return name

    def _store(self, name: str) -> Store:
        if name not in self._open_stores:
            self._open_stores[name] = SqliteStore(self._folder / name, self._options)
        return self._open_stores[name]

    def _readable(self, names: Sequence[str]) -> Iterator[Store]:
        """Open the generations that this version of recalld can read."""
        for name in names:
            with suppress(OtherVersion):
                yield self._store(name)

    def _retire(self, *, keep: Collection[str]) -> None:
        """Retire the stores that are not to be kept, and close those whose retirement is over."""
        now = time.monotonic()
        for name in [name for name in self._open_stores if name not in keep]:
            self._retired.append((now, self._open_stores.pop(name)))
            self._last = None
        while self._retired and now - self._retired[0][0] > RETIREMENT_SECONDS:
            self._retired.pop(0)[1].close()

    def _writer_token(self) -> object:
        """Return a value that differs after a change of the pointers or the loss of an open file."""
        there = all((self._folder / name).exists() for name in self._open_stores)
        return self._token(CURRENT), self._token(NEXT), there

    def _has(self, name: str, fingerprint: str) -> bool:
        reader = SqliteReader(self._folder / name, self._options)
        try:
            return reader.meta("fingerprint") == fingerprint
        finally:
            reader.close()

    def _is_sound(self, name: str) -> bool:
        try:
            reader = self.open_named(name)
            if reader is None:
                return True
            try:
                return not reader.check()
            finally:
                reader.close()
        except StoreCorrupt:
            return False

    def _existing(self, pointer: str) -> str | None:
        """Return the name in a pointer if that file exists."""
        name = self._pointer(pointer)
        return name if name is not None and (self._folder / name).exists() else None

    def _point(self, pointer: str, name: str) -> None:
        """Replace a pointer atomically and durably."""
        draft = self._folder / f"{pointer}.tmp"
        with draft.open("w", encoding="utf-8") as file:
            file.write(f"{name}\n")
            file.flush()
            os.fsync(file.fileno())
        self._set_aside_folder(pointer)
        draft.replace(self._folder / pointer)
        self._sync_folder()

    def _unpoint(self, pointer: str) -> None:
        self._set_aside_folder(pointer)
        (self._folder / pointer).unlink(missing_ok=True)
        self._sync_folder()

    def _set_aside_folder(self, pointer: str) -> None:
        path = self._folder / pointer
        if path.is_dir():
            path.rename(path.with_name(f"{pointer}.damaged-{time.time_ns()}"))

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _locked(self) -> Iterator[None]:
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
            raise _in_our_words(error, self._folder) from error


def _in_our_words(error: OSError, folder: Path) -> StoreFull | StoreUnreadable:
    if error.errno in _NO_SPACE:
        return StoreFull(f"no space left for {folder}; free some and indexing goes on")
    return StoreUnreadable(f"{folder} cannot be changed ({error.strerror}); check that it exists and its permissions")


def _delete(path: Path) -> None:
    for companion in _COMPANIONS:
        path.with_name(f"{path.name}{companion}").unlink(missing_ok=True)
