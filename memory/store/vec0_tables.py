"""Reading vectors out of a vec0 table, and deleting them, past sqlite-vec: through the tables that it keeps them in.

`chunks_vec_chunks` has one row per block: a bitmap of the rows in use and an array of their ids (int64).
`chunks_vec_vector_chunks00` has the block's vectors (float32) under the same number. `chunks_vec_rowids`
says where each id is. The layout is that of sqlite-vec 0.1
(https://github.com/asg017/sqlite-vec/blob/main/ARCHITECTURE.md).

This works where sqlite-vec cannot be loaded. It is what searches where it can be, too: the published
builds of sqlite-vec have no SIMD, and numpy over the same blocks gives the same distances in a third of the
time (17,500 x 384: 3 ms instead of 9); one vector by its id takes 5 us instead of 300.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import apsw

from memory.lazy_module import LazyModule
from memory.store.errors import VectorSearchUnavailable
from memory.store.reader import Vector
from memory.store.sqlite_rows import as_json, fetch, fetch_one

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

SELECT_BLOCKS = "SELECT chunk_id, validity, rowids FROM chunks_vec_chunks"

SELECT_BLOCK = "SELECT validity, rowids FROM chunks_vec_chunks WHERE chunk_id = ?"
SELECT_VALIDITIES = "SELECT chunk_id, validity FROM chunks_vec_chunks ORDER BY chunk_id"
SELECT_HAS_BLOCKS = "SELECT 1 FROM sqlite_schema WHERE name = 'chunks_vec_chunks'"

SELECT_LISTED_IDS = "SELECT rowid FROM chunks_vec_rowids"

# Where vectors are, block by block.
SELECT_PLACES = """
SELECT r.rowid, r.chunk_id, r.chunk_offset
FROM chunks_vec_rowids AS r
WHERE r.rowid IN (SELECT value FROM json_each(?))
ORDER BY r.chunk_id
"""

SELECT_VALIDITY = "SELECT validity FROM chunks_vec_chunks WHERE chunk_id = ?"
UPDATE_VALIDITY = "UPDATE chunks_vec_chunks SET validity = ? WHERE chunk_id = ?"
DELETE_LISTED_ID = "DELETE FROM chunks_vec_rowids WHERE rowid = ?"


@dataclass(frozen=True, slots=True)
class Block:
    """Which rows of one block are in use, as a bitmap, and the ids in all of its rows, as an array of int64."""

    validity: bytes
    id_array: bytes

    def places(self) -> npt.NDArray[np.int64]:
        """The rows in use."""
        return np.flatnonzero(_used(self.validity))

    def rowids(self) -> npt.NDArray[np.int64]:
        """The ids of all rows, also of those that are not in use."""
        return np.frombuffer(self.id_array, dtype="<i8")

    def ids(self) -> npt.NDArray[np.int64]:
        """The ids of the rows in use."""
        return self.rowids()[self.places()]


@dataclass(frozen=True, slots=True)
class Filling:
    """How many of a block's places there are, and are in use."""

    number: int
    places: int
    used: int


def fillings(connection: apsw.Connection) -> list[Filling]:
    """Every block, the oldest first; none when there is no table of vectors yet."""
    if fetch_one(connection, SELECT_HAS_BLOCKS) is None:
        return []
    rows = fetch(connection, SELECT_VALIDITIES)
    return [Filling(number, len(bits) * 8, int.from_bytes(bits, "little").bit_count()) for number, bits in rows]


def ids_in(connection: apsw.Connection, number: int) -> list[int]:
    """The ids of the vectors in one block, in ascending order; none when there is no such block."""
    rows = fetch(connection, SELECT_BLOCK, (number,))
    return sorted(Block(*rows[0]).ids().tolist()) if rows else []


