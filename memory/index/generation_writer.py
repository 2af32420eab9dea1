"""Making, finishing, setting aside and sweeping generations. The writing half of `memory.index.generations`."""

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

#: How much larger than the present generation the new one may become: other chunks, wider vectors.
GROWTH = 1.5

#: Bytes on top of it: its write-ahead log, and what everything else goes on writing meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024

_FILE_AND_LOG = ("", "-wal")


def free_bytes(folder: Path) -> int | None:
    """Bytes that this user may still write there; None when the system does not say."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def require_room(current: Path, *, free: Callable[[Path], int | None] = free_bytes) -> None:
    """See to it that a generation that replaces the file `current` fits beside it.

    Raises:
        NoRoom: it does not, as far as one can tell.
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


#: Damaged files that are kept to be looked at.
KEPT_CORRUPT_FILES = 2

#: A job is over after a minute or so; nobody is in the middle of anything after this long.
RETIREMENT_SECONDS = 600.0

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LOCK = "lock"
_SUFFIX = ".sqlite"
_COMPANIONS = ("", "-wal", "-shm")


class GenerationWriter(Generations):
    """One agent's folder, for workers. The folder is made when it is needed. `free` says how many bytes are free there.
    `outdated` says whether the fingerprints that are asked for were decided upon before the pointers changed, and
    `decided_at` when, as Unix time: generations that somebody else began later, with other settings, are left alone.

    Changes of the pointers exclude each other across processes; nothing else waits. Stores stay open from
    one call to the next. One whose generation was replaced stays usable for `RETIREMENT_SECONDS`, for those
    who are in the middle of something: what they write to it is merely not looked at any more.

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
        # What `open_writer` returned last, and for which pointers and fingerprint.
        self._last: tuple[object, list[Store]] | None = None

    def open_writer(self, fingerprint: str, description: str) -> list[Store]:
        """The generations that a worker writes to, the one that must be right first. Not to be closed.

        No generation yet: one is made and answers at once. NEXT has this fingerprint: NEXT, and then
        CURRENT, which goes on answering and is kept up to date. CURRENT has it: that one alone. Neither
        has: a new NEXT is made, and then CURRENT as before.

        Raises:
            StoreCorrupt: a generation is damaged; `generation` on the error names the one to set aside.
            NoRoom: a new NEXT is needed and would not fit on the disk; CURRENT goes on answering.
            Superseded: NEXT would be given up or begun for a fingerprint that is `outdated`.
            SettingsOlder: the same for one that was decided upon before these generations were begun.
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
        """Whether a store of `open_writer` is still the one that must be right: what is written to another one alone
        may never be found."""
        name = self._existing(NEXT) or self._existing(CURRENT)
        return name is not None and self._open_stores.get(name) is store

    def open_stores(self) -> list[Store]:
        """The stores that `open_writer` has open, in no promised order."""
        with self._lock:
            return list(self._open_stores.values())

    def open_existing(self) -> list[Store]:
        """The generations that there are, the one under construction first; none is made. Not to be closed. Without one
        that only another version can read.

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
        """Settle which generations are to be written, making what is missing; the folder is locked."""
        current = self._existing(CURRENT)
        target = self._existing(NEXT)
        if target is not None and target == current:
            self._unpoint(NEXT)  # a crash right after a flip
            target = None
        if current is None and (found := self._left_behind(fingerprint, but=target)) is not None:
            self._point(CURRENT, found)
            current = found
        if current is None and target is not None and self._has(target, fingerprint):
            self._point(CURRENT, target)  # better half an index than none
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
        # The folder is locked: nobody begins a generation between this look and what follows from it.
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
        """The generation that the lost pointer must have named: of those that no pointer names the one that holds most,
        one with this fingerprint first; None when there is none. It may hold what is not on the disk any more.
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
        """Begin a fresh NEXT, whatever there is already, and however little space. What was being built is left to
        `sweep`."""
        with self._locked():
            self._point(NEXT, self._create(fingerprint, description))

    def go_on_rebuilding(self, fingerprint: str, description: str) -> bool:
        """Begin a NEXT, unless one with this fingerprint is under construction: that one goes on. Whether one does.

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
        """See to it that a generation like the current one fits beside it; the folder is locked."""
        try:
            require_room(self._folder / current, free=self._free)
        except NoRoom:
            self._sweep(older_than_seconds=0.0, kept_corrupt=KEPT_CORRUPT_FILES)
            require_room(self._folder / current, free=self._free)

    def complete(self, fingerprint: str) -> bool:
        """Let NEXT answer from now on, if it has this fingerprint. False when there is nothing to do.

        The generation that answered before stays on the disk for those who read it, until `sweep`.
        """
        with self._locked():
            target = self._existing(NEXT)
            current = self._existing(CURRENT)
            if target is None or target == current or not self._has(target, fingerprint):
                return False
            self._point(CURRENT, target)
            self._unpoint(NEXT)
            if current is not None:
                os.utime(self._folder / current)  # from now on it is counted as replaced
            return True

    def set_aside(self, name: str) -> Path:
        """Rename a damaged generation, and drop the pointers to it. Returns its new path.

        Nothing happens when it is gone: somebody else has set it aside.
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
        """Set aside the suspect, and every generation that a pointer names and that does not hold together.

        `suspect` is what `StoreCorrupt.generation` said. Returns the new paths.
        """
        damaged = {} if suspect is None or not (self._folder / suspect).exists() else {suspect: None}
        for name in (self._existing(CURRENT), self._existing(NEXT)):
            if name is not None and not self._is_sound(name):
                damaged[name] = None
        return [self.set_aside(name) for name in damaged]

    def sweep(self, *, older_than_seconds: float, kept_corrupt: int = KEPT_CORRUPT_FILES) -> None:
        """Delete generations that no pointer names since that many seconds, and all but the newest corrupt ones.

        Whoever reads a deleted one goes on reading it: its name goes at once, its space with the last reader.
        """
        if not self._folder.is_dir():
            return
        with self._locked():
            self._sweep(older_than_seconds=older_than_seconds, kept_corrupt=kept_corrupt)

    def _sweep(self, *, older_than_seconds: float, kept_corrupt: int) -> None:
        named = {self._pointer(CURRENT), self._pointer(NEXT)}
        # One of those that nobody names answered until somebody, or the disk, lost the pointer to it.
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
        """Delete generations that no pointer names since that many seconds; damaged ones stay."""
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
        """Open generations, without one that only another version can read."""
        for name in names:
            with suppress(OtherVersion):
                yield self._store(name)

    def _retire(self, *, keep: Collection[str]) -> None:
        """Put away the stores that are not to be kept, and close those that were put away long ago."""
        now = time.monotonic()
        for name in [name for name in self._open_stores if name not in keep]:
            self._retired.append((now, self._open_stores.pop(name)))
            self._last = None
        while self._retired and now - self._retired[0][0] > RETIREMENT_SECONDS:
            self._retired.pop(0)[1].close()

    def _writer_token(self) -> object:
        """Differs when the pointers changed, or a file that is open for writing is not there any more."""
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
        """What a pointer names, unless that file is gone."""
        name = self._pointer(pointer)
        return name if name is not None and (self._folder / name).exists() else None

    def _point(self, pointer: str, name: str) -> None:
        """Replace a pointer in one step that survives a power cut."""
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
        """Exclude other processes and threads from changing pointers; the folder exists afterwards."""
        try:
            # What agents remember is their owner's alone, as their transcripts are.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A descriptor of its own each time: flock then excludes threads of this process, too.
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
