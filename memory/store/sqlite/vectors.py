"""Vectors of one generation: the tables behind `chunks_vec`, and their copy in the memory of a searching process.

`chunks_vec` is a vec0 table. Writes go through sqlite-vec where it can be loaded. Reads bypass it: numpy reads its
shadow tables. That takes half the time of its own query, and a quarter from memory. So an index can be searched
without sqlite-vec, and this module also writes the same tables without it. No other module depends on the layout,
which is that of sqlite-vec 0.1.9 (https://github.com/asg017/sqlite-vec/blob/main/ARCHITECTURE.md):

    chunks_vec_chunks           a row per block: bitmap of the rows in use, and array of their ids (int64)
    chunks_vec_vector_chunks00  the block's vectors (float32), under the same number
    chunks_vec_rowids           the place of each id
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import apsw

from memory.store.errors import VectorSearchUnavailable
from memory.store.reader import ChunkFilter, Hit, Vector
from memory.store.sqlite.rows import (
    IS_WITHIN,
    OVER_FETCH,
    as_blob,
    as_json,
    bindings_of,
    covers_all,
    fetch,
    fetch_one,
    meta_value,
    passing,
)
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

#: The version whose layout this module knows. A test compares it with the installed one.
SQLITE_VEC_VERSION = "0.1.9"

#: Bytes of one block: insert rates collapse with blobs much above it.
MAX_BLOCK_BYTES = 1_572_864

SELECT_VEC0 = "SELECT 1 FROM pragma_module_list WHERE name = 'vec0'"

# The shadow tables as sqlite-vec makes them.
CREATE_TABLES = """
CREATE TABLE chunks_vec_info (key TEXT PRIMARY KEY, value ANY);
CREATE TABLE chunks_vec_chunks (
    chunk_id INTEGER PRIMARY KEY AUTOINCREMENT,
    size     INTEGER NOT NULL,
    validity BLOB NOT NULL,
    rowids   BLOB NOT NULL
);
CREATE TABLE chunks_vec_rowids (
    rowid        INTEGER PRIMARY KEY AUTOINCREMENT,
    id,
    chunk_id     INTEGER,
    chunk_offset INTEGER
);
CREATE TABLE chunks_vec_vector_chunks00 (rowid PRIMARY KEY, vectors BLOB NOT NULL);
INSERT INTO chunks_vec_info (key, value) VALUES
    ('CREATE_VERSION', 'v0.1.9'),
    ('CREATE_VERSION_MAJOR', 0),
    ('CREATE_VERSION_MINOR', 1),
    ('CREATE_VERSION_PATCH', 9);
"""

# SQLite's own `.dump` restores a virtual table in this way, without its module.
DECLARE_TABLE = """
INSERT INTO sqlite_schema (type, name, tbl_name, rootpage, sql) VALUES ('table', 'chunks_vec', 'chunks_vec', 0, ?)
"""

SELECT_BLOCKS = "SELECT chunk_id, validity, rowids FROM chunks_vec_chunks"
SELECT_BLOCK = "SELECT validity, rowids FROM chunks_vec_chunks WHERE chunk_id = ?"
SELECT_LAST_BLOCK = "SELECT chunk_id, validity, rowids FROM chunks_vec_chunks ORDER BY chunk_id DESC LIMIT 1"
SELECT_VALIDITIES = "SELECT chunk_id, validity FROM chunks_vec_chunks ORDER BY chunk_id"
SELECT_HAS_BLOCKS = "SELECT 1 FROM sqlite_schema WHERE name = 'chunks_vec_chunks'"
SELECT_LISTED_IDS = "SELECT rowid FROM chunks_vec_rowids"
SELECT_PLACES = """
SELECT rowid, chunk_id, chunk_offset FROM chunks_vec_rowids
WHERE rowid IN (SELECT value FROM json_each(?)) ORDER BY chunk_id
"""

INSERT_VECTOR = "INSERT INTO chunks_vec (rowid, embedding) VALUES (?, ?)"
DELETE_VECTOR = "DELETE FROM chunks_vec WHERE rowid = ?"

INSERT_BLOCK = "INSERT INTO chunks_vec_chunks (size, validity, rowids) VALUES (?, ?, ?) RETURNING chunk_id"
INSERT_BLOCK_VECTORS = "INSERT INTO chunks_vec_vector_chunks00 (_rowid_, rowid, vectors) VALUES (?1, ?1, zeroblob(?2))"
UPDATE_BLOCK = "UPDATE chunks_vec_chunks SET validity = ?, rowids = ? WHERE chunk_id = ?"
DELETE_BLOCK = "DELETE FROM chunks_vec_chunks WHERE chunk_id = ?"
DELETE_BLOCK_VECTORS = "DELETE FROM chunks_vec_vector_chunks00 WHERE rowid = ?"
INSERT_LISTED_ID = "INSERT INTO chunks_vec_rowids (rowid, chunk_id, chunk_offset) VALUES (?, ?, ?)"
DELETE_LISTED_ID = "DELETE FROM chunks_vec_rowids WHERE rowid = ?"

# By `chunks_by_file`. Without a span no chunk is read.
SELECT_ALL_IDS_WITHIN = f"""
SELECT c.id FROM files AS f JOIN chunks AS c ON c.file_id = f.id WHERE {IS_WITHIN}
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Block:
    """Bitmap of the rows in use of one block, and the ids of all its rows as an array of int64."""

    validity: bytes
    id_array: bytes

    def used(self) -> npt.NDArray[np.bool_]:
        """Return True for every row in use."""
        bits: npt.NDArray[np.uint8] = np.unpackbits(np.frombuffer(self.validity, dtype=np.uint8), bitorder="little")
        return bits.astype(np.bool_)

    def rowids(self) -> npt.NDArray[np.int64]:
        """Return the ids of all rows, used or not."""
        return np.frombuffer(self.id_array, dtype="<i8")

    def ids(self) -> npt.NDArray[np.int64]:
        """Return the ids of the rows in use."""
        return self.rowids()[self.used()]


