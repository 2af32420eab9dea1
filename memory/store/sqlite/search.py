"""Search of the vector and keyword tables of one SQLite generation, on a borrowed connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import apsw

from memory.store.lazy_module import LazyModule
from memory.store.reader import Hit, Vector
from memory.store.sqlite import keywords, vec0_tables
from memory.store.sqlite.rows import as_json, fetch

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from memory.store.sqlite.vector_cache import HeldVectors
else:
    np = LazyModule("numpy")

#: Candidates per result that a search with a source filter takes first, before it reads all rows.
OVER_FETCH = 4

# By `chunks_by_file` alone, without reading the chunks.
SELECT_ALL_IDS_OF_SOURCES = """
SELECT c.id FROM files AS f JOIN chunks AS c ON c.file_id = f.id
WHERE f.source IN (SELECT value FROM json_each(?))
"""

# For a source that is rare among the best hits: all of its matches, the best first.
SELECT_TEXT_OF_SOURCES = """
SELECT rowid, -score FROM (
    SELECT rowid, bm25(chunks_fts) AS score FROM chunks_fts
    WHERE chunks_fts MATCH ? AND EXISTS (
        SELECT 1 FROM chunks AS c JOIN files AS f ON f.id = c.file_id
        WHERE c.id = chunks_fts.rowid AND f.source IN (SELECT value FROM json_each(?))
    )
    ORDER BY score, rowid LIMIT ?
)
"""

SELECT_IDS_OF_SOURCES = """
SELECT c.id FROM chunks AS c JOIN files AS f ON f.id = c.file_id
WHERE c.id IN (SELECT value FROM json_each(?)) AND f.source IN (SELECT value FROM json_each(?))
"""

# Repeated until NULL: one look-up for each source instead of a scan of all files.
SELECT_NEXT_SOURCE = "SELECT min(source) FROM files WHERE source > ?"


def nearest(
    connection: apsw.Connection,
    vector: Vector,
    k: int,
    sources: Sequence[str] | None,
    held: HeldVectors | None = None,
) -> list[Hit]:
    """Return the k chunks of these sources with the highest cosine, best first. Exact.

    `held` may hold the vectors in memory.
    """
    with vec0_tables.snapshot(connection):
        scan = vec0_tables.cosines if held is None else held.cosines
        return _nearest(connection, *scan(connection, vector), k, sources)


def _nearest(
    connection: apsw.Connection,
    ids: npt.NDArray[np.int64],
    cosines: npt.NDArray[np.float32],
    k: int,
    sources: Sequence[str] | None,
) -> list[Hit]:
    if sources is None or _covers_all(connection, sources):
        return top(ids, cosines, k)
    hits = _of_sources(connection, top(ids, cosines, k * OVER_FETCH), sources)
    if len(hits) >= k or len(ids) <= k * OVER_FETCH:
        return hits[:k]
    of_sources = np.array(fetch(connection, SELECT_ALL_IDS_OF_SOURCES, (as_json(sources),)), dtype=np.int64)
    wanted = np.isin(ids, of_sources)
    return top(ids[wanted], cosines[wanted], k)


def top(ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float32], k: int) -> list[Hit]:
    """Return the k best of two arrays of equal length, best first, equal scores by id."""
    if len(ids) > k:
        # Includes all that score like the last one, so that their ids decide.
        best = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        ids, scores = ids[best], scores[best]
    order = np.lexsort((ids, -scores))[:k]
    return [Hit(int(ids[index]), float(scores[index])) for index in order]


def best_texts(
    connection: apsw.Connection,
    terms: Sequence[str],
    k: int,
    sources: Sequence[str] | None,
    holders: keywords.Holders,
) -> list[Hit]:
    """Return the k chunks of these sources with the highest BM25 for any of the terms, best first."""
    if sources is None or _covers_all(connection, sources):
        return keywords.best_texts(connection, terms, k, holders)
    candidates = keywords.best_texts(connection, terms, k * OVER_FETCH, holders)
    hits = _of_sources(connection, candidates, sources)
    if len(hits) >= k or len(candidates) < k * OVER_FETCH:
        return hits[:k]
    return _hits(fetch(connection, SELECT_TEXT_OF_SOURCES, (" OR ".join(terms), as_json(sources), k)))


def _hits(rows: Iterable[Sequence[Any]]) -> list[Hit]:
    return [Hit(int(row[0]), float(row[1])) for row in rows]


def _of_sources(connection: apsw.Connection, hits: list[Hit], sources: Sequence[str]) -> list[Hit]:
    bindings = (as_json([hit.id for hit in hits]), as_json(sources))
    wanted = {row[0] for row in fetch(connection, SELECT_IDS_OF_SOURCES, bindings)}
    return [hit for hit in hits if hit.id in wanted]


def _covers_all(connection: apsw.Connection, sources: Sequence[str]) -> bool:
    source = ""
    while True:
        [(source,)] = fetch(connection, SELECT_NEXT_SOURCE, (source,))
        if source is None:
            return True
        if source not in sources:
            return False


def dot_products(vectors: dict[int, Vector], vector: Vector) -> dict[int, float]:
    """Return the cosines of unit vectors with another one."""
    if not vectors:
        return {}
    cosines = np.stack(list(vectors.values())) @ vector
    return dict(zip(vectors, cosines.tolist(), strict=True))
