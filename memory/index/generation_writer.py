"""Beginning, completion and removal of generations: the writing half of `memory.index.generations`.

One process owns the indexes of a home. It alone replaces an answering generation: it begins, flips and sweeps, and it
decides about the fallback provider. Other workers write to the generations that CURRENT and NEXT name.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

from memory.index.generations import CURRENT, NEXT, Generations
from memory.store.errors import NotOwner, OtherVersion, StoreCorrupt, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.sqlite.folder import place_of
from memory.store.sqlite.folder_writer import WritableFolder, free_bytes
from memory.store.writer import Store
from schemas.settings import Settings


class Owner(Protocol):
    """Ownership of the indexes of a home or of a fleet."""

    def owns(self) -> bool:
        """Return True if this process is the owner, or takes the place of an owner that has ended. Cheap."""

    def close(self) -> None:
        """Leave the ownership to another process."""


class HomeOwner:
    """Owner of a home: the process that holds a lock file. The system releases it when the process ends."""

    def __init__(self, home: Path) -> None:
        self._path = home / "owner.lock"
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def owns(self) -> bool:
        with self._lock:
            if self._descriptor is None:
                self._descriptor = self._taken()
            return self._descriptor is not None

    def _taken(self) -> int | None:
        """Return a descriptor with the lock, None without it. A home that cannot be written has no owner."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class SoleOwner:
    """Owner where no other process works."""

    def owns(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing."""


class GenerationWriter(WritableFolder, Generations):
    """Generations of one agent, for workers. `free` returns the bytes free in a folder.

    A lock across processes protects changes of the pointers. Stores stay open until `close`.

    Raises, from every method:
        StoreUnreadable: the folder cannot be read or written.
        StoreFull: the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        options: StoreOptions,
        *,
        owner: Owner | None = None,
        free: Callable[[Path], int | None] = free_bytes,
    ) -> None:
        super().__init__(folder, options, free=free)
        self._owner = owner or SoleOwner()
        self._fingerprints: dict[str, str | None] = {}

    @classmethod
    def at(cls, settings: Settings, agent_id: str, *, owner: Owner | None = None) -> Self:
        """Return the generations of an agent."""
        return cls(*place_of(settings, agent_id), owner=owner)

    def require_owner(self) -> None:
        """Check that this process may replace the answering generation.

        Raises:
            NotOwner: another process owns the indexes.
        """
        if not self._owner.owns():
            raise NotOwner(
                f"another process owns the indexes of this home, and process {os.getpid()} waits for it; if it waits "
                "for long, their settings or keys differ: start both again with the same ones"
            )

    def open_writer(self, fingerprint: str, description: str) -> list[Store]:
        """Return the generations that a worker writes to, the target first. The caller must not close them.

        Without a generation, a new one is made and answers at once. If NEXT has this fingerprint: NEXT, then CURRENT,
        which keeps answering and is kept up to date. If CURRENT has it: CURRENT alone. Otherwise the owner makes a new
        NEXT, followed by CURRENT.

        Raises:
            StoreCorrupt: a generation is damaged; `generation` on the error names it.
            NoRoom: a new NEXT does not fit on the disk; CURRENT keeps answering.
            NotOwner: CURRENT and NEXT have other fingerprints, and another process owns them.
        """
        names = self._obeyed(fingerprint)
        if names is None:
            with self.locked():
                names = self._obeyed(fingerprint) or self._begun(fingerprint, description)
        return [self.store(names[0]), *self._readable(names[1:])]

    def is_first(self, store: Store) -> bool:
        """Return True if a store is still the target. Changes written to another store alone may be lost."""
        name = self.existing(NEXT) or self.existing(CURRENT)
        return name is not None and self._stores.get(name) is store

    def open_stores(self) -> list[Store]:
        """Return the stores that are open, in any order."""
        with self._lock:
            return list(self._stores.values())

    def open_existing(self) -> list[Store]:
        """Return NEXT and CURRENT, as far as they exist and this version can read them. The caller must not close them.

        Raises:
            StoreCorrupt: like `open_writer`.
        """
        names = dict.fromkeys((self.existing(NEXT), self.existing(CURRENT)))
        return list(self._readable([name for name in names if name is not None]))

    def _obeyed(self, fingerprint: str) -> list[str] | None:
        """Return the names of the generations to write; None if they have to be made first."""
        current, target = self.existing(CURRENT), self.existing(NEXT)
        if current is None or current == target or not self._has(target or current, fingerprint):
            return None
        return [current] if target is None else [target, current]

    def _begun(self, fingerprint: str, description: str) -> list[str]:
        """Make the missing generations; return the names to write. The caller holds the folder's lock."""
        current, target = self.existing(CURRENT), self.existing(NEXT)
        if target == current:
            target = None  # a crash right after a flip
        if current is None:
            current = self._left_behind(fingerprint, but=target)
            if current is None and target is not None and self._has(target, fingerprint):
                current, target = target, None  # half an index is better than none
            current = current or self.create(fingerprint, description)
            self.point(CURRENT, current)
        if target is not None and self._has(target, fingerprint):
            return [target, current]
        if target is not None or not self._has(current, fingerprint):
            self.require_owner()
        self.unpoint(NEXT)  # the settings went back before it was finished, or its space may be needed
        if self._has(current, fingerprint):
            return [current]
        self.require_room(current)
        target = self.create(fingerprint, description)
        self.point(NEXT, target)
        return [target, current]

    def _left_behind(self, fingerprint: str, *, but: str | None) -> str | None:
        """Return the name of the unreferenced generation that a lost CURRENT most probably named, None without any.

        Generations with this fingerprint come first, then those with the most files. The result may hold documents that
        are no longer on the disk.
        """
        ranked: list[tuple[bool, int, str]] = []
        for path in self.leftovers()[0]:
            with suppress(StoreCorrupt, StoreUnreadable):
                reader = self.open_named(path.name) if path.name != but else None
                if reader is None:
                    continue
                try:
                    if files := reader.counts().files:
                        ranked.append((reader.meta("fingerprint") == fingerprint, files, path.name))
                finally:
                    reader.close()
        return max(ranked)[2] if ranked else None

    def begin(self, fingerprint: str, description: str, *, force: bool = False, instead_of: str | None = None) -> None:
        """Begin a NEXT with this fingerprint unless there is one; with `force` in any case, even with little free
        space. `instead_of` is the fingerprint that the same settings have without a rebuild.

        Raises:
            NoRoom: like `open_writer`.
            NotOwner: another process owns the indexes and makes them with another fingerprint.
        """
        with self.locked():
            current, target = self.existing(CURRENT), self.existing(NEXT)
            there = target is not None and target != current and self._has(target, fingerprint)
            if there and not force:
                return
            if current is not None:
                if not there and not self._is_made_with(current, {fingerprint, instead_of or fingerprint}):
                    self.require_owner()
                if not force:
                    self.require_room(current)
            self.point(NEXT, self.create(fingerprint, description))

    def complete(self, fingerprint: str) -> bool:
        """Make NEXT the answering generation if it has this fingerprint; return True if it was made so.

        The replaced generation stays on the disk for its readers until `sweep`.

        Raises:
            NotOwner: another process owns the indexes.
        """
        self.require_owner()
        with self.locked():
            target, current = self.existing(NEXT), self.existing(CURRENT)
            if target is None or not self._has(target, fingerprint):
                return False
            if target == current:
                self.unpoint(NEXT)
                return False
            self.point(CURRENT, target)
            self.unpoint(NEXT)
            if current is not None:
                self.replaced(current)
            return True

    def set_aside_damaged(self, *, suspect: str | None = None) -> list[Path]:
        """Set aside the suspect and every damaged generation that a pointer names; return their new paths.

        `suspect` is `StoreCorrupt.generation`.
        """
        named = dict.fromkeys(name for name in (self.existing(CURRENT), self.existing(NEXT)) if name is not None)
        damaged = {name: None for name in named if name == suspect or not self._is_sound(name)}
        return [self.set_aside(name) for name in damaged]

    def _readable(self, names: Sequence[str]) -> Iterator[Store]:
        """Open the generations that this version of recalld can read."""
        for name in names:
            with suppress(OtherVersion):
                yield self.store(name)

    def _has(self, name: str, fingerprint: str) -> bool:
        """Return True if a generation has this fingerprint, which only a migration changes."""
        if name in self._fingerprints:
            return self._fingerprints[name] == fingerprint
        reader = self.open_named(name)
        if reader is None:
            return False
        try:
            found = reader.meta("fingerprint")
        finally:
            reader.close()
        if name in self._stores:  # a store migrates its generation when it is opened
            self._fingerprints[name] = found
        return found == fingerprint

    def _is_made_with(self, name: str, fingerprints: Collection[str]) -> bool:
        """Return True if a generation has one of the fingerprints, or no owner writes it: it is of another version."""
        try:
            return any(self._has(name, fingerprint) for fingerprint in fingerprints)
        except OtherVersion:
            return True

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