@dataclass(frozen=True, slots=True)
class Filling:
    """Number of places in a block, and number of places in use."""

    number: int
    places: int
    used: int


class Cosines(NamedTuple):
    """Dot products of vectors with one vector: their ids, the products, and how far off each may be, shape (n,)."""

    ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]

    @classmethod
    def exact(cls, ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float32]) -> Cosines:
        """Return products without errors."""
        return cls(ids, scores, np.zeros_like(scores))


# Reading ---------------------------------------------------------------------------------------------


def nearest(
    connection: apsw.Connection,
    vector: Vector,
    k: int,
    within: ChunkFilter | None,
    resident: ResidentVectors | None = None,
) -> list[Hit]:
    """Return the k chunks that pass a filter with the highest cosine, best first. Exact.

    `resident`: the vectors in memory, if they are there.
    """
    with snapshot(connection):
        products = cosines(connection, vector) if resident is None else resident.cosines(connection, vector)
        if within is None or covers_all(connection, within):
            return _top(connection, vector, products, k)
        hits = passing(connection, _top(connection, vector, products, k * OVER_FETCH), within)
        if len(hits) >= k or products.ids.size <= k * OVER_FETCH:
            return hits[:k]
        rows = fetch(connection, SELECT_ALL_IDS_WITHIN, bindings_of(connection, within))
        matches = np.isin(products.ids, np.array(rows, dtype=np.int64))
        ids, scores, errors = products
        return _top(connection, vector, Cosines(ids[matches], scores[matches], errors[matches]), k)


def cosines(connection: apsw.Connection, vector: Vector) -> Cosines:
    """Return the exact dot products of all vectors with this one.

    Reads block after block into one buffer, without a copy of the matrix.

    Raises:
        VectorSearchUnavailable: the blocks have an unexpected layout.
    """
    ids: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    products: list[npt.NDArray[np.float32]] = [np.empty(0, dtype=np.float32)]
    with snapshot(connection):
        blocks = _blocks(connection)
        for _, block, matrix in matrices(connection, blocks, blocks, vector.size):
            used = block.used()
            ids.append(block.rowids()[used])
            products.append((matrix @ vector)[used])
    return Cosines.exact(np.concatenate(ids), np.concatenate(products))


