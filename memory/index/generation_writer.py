"""Beginning, completion and removal of generations: the writing half of `memory.index.generations`.

One process owns the indexes of a home. It alone replaces an answering generation: it begins, flips and sweeps, and it
decides about the fallback provider. Other workers write to the generations that CURRENT and NEXT name.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from memory.http.whole_files import move_folder_aside, sync_folder, write_whole
from memory.index.fingerprint import Fingerprint, embedding_of, name_in
from memory.index.generations import CURRENT, NEXT, Generations
from memory.store.durable_sqlite import locked, parts, set_aside
from memory.store.errors import NoRoom, NotOwner, OtherFormat, StoreCorrupt, StoreFull, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import Store
from schemas.settings import Settings

#: Possible size of a new generation relative to the present one: other chunks, wider vectors.
GROWTH = 1.5

#: Extra bytes for its write-ahead log and for other programs that write meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024

#: Damaged files that are kept for inspection, and the seconds for which they are: they hold text that may be deleted.
KEPT_CORRUPT_FILES = 2
KEPT_CORRUPT_SECONDS = 2_700.0

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class IndexOwner:
    """Owner of a home: the process that holds a lock file. The system releases it when the process ends.

    A home that cannot be written has no owner.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "owner.lock"
        self._held: ExitStack | None = None
        self._lock = threading.Lock()

    def owns(self) -> bool:
        """Return True if this process is the owner, or takes the place of an owner that has ended. Cheap."""
        with self._lock, suppress(OSError):
            if self._held is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                stack = ExitStack()
                if stack.enter_context(locked(self._path, wait=False)):
                    self._held = stack
                else:
                    stack.close()
            return self._held is not None
        return False

    def close(self) -> None:
        """Leave the ownership to another process."""
        if self._held is not None:
            self._held.close()
            self._held = None


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
    available = free(current.parent)
    present = sum(
        part.stat().st_size for end in ("", "-wal") if (part := current.with_name(current.name + end)).exists()
    )
    needed = int(present * GROWTH) + RESERVE_BYTES
    if available is not None and available < needed:
        raise NoRoom(
            f"a new index beside the present one needs about {needed / 1e6:,.0f} MB, and {available / 1e6:,.0f} MB are "
            f"free in {current.parent}; free some and it is built (the present one answers meanwhile)"
        )