def cosines(connection: apsw.Connection, vector: Vector) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """All ids, shape (n,), and the dot product of each one's vector with this one, shape (n,).

    Reads block after block into one buffer: no copy of the matrix is kept.

    Raises:
        VectorSearchUnavailable: the blocks are not laid out as they should be.
    """
    ids: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    products: list[npt.NDArray[np.float32]] = [np.empty(0, dtype=np.float32)]
    with snapshot(connection):
        blocks = {row[0]: Block(row[1], row[2]) for row in fetch(connection, SELECT_BLOCKS)}
        for _, block, matrix in matrices(connection, blocks, blocks, vector.size):
            used = _used(block.validity)
            ids.append(block.rowids()[used])
            products.append((matrix @ vector)[used])
    return np.concatenate(ids), np.concatenate(products)


def matrices(
    connection: apsw.Connection, numbers: Iterable[int], blocks: Mapping[int, Block], dimensions: int
) -> Iterator[tuple[int, Block, npt.NDArray[np.float32]]]:
    """These blocks one after the other, each with its vectors: shape (rows, dimensions), overwritten by the next one's.

    Raises:
        VectorSearchUnavailable: the blocks are not laid out as they should be.
    """
    with ExitStack() as stack:
        blob: apsw.Blob | None = None
        buffer = bytearray()
        for number in numbers:
            block = blocks[number]
            if blob is None:
                blob = stack.enter_context(_open_block(connection, number))
                buffer = bytearray(blob.length())
                if len(buffer) != len(block.id_array) // 8 * dimensions * 4:
                    raise VectorSearchUnavailable("the stored vectors have a layout that this program does not know")
                matrix = np.frombuffer(buffer, dtype="<f4").reshape(-1, dimensions)
            else:
                blob.reopen(number)
            blob.read_into(buffer)
            yield number, block, matrix


def stored_ids(connection: apsw.Connection) -> tuple[set[int], set[int]]:
    """The ids that the blocks hold, and the ids that the list of places names. Equal in a sound table."""
    in_blocks: set[int] = set()
    for _, validity, rowids in fetch(connection, SELECT_BLOCKS):
        in_blocks.update(np.frombuffer(rowids, dtype="<i8")[_used(validity)].tolist())
    return in_blocks, {int(row[0]) for row in fetch(connection, SELECT_LISTED_IDS)}


def vectors_of(connection: apsw.Connection, ids: Iterable[int], dimensions: int) -> dict[int, Vector]:
    """Vectors by id; ids without one are left out."""
    found: dict[int, Vector] = {}
    size = dimensions * 4
    with snapshot(connection):
        places = fetch(connection, SELECT_PLACES, (as_json(ids),))
        for block, in_block in groupby(places, key=itemgetter(1)):
            with _open_block(connection, block) as blob:
                for rowid, _, offset in in_block:
                    blob.seek(offset * size)
                    found[rowid] = np.frombuffer(blob.read(size), dtype="<f4")
    return found


def delete_vectors(connection: apsw.Connection, ids: Sequence[int]) -> None:
    """Take vectors out the way sqlite-vec does: clear the bit of the place, and the entry in the list."""
    for rowid, chunk_id, offset in fetch(connection, SELECT_PLACES, (as_json(ids),)):
        [(bits,)] = fetch(connection, SELECT_VALIDITY, (chunk_id,))
        validity = bytearray(bits)
        validity[offset // 8] &= ~(1 << (offset % 8)) & 0xFF
        connection.execute(UPDATE_VALIDITY, (bytes(validity), chunk_id))
        connection.execute(DELETE_LISTED_ID, (rowid,))


@contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[None]:
    """One state of the database for several steps: a place that is free now may be another chunk's a moment later.

    Within a transaction that is open already it is that one's.
    """
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _open_block(connection: apsw.Connection, block: int) -> apsw.Blob:
    return connection.blob_open("main", "chunks_vec_vector_chunks00", "vectors", block, False)  # noqa: FBT003 - apsw's


def _used(validity: bytes) -> npt.NDArray[np.bool_]:
    bits: npt.NDArray[np.uint8] = np.unpackbits(np.frombuffer(validity, dtype=np.uint8), bitorder="little")
    return bits.astype(np.bool_)