def matrices(
    connection: apsw.Connection, numbers: Iterable[int], blocks: Mapping[int, Block], dimensions: int
) -> Iterator[tuple[int, Block, npt.NDArray[np.float32]]]:
    """Yield these blocks with their vectors, shape (rows, dimensions). The next block overwrites the vectors.

    Raises:
        VectorSearchUnavailable: the blocks have an unexpected layout.
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


def vectors_of(connection: apsw.Connection, ids: Iterable[int], dimensions: int) -> dict[int, Vector]:
    """Return vectors by id, without ids that have none."""
    vectors_by_id: dict[int, Vector] = {}
    size = dimensions * 4
    with snapshot(connection):
        places = fetch(connection, SELECT_PLACES, (as_json(ids),))
        if not places:
            return {}
        with _open_block(connection, places[0][1]) as blob:
            for block, in_block in groupby(places, key=itemgetter(1)):
                blob.reopen(block)
                for rowid, _, offset in in_block:
                    blob.seek(offset * size)
                    vectors_by_id[rowid] = np.frombuffer(blob.read(size), dtype="<f4")
    return vectors_by_id


def fillings(connection: apsw.Connection) -> list[Filling]:
    """Return the filling of every block, oldest first; none without a table of vectors."""
    if fetch_one(connection, SELECT_HAS_BLOCKS) is None:
        return []
    rows = fetch(connection, SELECT_VALIDITIES)
    return [Filling(number, len(bits) * 8, int.from_bytes(bits, "little").bit_count()) for number, bits in rows]


def ids_in(connection: apsw.Connection, number: int) -> list[int]:
    """Return the ids of the vectors in one block, ascending; none without such a block."""
    rows = fetch(connection, SELECT_BLOCK, (number,))
    return sorted(Block(*rows[0]).ids().tolist()) if rows else []


def stored_ids(connection: apsw.Connection) -> tuple[set[int], set[int]]:
    """Return the ids in the blocks and the ids in the list of places. They are equal in a sound table."""
    in_blocks = {id_ for block in _blocks(connection).values() for id_ in block.ids().tolist()}
    return in_blocks, {int(row[0]) for row in fetch(connection, SELECT_LISTED_IDS)}


@contextmanager
def snapshot(connection: apsw.Connection) -> Iterator[None]:
    """Snapshot of the database for several steps: a place that is free now may soon belong to another chunk.

    An open transaction is one already.
    """
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _blocks(connection: apsw.Connection) -> dict[int, Block]:
    return {number: Block(validity, ids) for number, validity, ids in fetch(connection, SELECT_BLOCKS)}


def _open_block(connection: apsw.Connection, block: int, *, write: bool = False) -> apsw.Blob:
    return connection.blob_open("main", "chunks_vec_vector_chunks00", "vectors", block, write)


def _top(connection: apsw.Connection, vector: Vector, products: Cosines, k: int) -> list[Hit]:
    """Return the k best by their exact cosines, best first, equal scores by id.

    Where vectors are rounded, those that may be among the k best are read. Too many of them make all be read.
    """
    ids, scores, errors = products
    if not errors.any():
        return _best(ids, scores, k)
    likely = np.argpartition(-scores, min(k, ids.size) - 1)[:k]
    if k <= MOST_RESCORED:
        least = min((hit.score for hit in _rescored(connection, vector, ids[likely])), default=0.0)
        likely = np.flatnonzero(scores + errors >= least)
    if likely.size <= MOST_RESCORED:
        return sorted(_rescored(connection, vector, ids[likely]), key=lambda hit: (-hit.score, hit.id))[:k]
    every = cosines(connection, vector)
    matches = np.isin(every.ids, ids)
    return _best(every.ids[matches], every.scores[matches], k)


def _rescored(connection: apsw.Connection, vector: Vector, ids: npt.NDArray[np.int64]) -> list[Hit]:
    vectors_by_id = vectors_of(connection, ids.tolist(), vector.size)
    return [Hit(id_, float(stored @ vector)) for id_, stored in vectors_by_id.items()]


def _best(ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float32], k: int) -> list[Hit]:
    if len(ids) > k:
        # Includes all that score like the last one, so that their ids decide.
        best = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        ids, scores = ids[best], scores[best]
    order = np.lexsort((ids, -scores))[:k]
    return [Hit(int(ids[index]), float(scores[index])) for index in order]


# Writing ---------------------------------------------------------------------------------------------


def create_table(connection: apsw.Connection, dimensions: int) -> None:
    """Make `chunks_vec` in the open transaction: rowid = chunks.id, unit vectors, L2 metric.

    L2 orders unit vectors like cosine, and sqlite-vec computes it faster.
    """
    rows = block_rows(dimensions)
    declared = f"CREATE VIRTUAL TABLE chunks_vec USING vec0 (embedding float[{dimensions:d}], chunk_size = {rows:d})"
    if has_sqlite_vec(connection):
        connection.execute(declared)
        return
    connection.pragma("writable_schema", True)  # noqa: FBT003 - apsw's signature
    try:
        connection.execute(DECLARE_TABLE, (declared,))
    finally:
        connection.pragma("writable_schema", False)  # noqa: FBT003 - apsw's signature
    connection.execute(CREATE_TABLES)  # which makes other connections read the schema anew


def has_sqlite_vec(connection: apsw.Connection) -> bool:
    """Return True if sqlite-vec is loaded into the connection."""
    return bool(connection.execute(SELECT_VEC0).fetchall())


def block_rows(dimensions: int) -> int:
    """Return the rows of one block: a power of two from 8 to 1024 that keeps it below `MAX_BLOCK_BYTES`."""
    rows = max(8, min(1024, MAX_BLOCK_BYTES // (dimensions * 4)))
    return 1 << (rows.bit_length() - 1)


def insert_vectors(connection: apsw.Connection, vectors: Sequence[tuple[int, Vector]]) -> None:
    """Add vectors of equal dimensions. Without sqlite-vec, they go into the last block and then into new ones."""
    if has_sqlite_vec(connection):
        connection.executemany(INSERT_VECTOR, ((id_, as_blob(vector)) for id_, vector in vectors))
        return
    row = fetch_one(connection, SELECT_LAST_BLOCK)
    while vectors:
        number, block = (row[0], Block(row[1], row[2])) if row is not None else _added_block(connection, vectors[0][1])
        row = None
        free = np.flatnonzero(~block.used())[: len(vectors)].tolist()
        now, vectors = vectors[: len(free)], vectors[len(free) :]
        ids = [id_ for id_, _ in now]
        _write_rows(connection, number, block, free, ids, [as_blob(vector) for _, vector in now])
        connection.executemany(INSERT_LISTED_ID, zip(ids, repeat(number), free))


def delete_vectors(connection: apsw.Connection, ids: Sequence[int]) -> None:
    """Delete vectors. Without sqlite-vec, their places are zeroed and empty blocks are deleted, as it does."""
    if has_sqlite_vec(connection):
        connection.executemany(DELETE_VECTOR, [(id_,) for id_ in ids])
        return
    places = fetch(connection, SELECT_PLACES, (as_json(ids),))
    for number, in_block in groupby(places, key=itemgetter(1)):
        offsets = [offset for _, _, offset in in_block]
        block = Block(*fetch(connection, SELECT_BLOCK, (number,))[0])
        if len(offsets) < block.ids().size:
            _write_rows(connection, number, block, offsets, [0] * len(offsets), [b""] * len(offsets))
        else:
            connection.execute(DELETE_BLOCK, (number,))
            connection.execute(DELETE_BLOCK_VECTORS, (number,))
    connection.executemany(DELETE_LISTED_ID, [(id_,) for id_, _, _ in places])


def _write_rows(
    connection: apsw.Connection, number: int, block: Block, places: list[int], ids: list[int], rows: list[bytes]
) -> None:
    """Write rows of a block, zeros for an id 0, which stands for a free place."""
    used, rowids = block.used(), block.rowids().copy()
    rowids[places] = ids
    used[places] = rowids[places] > 0
    validity = np.packbits(used, bitorder="little").tobytes()
    connection.execute(UPDATE_BLOCK, (validity, rowids.tobytes(), number))
    with _open_block(connection, number, write=True) as blob:
        size = blob.length() // used.size
        for place, row in zip(places, rows, strict=True):
            blob.seek(place * size)
            blob.write(row or bytes(size))


def _added_block(connection: apsw.Connection, vector: Vector) -> tuple[int, Block]:
    """Add an empty block for vectors like this one; return its number and the block."""
    rows = block_rows(vector.size)
    block = Block(bytes(rows // 8), bytes(rows * 8))
    [(number,)] = fetch(connection, INSERT_BLOCK, (rows, block.validity, block.id_array))
    connection.execute(INSERT_BLOCK_VECTORS, (number, rows * vector.size * 4))
    return number, block


# In memory -------------------------------------------------------------------------------------------

#: Bytes of a row beside its vector: its id, in the array and in its block, and the length of its rounding error.
_ROW_BYTES = 20

#: Bytes of all vectors in a process's memory, over all agents, and of one agent's from which on they are rounded. So
#: there is room for 300,000 of 1,536 dimensions.
MAX_RESIDENT_BYTES, EXACT_BYTES = 512 * 1024**2, 256 * 1024**2

#: Most vectors that a search of rounded ones reads, and bytes of float32 that a processor's cache holds.
MOST_RESCORED, CACHED_BYTES = 8_192, 393_216

#: Difference of two sums of the same products in float32.
SUMMING = 1e-5

#: Number of the search of an index from which on its vectors stay in memory.
HOT_AT_SEARCH = 3

#: Seconds after a search for which its vectors stay: evicting two indexes in turn costs more than it saves.
RESIDENT_SECONDS = 10.0


def resident_bytes(vectors: int, dimensions: int, *, exact_bytes: int = EXACT_BYTES) -> tuple[int, bool]:
    """Return the bytes that an agent's vectors take in memory, and True if they are rounded."""
    exact, rounded = (vectors * (dimensions * width + _ROW_BYTES) for width in (4, 1))
    return (exact, False) if exact < exact_bytes else (rounded, True)