class GenerationWriter(Generations):
    """Generations of one agent, for the owner and its workers. The folder is made on demand.

    A lock across processes protects changes of the pointers. Stores stay open until `close`, also those of replaced
    generations: running jobs finish with them.

    Raises, from every method:
        StoreUnreadable: the folder cannot be read or written.
        StoreFull: the disk is full.
    """

    def __init__(self, folder: Path, options: StoreOptions, *, owner: IndexOwner | None = None) -> None:
        super().__init__(folder, options)
        self._owner = owner
        self._lock = threading.RLock()
        self._stores: dict[str, Store] = {}
        #: Generations of another format, for their vectors.
        self._foreign: dict[str, StoreReader] = {}

    @classmethod
    def at(cls, settings: Settings, agent_id: str, *, owner: IndexOwner | None = None) -> Self:
        """Return the generations of an agent. Without an `owner`, no other process works."""
        return cls(settings.indexes_path / agent_id, StoreOptions.of(settings.store), owner=owner)

    def close(self) -> None:
        """Close all stores. Another call opens them again."""
        with self._lock:
            for store in (*self._stores.values(), *self._foreign.values()):
                store.close()
            self._stores.clear()
            self._foreign.clear()

    def require_owner(self) -> None:
        """Check that this process may replace the answering generation.

        Raises:
            NotOwner: another process owns the indexes.
        """
        if self._owner is not None and not self._owner.owns():
            raise NotOwner(
                f"another process owns the indexes of this home, and process {os.getpid()} waits for it; if it waits "
                "for long, their settings differ: start both again with the same ones"
            )

    def open_writer(self, fingerprint: Fingerprint) -> list[Store]:
        """Return the generations that a worker writes to, the target first. The caller must not close them.

        Without a generation, a new one is made and answers at once. If NEXT has this identity: NEXT, then CURRENT,
        which keeps answering and is kept up to date. If CURRENT has it: CURRENT alone. Otherwise the owner makes a new
        NEXT, followed by CURRENT.

        Raises:
            StoreCorrupt: a generation is damaged; `generation` on the error names it.
            NoRoom: a new NEXT does not fit on the disk; CURRENT keeps answering.
            NotOwner: CURRENT and NEXT have other fingerprints, and another process owns them.
        """
        names = self._names_to_write(fingerprint)
        if names is None:
            with self._locked():
                names = self._names_to_write(fingerprint) or self._make_missing(fingerprint)
        try:
            return [self._store(names[0]), *self._readable(names[1:])]
        except (StoreUnreadable, StoreCorrupt):
            if all((self.folder / name).exists() for name in names):
                raise
            return self.open_writer(fingerprint)  # one was replaced and deleted meanwhile

    def is_first(self, store: Store) -> bool:
        """Return True if a store is still the target. Changes written to another store alone may be lost."""
        name = self._existing(NEXT) or self._existing(CURRENT)
        return name is not None and self._stores.get(name) is store

    def open_stores(self) -> list[StoreReader]:
        """Return the generations that are open, those of another format included, in any order."""
        with self._lock:
            return [*self._stores.values(), *self._foreign.values()]

    def open_existing(self) -> list[Store]:
        """Return NEXT and CURRENT, as far as they exist in the format of this version. The caller must not close them.

        Raises:
            StoreCorrupt: like `open_writer`.
        """
        names = dict.fromkeys((self._existing(NEXT), self._existing(CURRENT)))
        return list(self._readable([name for name in names if name is not None]))

    def _names_to_write(self, fingerprint: Fingerprint) -> list[str] | None:
        """Return the names of the generations to write; None if they have to be made first."""
        current, target = self._existing(CURRENT), self._existing(NEXT)
        if current is None or current == target or not self._has(target or current, fingerprint.digest):
            return None
        return [current] if target is None else [target, current]

    def _make_missing(self, fingerprint: Fingerprint) -> list[str]:
        """Make the missing generations; return the names to write. The caller holds the folder's lock."""
        takeover = self._takeover_of(fingerprint)
        current, target = self._existing(CURRENT), self._existing(NEXT)
        if target == current:
            target = None  # a crash right after a flip
        if current is None:
            current = self._lost_current(fingerprint.digest, but=target)
            if current is None and target is not None and self._has(target, fingerprint.digest):
                current, target = target, None  # half an index is better than none
            current = current or self._create(fingerprint, takeover)
            self._point(CURRENT, current)
        if target is not None and self._has(target, fingerprint.digest):
            return [target, current]
        if target is not None or not self._has(current, fingerprint.digest):
            self.require_owner()
        self._point(NEXT, None)  # the settings went back before it was finished, or its space may be needed
        if self._has(current, fingerprint.digest):
            return [current]
        self._require_room(current)
        target = self._create(fingerprint, takeover)
        self._point(NEXT, target)
        return [target, current]

    def _lost_current(self, fingerprint: str, *, but: str | None) -> str | None:
        """Return the name of the unreferenced generation that a lost CURRENT most probably named, None without any.

        Generations with this fingerprint come first, then those with the most files. The result may hold documents that
        are no longer on the disk.
        """
        ranked: list[tuple[bool, int, str]] = []
        for path in self.leftovers()[0]:
            with suppress(StoreCorrupt, StoreUnreadable):
                reader = self.open_named(path.name) if path.name != but else None
                if reader is not None:
                    with closing(reader):
                        ranked.append((reader.meta("fingerprint") == fingerprint, reader.counts().files, path.name))
        ranked = [entry for entry in ranked if entry[1]]
        return max(ranked)[2] if ranked else None

    def begin(
        self,
        fingerprint: Fingerprint,
        *,
        force: bool = False,
        instead_of: Fingerprint | None = None,
        takeover: str | None = None,
    ) -> None:
        """Begin a NEXT with this identity unless there is one; with `force` in any case, even with little free space.

        `instead_of` is the identity that the same settings have without a rebuild. `takeover` is the record of a
        takeover, by default that of the present generations of the same provider.

        Raises:
            NoRoom: like `open_writer`.
            NotOwner: another process owns the indexes and makes them with another fingerprint.
        """
        with self._locked():
            current, target = self._existing(CURRENT), self._existing(NEXT)
            exists = target is not None and target != current and self._has(target, fingerprint.digest)
            if exists and not force:
                return
            if current is not None:
                identities = (fingerprint, instead_of or fingerprint)
                if not exists and not any(self._has(current, identity.digest) for identity in identities):
                    self.require_owner()
                if not force:
                    self._require_room(current)
            self._point(NEXT, self._create(fingerprint, takeover or self._takeover_of(fingerprint)))

    def complete(self, fingerprint: str) -> bool:
        """Make NEXT the answering generation if it has this fingerprint; return True if it was made so.

        The replaced generation and the damaged ones disappear from the folder at once. Readers go on reading.

        Raises:
            NotOwner: another process owns the indexes.
        """
        self.require_owner()
        with self._locked():
            target, current = self._existing(NEXT), self._existing(CURRENT)
            if target is None or not self._has(target, fingerprint):
                return False
            if target == current:
                self._point(NEXT, None)
                return False
            self._point(CURRENT, target)
            self._point(NEXT, None)
            self._sweep(0.0, 0)
            return True

    def set_aside_damaged(self, *, suspect: str | None = None) -> list[Path]:
        """Set aside the suspect and every damaged generation that a pointer names; return their new paths.

        `suspect` is `StoreCorrupt.generation`.
        """
        names = dict.fromkeys(name for name in (self._existing(CURRENT), self._existing(NEXT)) if name is not None)
        damaged = {name: None for name in names if name == suspect or not self._is_sound(name)}
        return [self.set_aside(name) for name in damaged]

    def set_aside(self, name: str) -> Path:
        """Rename a damaged generation, drop the pointers to it and return its new path.

        Do nothing if another process has already renamed it.
        """
        with self._lock, self._locked():
            for pointer in (CURRENT, NEXT):
                if self.pointer(pointer) == name:
                    self._point(pointer, None)
            return set_aside(self.folder / name)

    def sweep(self, *, older_than_seconds: float, kept_corrupt: int | None = KEPT_CORRUPT_FILES) -> None:
        """Delete unreferenced generations of this age, and old corrupt ones beyond a number (None: keep all).

        A deleted file disappears from the folder at once. Its readers go on reading; its space returns when the last
        one closes.
        """
        if self.folder.is_dir():
            with self._locked():
                self._sweep(older_than_seconds, kept_corrupt)

    def _sweep(self, older_than_seconds: float, kept_corrupt: int | None) -> None:
        unused, corrupt = self.leftovers()
        # Without CURRENT, one of the unreferenced generations was the live one: keep them all.
        is_lost = self._existing(CURRENT) is None
        surplus = [path for path in unused if not is_lost and time.time() - path.stat().st_mtime >= older_than_seconds]
        if kept_corrupt is not None:
            times = {path: int(path.name.rpartition("-")[2]) for path in corrupt}
            corrupt.sort(key=times.__getitem__, reverse=True)
            oldest = time.time() - KEPT_CORRUPT_SECONDS
            surplus += [path for place, path in enumerate(corrupt) if place >= kept_corrupt or times[path] < oldest]
        for path in surplus:
            for part in parts(path):
                part.unlink(missing_ok=True)

    def _point(self, pointer: str, name: str | None) -> None:
        """Replace or remove a pointer, atomically and durably."""
        path = self.folder / pointer
        move_folder_aside(path)
        if name is None:
            path.unlink(missing_ok=True)
            sync_folder(self.folder)
        else:
            write_whole(path, f"{name}\n".encode())

    def _existing(self, pointer: str) -> str | None:
        """Return the name in a pointer if that generation exists."""
        name = self.pointer(pointer)
        return name if name is not None and (self.folder / name).exists() else None

    def _takeover_of(self, fingerprint: Fingerprint) -> str | None:
        """Return the record of a takeover in the present generations of the same provider, None without one."""
        provider = name_in(embedding_of(fingerprint.description))
        present = filter(None, map(self.facts, (NEXT, CURRENT)))
        return next((facts.takeover for facts in present if name_in(facts.identity) == provider), None)

    def _create(self, fingerprint: Fingerprint, takeover: str | None) -> str:
        """Make an empty generation; return its name."""
        when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{when}-{re.sub('[^0-9A-Za-z]', '', fingerprint.digest)[:8] or '0'}-{secrets.token_hex(2)}.sqlite"
        create_generation(
            self.folder / name,
            self._options,
            fingerprint=fingerprint.digest,
            description=fingerprint.description,
            takeover=takeover,
        )
        return name

    def _require_room(self, current: str) -> None:
        """Check that a new generation fits beside this one, after a sweep if need be. The caller holds the lock.

        Raises:
            NoRoom: it does not.
        """
        try:
            require_room(self.folder / current)
        except NoRoom:
            self._sweep(0.0, KEPT_CORRUPT_FILES)
            require_room(self.folder / current)

    def _store(self, name: str) -> Store:
        """Return the open store of a generation."""
        with self._lock:
            if name not in self._stores or not (self.folder / name).exists():
                self._stores[name] = SqliteStore(self.folder / name, self._options)
            return self._stores[name]

    def _readable(self, names: Sequence[str]) -> Iterator[Store]:
        """Open the generations; yield those that have the format of this version of recalld."""
        for name in names:
            try:
                yield self._store(name)
            except OtherFormat:
                with self._lock:
                    if name not in self._foreign and (reader := self.open_named(name, any_format=True)) is not None:
                        self._foreign[name] = reader

    def _has(self, name: str, fingerprint: str) -> bool:
        """Return True if a generation has this fingerprint, and the format of this version of recalld."""
        if name in self._stores:
            return self._stores[name].meta("fingerprint") == fingerprint
        reader = None
        with suppress(OtherFormat):
            reader = self.open_named(name)
        if reader is None:
            return False
        with closing(reader):
            return reader.meta("fingerprint") == fingerprint

    def _is_sound(self, name: str) -> bool:
        try:
            reader = self.open_named(name)
            if reader is None:
                return True
            with closing(reader):
                return not reader.check()
        except StoreCorrupt:
            return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder, which is made if needed. It excludes other processes and threads."""
        try:
            # Memory is private to its owner, like the transcripts.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.folder / "lock"):
                yield
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise StoreFull(f"no space left for {self.folder}; free some and indexing goes on") from error
            raise StoreUnreadable(
                f"{self.folder} cannot be changed ({error.strerror}); check that it exists and its permissions"
            ) from error
