"""Vectors of one generation held in memory as one array: half the memory traffic of reading them block by block.

A view belongs to exactly one transaction and serves only readers of that transaction. The first search after a commit
updates it: it compares the ids in every vec0 block with the former ones and reads the blocks with new ids. That is
sufficient because ids are never reused (`chunks.id` is AUTOINCREMENT) and a chunk keeps its vector until it is deleted.

A view never changes. Deleted vectors are missing in the next view only, and new ones go to rows that no view has yet.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import apsw

from memory.store.lazy_module import LazyModule
from memory.store.reader import Vector
from memory.store.sqlite import vec0_tables
from memory.store.sqlite.rows import fetch, meta_value
from memory.store.sqlite.vec0_tables import SELECT_BLOCKS, Block

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

#: Free rows for new vectors, as a share of the rows in use. A full array is read again.
GROWTH_SHARE = 1 / 8

#: Largest share of deleted rows; above it, all vectors are read again.
MOST_DELETED_SHARE = 1 / 4

#: Bytes of a row beside its vector: its id, in the array and in its block.
_ID_BYTES = 16

#: Placeholder for the id of a deleted vector. Real ids are positive.
_DELETED = -1


@dataclass(frozen=True, slots=True)
class VectorView:
    """All vectors of one transaction: ids of shape (n,), vectors of shape (n, dimensions), float32.

    `vectors` are the first rows of the array `room`; `blocks` are their origins, by block number.
    """

    transaction: int
    blocks: dict[int, Block]
    ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.float32]
    room: npt.NDArray[np.float32]
    deleted: int

    def cosines(self, vector: Vector) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return all ids, and the dot products of their vectors with this one (see `vec0_tables.cosines`)."""
        products = self.vectors @ vector
        if not self.deleted:
            return self.ids, products
        held = self.ids != _DELETED
        return self.ids[held], products[held]


