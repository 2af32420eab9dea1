"""Generations of an agent's index: the answering one and the one under construction. The reading half.

`memory.index.generation_writer` is the other half, `memory.store.sqlite.folder` the place on the disk.
"""

from __future__ import annotations

from typing import Self

from memory.store.errors import StoreCorrupt, StoreUnreadable
from memory.store.reader import StoreReader
from memory.store.sqlite.folder import CURRENT, NEXT, IndexFolder, Looks, begun_at, place_of
from memory.store.sqlite.vectors import VectorShelf
from schemas.settings import Settings

__all__ = ["CURRENT", "NEXT", "Generations", "Looks", "VectorShelf", "begun_at"]

#: Attempts to open a generation that is replaced and deleted after its pointer was read.
_ATTEMPTS = 5


class Generations(IndexFolder):
    """Generations of one agent, for readers. Nothing is made or changed."""

    @classmethod
    def of(cls, settings: Settings, agent_id: str, *, shelf: VectorShelf | None = None) -> Self:
        """Return the generations of an agent. `shelf` is where readers may hold vectors in memory."""
        return cls(*place_of(settings, agent_id), shelf=shelf)

    def current(self) -> str | None:
        """Return the name of the answering generation, None without one."""
        return self.pointer(CURRENT)

    def next(self) -> str | None:
        """Return the name of the generation under construction, None without one."""
        name = self.pointer(NEXT)
        # A crash right after a flip leaves both pointers on the same file.
        return None if name is not None and name == self.current() else name

    def open_reader(self) -> StoreReader | None:
        """Open the answering generation, None without one.

        Raises:
            StoreUnreadable: it cannot be opened; the message says why.
            StoreCorrupt: it is damaged; a worker sets it aside and builds a new one.
        """
        return self._open(CURRENT)

    def target_reader(self, fingerprint: str) -> StoreReader | None:
        """Open the generation to compare with the disk: NEXT if it has this fingerprint, else CURRENT if it has.

        Return None if neither has.

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

    def _open(self, pointer: str) -> StoreReader | None:
        """Open the generation that a pointer names; try again if it was flipped and swept in between."""
        for _ in range(_ATTEMPTS):
            name = self.pointer(pointer)
            if name is None:
                return None
            try:
                reader = self.open_named(name)
            except (StoreUnreadable, StoreCorrupt):
                if self.pointer(pointer) == name:
                    raise
            else:
                if reader is not None or self.pointer(pointer) == name:
                    return reader
        return None
