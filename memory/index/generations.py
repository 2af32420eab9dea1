"""Generations of an agent's index: the answering one and the one under construction. The reading half.

Two pointers name generations:

    CURRENT  the generation that answers
    NEXT     the generation under construction, if any

A generation never changes its name, and names are never reused. Outside of this folder a name is opaque. In SQLite a
generation is a file (`memory.index.file_generations`), in PostgreSQL a row with those of its documents
(`memory.index.postgres_generations`). `memory.index.generation_writer` is the other half.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from calendar import timegm
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.store.errors import OtherFormat, StoreCorrupt, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.reader import StoreReader
from schemas.settings import Settings

if TYPE_CHECKING:
    from memory.store.sqlite.vectors import VectorShelf

CURRENT = "CURRENT"
NEXT = "NEXT"

#: Attempts to open a generation that is replaced and deleted after its pointer was read.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """Facts of a generation that never change: the identity of its vectors, and the record of a takeover."""

    identity: str
    takeover: str | None


class Generations(ABC):
    """Generations of one agent, for readers. Nothing is made or changed; there need not be any."""

    @staticmethod
    def of(settings: Settings, agent_id: str, *, shelf: VectorShelf | None = None) -> Generations:
        """Return the generations of an agent. `shelf` is where readers may hold vectors in memory."""
        if settings.store.url is not None:
            from memory.index.postgres_generations import PostgresGenerations

            return PostgresGenerations(settings.store, agent_id)
        from memory.index.file_generations import FileGenerations

        return FileGenerations(settings.indexes_path / agent_id, StoreOptions.of(settings.store), shelf=shelf)

    def current(self) -> str | None:
        """Return the name of the answering generation, None without one."""
        return self.pointer(CURRENT)

    def next(self) -> str | None:
        """Return the name of the generation under construction, None without one."""
        name = self.pointer(NEXT)
        # A crash right after a flip may leave both pointers on the same generation.
        return None if name is not None and name == self.current() else name

    @abstractmethod
    def pointer(self, pointer: str) -> str | None:
        """Return the name in a pointer, None without one.

        Raises:
            StoreUnreadable, StoreAway: it cannot be read.
        """

    @abstractmethod
    def facts(self, pointer: str) -> GenerationFacts | None:
        """Return the facts of the generation that a pointer names, None if it cannot be read."""

    @abstractmethod
    def token(self, pointer: str = CURRENT) -> object:
        """Return a value that differs after a pointer was replaced; None without it. Cheap."""

    def tokens(self) -> object:
        """Return a value that differs after CURRENT or NEXT was replaced. Cheap."""
        return self.token(CURRENT), self.token(NEXT)

    @abstractmethod
    def looks(self) -> object:
        """Return a value that differs after any commit to the answering generation. Cheap: nothing is opened.

        None means that a commit may not show yet.

        Raises:
            StoreUnreadable, StoreAway: it cannot be read.
        """

    @abstractmethod
    def used_at(self) -> float:
        """Return the Unix time of the last change of the index, 0.0 without one."""

    @staticmethod
    def begun_at(name: str) -> float | None:
        """Return the Unix time at which a generation was begun, None if it is unknown."""
        try:
            return float(timegm(time.strptime(name[:15], "%Y%m%dT%H%M%S")))
        except ValueError:
            return None

    @abstractmethod
    def leftovers(self) -> tuple[list[str], list[str]]:
        """Return the names of the unreferenced generations, and of the damaged ones that were set aside.

        Readers may still use unreferenced generations; a sweep deletes them later. If a pointer cannot be read, none
        counts as unreferenced.
        """

    @abstractmethod
    def open_named(self, name: str, *, any_format: bool = False) -> StoreReader | None:
        """Open a generation by its name, None if it is gone. `any_format`: to take over contents of another format.

        Raises:
            StoreUnreadable: it cannot be opened, or has another format; the message says why.
            StoreCorrupt: it is damaged; a worker sets it aside and builds a new one.
        """

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
