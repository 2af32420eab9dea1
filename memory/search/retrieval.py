"""One search over one generation: candidates of both sides, fused, without repetitions, best first."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.search.calibration import calibration_of
from memory.search.fusion import Fused, descending, fuse_minmax, fuse_weighted, gate_of, relevant
from memory.search.overlap import repeats
from memory.search.terms import coverage, sought
from memory.store.errors import VectorSearchUnavailable
from memory.store.reader import ChunkRow, StoreReader, Vector, VectorBackend

if TYPE_CHECKING:
    from memory.search.query_vectors import PendingVector
    from schemas.search import Mode
    from schemas.settings import Hybrid

#: Candidates of one side at most, however many results are asked for.
MAX_CANDIDATES = 200

#: Share of the deadline that is kept for the store when waiting for the query's vector.
_STORE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one search asks for. `deadline` is a monotonic clock's time; `timeout_seconds` how far away it was."""

    query: str
    max_results: int
    min_score: float
    sources: Sequence[str]
    hybrid: Hybrid
    deadline: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class QuerySide:
    """The vector side of a search: who embeds, and the vector on its way. `identity` is the provider's."""

    identity: str
    model: str
    vector: PendingVector


@dataclass(frozen=True, slots=True)
class Found:
    """Chunks and their scores, best first; how they were found and what was missing, in words."""

    hits: tuple[tuple[Fused, ChunkRow], ...]
    terms: tuple[str, ...]
    mode: Mode
    degraded: tuple[str, ...]


def retrieve(reader: StoreReader, wanted: Wanted, side: QuerySide | None) -> Found:
    """Search both tables and put the candidates together.

    Raises whatever the store raises, except that vectors which cannot be searched leave the keywords.
    """
    degraded: list[str] = []
    k = min(MAX_CANDIDATES, max(wanted.max_results, wanted.max_results * wanted.hybrid.candidate_multiplier))
    by_text = side is None or wanted.hybrid.enabled
    bm25 = {hit.id: hit.score for hit in reader.search_text(wanted.query, k, wanted.sources)} if by_text else {}
    vector = _query_vector(reader, wanted, side, degraded)
    cosines: dict[int, float] = {}
    if vector is None and not by_text:
        # Keywords were switched off, and the vector is not to be had: an answer is better than none.
        by_text = True
        bm25 = {hit.id: hit.score for hit in reader.search_text(wanted.query, k, wanted.sources)}
    if vector is not None:
        if reader.vector_backend is VectorBackend.NUMPY and reader.vector_reason is not None:
            degraded.append(reader.vector_reason)
        cosines, bm25 = _vector_side(reader, wanted, vector, bm25, k, by_text=by_text, degraded=degraded)
    fused, rows, terms = _fuse(reader, wanted, cosines, bm25, model=side.model if side is not None else "")
    return Found(
        hits=tuple(_distinct(relevant(fused, min_score=wanted.min_score), rows, wanted.max_results)),
        terms=terms,
        mode=_mode(by_text=by_text, by_vector=bool(cosines)),
        degraded=tuple(degraded),
    )


def _query_vector(reader: StoreReader, wanted: Wanted, side: QuerySide | None, degraded: list[str]) -> Vector | None:
    if side is None:
        return None
    embedded_by = embedding_identity(reader)
    if embedded_by is not None and embedded_by != side.identity:
        degraded.append(
            "the index holds vectors of another embedding model and is waiting to be rebuilt: keywords only"
        )
        return None
    from memory.search.query_vectors import Unavailable  # only here: a search by keywords starts without it

    reserve = _STORE_SHARE * wanted.timeout_seconds
    vector = side.vector.wait(wanted.deadline - reserve - time.monotonic())
    if isinstance(vector, Unavailable):
        degraded.append(f"{vector.reason}: keywords only")
        return None
    return vector


def _vector_side(
    reader: StoreReader,
    wanted: Wanted,
    vector: Vector,
    bm25: dict[int, float],
    k: int,
    *,
    by_text: bool,
    degraded: list[str],
) -> tuple[dict[int, float], dict[int, float]]:
    """Nearest chunks, and the scores that each side's candidates are missing."""
    try:
        cosines = {hit.id: hit.score for hit in reader.search_vectors(vector, k, wanted.sources)}
        others = [id_ for id_ in bm25 if id_ not in cosines]
        if others:
            cosines |= reader.vector_scores(vector, others)
    except VectorSearchUnavailable as error:
        degraded.append(f"{error}: keywords only")
        return {}, bm25
    unscored = [id_ for id_ in cosines if id_ not in bm25]
    if by_text and unscored:
        bm25 = bm25 | reader.text_scores(wanted.query, unscored)
    return cosines, bm25


def _fuse(
    reader: StoreReader, wanted: Wanted, cosines: dict[int, float], bm25: dict[int, float], *, model: str
) -> tuple[list[Fused], dict[int, ChunkRow], tuple[str, ...]]:
    rows = reader.chunk_rows([*(cosines.keys() | bm25.keys())])
    # A chunk that a commit took away between two queries is nobody's answer.
    cosines = {id_: score for id_, score in cosines.items() if id_ in rows}
    bm25 = {id_: score for id_, score in bm25.items() if id_ in rows}
    terms = sought(wanted.query)
    hybrid = wanted.hybrid
    if hybrid.fusion == "weighted" and cosines:
        weights = {"vector_weight": hybrid.vector_weight, "text_weight": hybrid.text_weight}
        return fuse_weighted(cosines, bm25, **weights), rows, tuple(terms)
    covered = coverage(terms, {id_: rows[id_].text for id_ in bm25})
    best = covered[max(bm25, key=lambda id_: (bm25[id_], -id_))] if bm25 else 0.0
    fused = fuse_minmax(cosines, bm25, coverage=covered, gate=gate_of(best), calibration=calibration_of(model))
    return fused, rows, tuple(terms)


def _distinct(fused: Sequence[Fused], rows: dict[int, ChunkRow], limit: int) -> list[tuple[Fused, ChunkRow]]:
    kept: list[tuple[Fused, ChunkRow]] = []
    for item in fused:
        if len(kept) == limit:
            break
        row = rows[item.id]
        if not repeats(row, (other for _, other in kept)):
            kept.append((item, row))
    return list(zip(descending([item for item, _ in kept]), (row for _, row in kept), strict=True))


def _mode(*, by_text: bool, by_vector: bool) -> Mode:
    if by_text and by_vector:
        return "hybrid"
    return "vector" if by_vector else "keyword"


def embedding_identity(reader: StoreReader) -> str | None:
    """Identity of the provider whose vectors the index holds; None when the index does not say."""
    description = reader.meta("identity")
    if description is None:
        return None
    try:
        facts = json.loads(description)
    except ValueError:
        return None
    identity = facts.get("embedding") if isinstance(facts, dict) else None
    return identity if isinstance(identity, str) else None
