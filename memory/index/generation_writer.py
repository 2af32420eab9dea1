"""Beginning, completion and removal of generations: the writing half of `memory.index.generations`.

One process owns the indexes of a home, or of a fleet. It alone replaces an answering generation: it begins, flips and
sweeps, and it decides about the fallback provider. Other workers write to the generations that CURRENT and NEXT name.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress

from memory.index.fingerprint import Fingerprint, embedding_of, name_in
from memory.index.generations import CURRENT, NEXT, Generations
from memory.store.errors import NotOwner, OtherFormat, StoreCorrupt, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from memory.store.writer import Store
from schemas.settings import Settings

#: Damaged generations that are kept for inspection.
KEPT_CORRUPT_FILES = 2


def new_name(fingerprint: Fingerprint) -> str:
    """Return a name for a new generation, which no other one ever has."""
    when = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"{when}-{re.sub('[^0-9A-Za-z]', '', fingerprint.digest)[:8] or '0'}-{secrets.token_hex(8)}"


class IndexOwner(ABC):
    """Right to begin, flip and sweep generations, which one process has."""

    @staticmethod
    def of(settings: Settings) -> IndexOwner:
        """Return this process's claim to the indexes of a home or of a fleet."""
        if settings.store.url is not None:
            from memory.index.postgres_generation_writer import OwnerLease

            return OwnerLease(settings.store)
        from memory.index.file_generation_writer import HomeOwner

        return HomeOwner(settings.home)

    @abstractmethod
    def owns(self) -> bool:
        """Return True if this process is the owner, or takes the place of an owner that has ended. Cheap."""

    @abstractmethod
    def close(self) -> None:
        """Leave the ownership to another process."""


class GenerationWriter(Generations):
    """Generations of one agent, for the owner and its workers. They are made on demand.

    A lock across processes protects changes of the pointers. Stores stay open until `close`, also those of replaced
    generations: running jobs finish with them.

    Raises, from every method:
        StoreUnreadable, StoreAway: the generations cannot be read or written.
        StoreFull: the disk is full.
    """

    def __init__(self, *, owner: IndexOwner | None = None) -> None:
        self._owner = owner
        self._lock = threading.RLock()
        self._stores: dict[str, Store] = {}
        #: Generations of another format, for their vectors.
        self._foreign: dict[str, StoreReader] = {}

    @staticmethod
    def at(settings: Settings, agent_id: str, *, owner: IndexOwner | None = None) -> GenerationWriter:
        """Return the generations of an agent. Without an `owner`, no other process works."""
        if settings.store.url is not None:
            from memory.index.postgres_generation_writer import PostgresGenerationWriter

            return PostgresGenerationWriter(settings.store, agent_id, owner=owner)
        from memory.index.file_generation_writer import FileGenerationWriter

        options = StoreOptions.of(settings.store)
        return FileGenerationWriter(settings.indexes_path / agent_id, options, owner=owner)

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
        if not self._owns():
            raise NotOwner(
                f"another process owns the indexes, and process {os.getpid()} waits for it; if it waits "
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
            if all(map(self._exists, names)):
                raise
            return self.open_writer(fingerprint)  # one was replaced and deleted meanwhile

    def look_again(self) -> None:
        """Let the next reads of this thread see all changes."""

    def is_first(self, store: Store) -> bool:
        """Return True if a store is still the target. Changes written to another store alone may be lost."""
        current, target = self._existing()
        name = target or current
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
        names = dict.fromkeys(reversed(self._existing()))
        return list(self._readable([name for name in names if name is not None]))

    def _owns(self) -> bool:
        return self._owner is None or self._owner.owns()

    def _names_to_write(self, fingerprint: Fingerprint) -> list[str] | None:
        """Return the names of the generations to write; None if they have to be made first."""
        current, target = self._existing()
        if current is None or current == target or not self._has(target or current, fingerprint.digest):
            return None
        return [current] if target is None else [target, current]

    def _make_missing(self, fingerprint: Fingerprint) -> list[str]:
        """Make the missing generations; return the names to write. The caller holds the folder's lock."""
        takeover = self._takeover_of(fingerprint)
        current, target = self._existing()
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
            current, target = self._existing()
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

        Readers of the replaced generation go on reading.

        Raises:
            NotOwner: another process owns the indexes.
        """
        with self._locked():
            self.require_owner()
            current, target = self._existing()
            if target is None or not self._has(target, fingerprint):
                return False
            if target == current:
                self._point(NEXT, None)
                return False
            self._point(CURRENT, target)
            self._point(NEXT, None)
        self.sweep(older_than_seconds=0.0, kept_corrupt=0)
        return True

    def set_aside_damaged(self, *, suspect: str | None = None) -> list[str]:  # noqa: ARG002 - of files
        """Set aside the suspect and every damaged generation that a pointer names; return their new names.

        `suspect` is `StoreCorrupt.generation`. A database server repairs its own pages.
        """
        return []

    @abstractmethod
    def sweep(self, *, older_than_seconds: float, kept_corrupt: int | None = KEPT_CORRUPT_FILES) -> None:
        """Delete unreferenced generations of this age, and old corrupt ones beyond a number (None: keep all).

        Raises:
            NotOwner: another process owns the indexes.
        """

    @abstractmethod
    def _locked(self) -> AbstractContextManager[object]:
        """Exclude other processes and threads from changes of the pointers."""

    @abstractmethod
    def _existing(self) -> tuple[str | None, str | None]:
        """Return the generations that CURRENT and NEXT name, as far as they exist."""

    @abstractmethod
    def _exists(self, name: str) -> bool:
        """Return True unless a generation was deleted."""

    @abstractmethod
    def _point(self, pointer: str, name: str | None) -> None:
        """Replace or remove a pointer. The caller holds the lock."""

    @abstractmethod
    def _create(self, fingerprint: Fingerprint, takeover: str | None) -> str:
        """Make an empty generation; return its name. The caller holds the lock."""

    @abstractmethod
    def _opened(self, name: str) -> Store:
        """Open a generation for writing."""

    def _lost_current(self, fingerprint: str, *, but: str | None) -> str | None:  # noqa: ARG002 - for pointers in files
        """Return the name of the unreferenced generation that a lost CURRENT most probably named, None without any."""
        return None

    def _require_room(self, current: str) -> None:
        """Check that a new generation fits beside this one; raise NoRoom if it does not."""

    def _takeover_of(self, fingerprint: Fingerprint) -> str | None:
        """Return the record of a takeover in the present generations of the same provider, None without one."""
        provider = name_in(embedding_of(fingerprint.description))
        present = filter(None, map(self.facts, (NEXT, CURRENT)))
        return next((facts.takeover for facts in present if name_in(facts.identity) == provider), None)

    def _store(self, name: str) -> Store:
        """Return the open store of a generation."""
        with self._lock:
            if name not in self._stores or not self._exists(name):
                self._stores[name] = self._opened(name)
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