@dataclass(frozen=True, slots=True)
class RoundedVectors:
    """Vectors of a block in one byte a dimension: `codes` * `steps` + `middle`, and the lengths of their `errors`.

    A dimension has steps of its own, so one with large numbers costs the others no precision.
    """

    codes: npt.NDArray[np.int8]
    steps: Vector
    middle: Vector
    errors: npt.NDArray[np.float32]

    @classmethod
    def of(cls, matrix: npt.NDArray[np.float32]) -> RoundedVectors:
        """Round vectors, shape (n, dimensions)."""
        lowest, highest = matrix.min(axis=0, initial=0.0), matrix.max(axis=0, initial=0.0)
        middle, steps = (lowest + highest) / 2, np.maximum((highest - lowest) / 254, np.float32(1e-12))
        numbers = (matrix - middle) / steps
        codes = np.rint(numbers, out=numbers).astype(np.int8)
        numbers *= steps
        numbers += middle
        numbers -= matrix
        errors = np.sqrt(np.einsum("ij,ij->i", numbers, numbers)) + np.float32(SUMMING)
        return cls(codes, steps, middle, errors)

    def __len__(self) -> int:
        return len(self.codes)

    def multiply(self, vector: Vector, products: npt.NDArray[np.float32]) -> None:
        """Set `products`, shape (n,)."""
        weights = self.steps * vector
        rows = max(1, CACHED_BYTES // (4 * vector.size))
        numbers = np.empty((rows, vector.size), dtype=np.float32)
        for start in range(0, len(self), rows):
            part = self.codes[start : start + rows]
            np.copyto(numbers[: len(part)], part)
            np.dot(numbers[: len(part)], weights, out=products[start : start + rows])
        products += self.middle @ vector


@dataclass(frozen=True, slots=True)
class VectorView:
    """All vectors of one transaction: their ids, shape (n,), and per block an array of the rows in use.

    A view never changes; the next one shares the arrays of unchanged blocks. Ids are never reused (`chunks.id` is
    AUTOINCREMENT), and a chunk keeps its vector until it is deleted: a block with the same ids has the same vectors.
    """

    transaction: int
    blocks: Mapping[int, Block]
    ids: npt.NDArray[np.int64]
    vectors: Mapping[int, npt.NDArray[np.float32] | RoundedVectors]
    is_rounded: bool = False

    def cosines(self, vector: Vector) -> Cosines:
        """Return the dot products of all vectors with this one."""
        products, errors = np.empty(self.ids.size, dtype=np.float32), np.zeros(self.ids.size, dtype=np.float32)
        length = np.linalg.norm(vector)
        end = 0
        for matrix in self.vectors.values():
            start, end = end, end + len(matrix)
            if isinstance(matrix, RoundedVectors):
                matrix.multiply(vector, products[start:end])
                np.multiply(matrix.errors, length, out=errors[start:end])
            else:
                np.dot(matrix, vector, out=products[start:end])
        return Cosines(self.ids, products, errors)


@dataclass(eq=False, slots=True)
class ResidentVectors:
    """Vectors of one generation in memory, while the shelf has room for them. Thread-safe.

    `view`, `searches` and `last` belong to the shelf.
    """

    shelf: VectorShelf
    view: VectorView | None = None
    searches: int = 0
    last: float = 0.0
    _refreshing: threading.Lock = field(default_factory=threading.Lock)

    def cosines(self, connection: apsw.Connection, vector: Vector) -> Cosines:
        """Return the result of the function `cosines` in the open transaction, from memory if possible.

        Those of rounded vectors are not exact.

        Raises:
            VectorSearchUnavailable: like `cosines`.
        """
        view = self.view_of(connection, vector.size) if self.shelf.is_hot(self) else None
        return view.cosines(vector) if view is not None else cosines(connection, vector)

    def close(self) -> None:
        """Return the memory after the last search."""
        self.shelf.drop(self)

    def view_of(self, connection: apsw.Connection, dimensions: int) -> VectorView | None:
        """Return the vectors of the connection's transaction; None if they are not in memory and cannot be loaded."""
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
        before = self.view or VectorView(0, {}, np.empty(0, dtype=np.int64), {})
        if before.transaction > transaction:
            return None
        blocks = _blocks(connection)
        ids = np.concatenate([before.ids[:0], *(block.ids() for block in blocks.values())])
        size, is_rounded = resident_bytes(ids.size, dimensions, exact_bytes=self.shelf.exact_bytes)
        if not self.shelf.reserve(self, size):
            return None
        unchanged = [number for number, block in blocks.items() if before.blocks.get(number) == block]
        unchanged = unchanged if before.is_rounded == is_rounded else []
        vectors_by_block = {number: before.vectors[number] for number in unchanged}
        changed = [number for number in blocks if number not in vectors_by_block]
        for number, block, matrix in matrices(connection, changed, blocks, dimensions):
            used = matrix[block.used()]
            vectors_by_block[number] = RoundedVectors.of(used) if is_rounded else used
        vectors = {number: vectors_by_block[number] for number in blocks}
        return self.shelf.replace(self, VectorView(transaction, blocks, ids, vectors, is_rounded))


class VectorShelf:
    """Allocator of the memory for vectors. The least recently searched ones are evicted first. Thread-safe.

    Arrays in memory take half the memory traffic of reading the blocks.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_RESIDENT_BYTES,
        exact_bytes: int = EXACT_BYTES,
        hot_at_search: int = HOT_AT_SEARCH,
        resident_seconds: float = RESIDENT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes, self.exact_bytes = max_bytes, exact_bytes
        self._hot_at_search = hot_at_search
        self._resident_seconds = resident_seconds
        self._clock = clock
        self._lock = threading.Lock()
        # Least recently searched first.
        self._resident: OrderedDict[ResidentVectors, int] = OrderedDict()

    def is_hot(self, vectors: ResidentVectors) -> bool:
        """Count a search; return True if there were enough of them to keep the vectors in memory."""
        with self._lock:
            vectors.searches, vectors.last = vectors.searches + 1, self._clock()
            if vectors in self._resident:
                self._resident.move_to_end(vectors)
            return vectors.searches >= self._hot_at_search

    def reserve(self, vectors: ResidentVectors, size: int) -> bool:
        """Reserve memory for an index. Without room, take back the memory that it has, and return False."""
        now = self._clock()
        with self._lock:
            free = self._max_bytes - sum(self._resident.values()) + self._resident.get(vectors, 0)
            evictable = []
            for candidate, candidate_bytes in self._resident.items():
                if free >= size or now - candidate.last < self._resident_seconds:
                    break
                if candidate is not vectors:
                    evictable.append(candidate)
                    free += candidate_bytes
            for evicted in evictable if free >= size else [vectors]:
                self._drop(evicted)
            if free >= size:
                self._resident[vectors] = size
            return free >= size

    def replace(self, vectors: ResidentVectors, view: VectorView) -> VectorView:
        """Publish the view to other searches, unless its memory was taken back meanwhile."""
        with self._lock:
            if vectors in self._resident:
                vectors.view = view
        return view

    def drop(self, vectors: ResidentVectors) -> None:
        """Take back an index's memory. Running searches finish with it."""
        with self._lock:
            self._drop(vectors)

    def _drop(self, vectors: ResidentVectors) -> None:
        self._resident.pop(vectors, None)
        vectors.view = None