@dataclass(eq=False, slots=True, weakref_slot=True)
class HeldVectors:
    """Vectors of one generation while they have a place on the shelf. Thread-safe."""

    shelf: VectorShelf
    #: Set and removed by the shelf.
    view: VectorView | None = None
    _refreshing: threading.Lock = field(default_factory=threading.Lock)

    def cosines(
        self, connection: apsw.Connection, vector: Vector
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the result of `vec0_tables.cosines` in the open transaction, from memory if possible.

        Raises:
            VectorSearchUnavailable: like `vec0_tables.cosines`.
        """
        view = self._view(connection, vector.size) if self.shelf.is_hot(self) else None
        return view.cosines(vector) if view is not None else vec0_tables.cosines(connection, vector)

    def close(self) -> None:
        """Return the memory after the last search."""
        self.shelf.drop(self)

    def _view(self, connection: apsw.Connection, dimensions: int) -> VectorView | None:
        """Return the vectors of the connection's transaction; None if they are not held and cannot be now."""
        transaction = int(meta_value(connection, "transactions") or 0)
        view = self.view
        if view is not None and view.transaction == transaction:
            return view
        # A reader of an older state, or one beside a thread at work, searches the blocks: no slower than waiting.
        if (view is not None and view.transaction > transaction) or not self._refreshing.acquire(blocking=False):
            return None
        try:
            return self._refreshed(connection, transaction, dimensions)
        finally:
            self._refreshing.release()

    def _refreshed(self, connection: apsw.Connection, transaction: int, dimensions: int) -> VectorView | None:
        blocks = {row[0]: Block(row[1], row[2]) for row in fetch(connection, SELECT_BLOCKS)}
        before = self.view
        if before is not None and before.transaction > transaction:
            return None
        view = _updated(connection, before, transaction, blocks) if before is not None else None
        if view is not None:
            return self.shelf.replace(self, view)
        # The old array is freed first: two of them would take twice the memory.
        self.shelf.drop(self)
        del before
        rows = sum(block.ids().size for block in blocks.values())
        capacity = rows + int(rows * GROWTH_SHARE) + 1
        if not self.shelf.reserve(self, capacity * (dimensions * 4 + _ID_BYTES)):
            return None
        try:
            room = np.empty((capacity, dimensions), dtype=np.float32)
            empty = VectorView(transaction, {}, np.empty(0, dtype=np.int64), room[:0], room, 0)
            view = _updated(connection, empty, transaction, blocks)
        except BaseException:
            self.shelf.drop(self)
            raise
        return self.shelf.replace(self, view) if view is not None else None


def _updated(
    connection: apsw.Connection, view: VectorView, transaction: int, blocks: dict[int, Block]
) -> VectorView | None:
    """Return the view with the changes since; None if there is no room for them, or too many rows are deleted."""
    none = np.empty(0, dtype=np.int64)
    gone: list[npt.NDArray[np.int64]] = [none]
    added: dict[int, npt.NDArray[np.int64]] = {}
    for number in blocks.keys() | view.blocks.keys():
        old, new = view.blocks.get(number), blocks.get(number)
        if old == new:
            continue
        held = old.ids() if old is not None else none
        wanted = new.ids() if new is not None else none
        gone.append(np.setdiff1d(held, wanted))
        fresh = np.setdiff1d(wanted, held)
        if fresh.size:
            added[number] = fresh
    ids = view.ids
    deleted = view.deleted
    without = np.concatenate(gone)
    if without.size:
        ids = np.where(np.isin(ids, without), _DELETED, ids)
        deleted = int(np.count_nonzero(ids == _DELETED))
    used = ids.size
    total = used + sum(fresh.size for fresh in added.values())
    if total > len(view.room) or deleted > total * MOST_DELETED_SHARE:
        return None
    gathered = [ids]
    for number, block, matrix in vec0_tables.matrices(connection, sorted(added), blocks, view.room.shape[1]):
        places = block.places()
        rowids = block.rowids()[places]
        chosen = np.isin(rowids, added[number])
        count = int(np.count_nonzero(chosen))
        view.room[used : used + count] = matrix[places[chosen]]
        gathered.append(rowids[chosen])
        used += count
    return VectorView(transaction, blocks, np.concatenate(gathered), view.room[:used], view.room, deleted)


#: Bytes of all vectors held by a process, over all agents: 300,000 of 384 dimensions.
MAX_HELD_BYTES = 512 * 1024 * 1024

#: Number of searches that make an index hot, and the longest pause between them in seconds.
HOT_AT_SEARCH = 3
HOT_WITHIN_SECONDS = 300.0

#: Seconds after a search in which its vectors stay: exchanging two indexes in turn costs more than it saves.
KEPT_SECONDS = 10.0

#: Seconds after which vectors that found no room may try again.
REFUSED_SECONDS = 30.0


@dataclass(slots=True)
class _Heat:
    """Number of consecutive searches, the time of the last one, and the time until which there is no room."""

    searches: int
    last: float
    refused_until: float = -math.inf


class VectorShelf:
    """Allocator of the memory for vectors; the least recently searched ones make room. Thread-safe."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_HELD_BYTES,
        hot_at_search: int = HOT_AT_SEARCH,
        kept_seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._hot_at_search = hot_at_search
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._heat: WeakKeyDictionary[HeldVectors, _Heat] = WeakKeyDictionary()
        # Least recently searched first.
        self._held: OrderedDict[HeldVectors, int] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Return the bytes in use."""
        with self._lock:
            return sum(self._held.values())

    def is_hot(self, vectors: HeldVectors) -> bool:
        """Count a search; return True if there were enough of them to hold the vectors."""
        now = self._clock()
        with self._lock:
            heat = self._heat.get(vectors)
            if heat is None or now - heat.last > HOT_WITHIN_SECONDS:
                heat = self._heat[vectors] = _Heat(0, now)
            heat.searches, heat.last = heat.searches + 1, now
            if vectors in self._held:
                self._held.move_to_end(vectors)
                return True
            return heat.searches >= self._hot_at_search and now >= heat.refused_until

    def reserve(self, vectors: HeldVectors, size: int) -> bool:
        """Reserve memory for an index that holds none yet; return False if there is no room."""
        now = self._clock()
        with self._lock:
            free = self._max_bytes - sum(self._held.values())
            resting = []
            for other, held in self._held.items():
                if free >= size or now - self._heat[other].last < self._kept_seconds:
                    break
                resting.append(other)
                free += held
            if free < size:
                self._heat[vectors].refused_until = now + REFUSED_SECONDS
                return False
            for other in resting:
                self._drop(other)
            self._held[vectors] = size
            return True

    def replace(self, vectors: HeldVectors, view: VectorView) -> VectorView:
        """Publish the view to other searches, unless its memory was taken back meanwhile."""
        with self._lock:
            if vectors in self._held:
                vectors.view = view
        return view

    def drop(self, vectors: HeldVectors) -> None:
        """Take back an index's memory. Running searches finish with it."""
        with self._lock:
            self._drop(vectors)

    def _drop(self, vectors: HeldVectors) -> None:
        self._held.pop(vectors, None)
        vectors.view = None
