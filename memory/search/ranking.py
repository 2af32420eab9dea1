"""From the scores of both sides to an answer's hits: fused, aged, without repetitions, varied, cut, scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from memory.search.calibration import calibration_of
from memory.search.decay import decayed
from memory.search.fusion import Fused, descending, fuse_minmax, fuse_weighted, gate_of, relevant, with_coverage
from memory.search.overlap import repeats
from memory.search.reordering import DecaySettings, MmrSettings, factors_of, varied_hits
from memory.search.terms import Coverage
from memory.store.reader import ChunkRow, StoreReader

#: Best keyword hits whose texts tell how common the query's terms are.
COVERAGE_SAMPLE = 16


class HybridSettings(Protocol):
    """How both sides are put together; `schemas.settings.Hybrid` is one."""

    @property
    def enabled(self) -> bool: ...
    @property
    def fusion(self) -> str: ...
    @property
    def vector_weight(self) -> float: ...
    @property
    def text_weight(self) -> float: ...
    @property
    def candidate_multiplier(self) -> int: ...
    @property
    def mmr(self) -> MmrSettings: ...
    @property
    def temporal_decay(self) -> DecaySettings: ...


def ranked(
    reader: StoreReader,
    cosines: Mapping[int, float],
    bm25: Mapping[int, float],
    terms: Sequence[str],
    *,
    hybrid: HybridSettings,
    model: str,
    max_results: int,
    min_score: float,
    now: float,
) -> tuple[tuple[Fused, ChunkRow], ...]:
    """The hits of a search, best first, at most `max_results`.

    Args:
        reader: has the candidates' texts, times and vectors.
        cosines: chunk id -> cosine; empty when keywords are searched alone.
        bm25: chunk id -> BM25, positive.
        terms: what the query asks for, see `memory.search.terms.sought`.
        hybrid: how the sides are put together, and whether age and variety count.
        model: whose vectors they are.
        max_results: at least 1.
        min_score: see `memory.search.fusion.relevant`; compared before age counts.
        now: Unix seconds.
    """
    calibration = calibration_of(model)
    best = sorted(bm25, key=lambda id_: (-bm25[id_], id_))[:COVERAGE_SAMPLE]
    rows = reader.chunk_rows(best)
    coverage: Coverage | None = None
    if hybrid.fusion == "weighted" and cosines:
        fused = fuse_weighted(cosines, bm25, vector_weight=hybrid.vector_weight, text_weight=hybrid.text_weight)
    else:
        coverage = Coverage(terms, [row.text for row in rows.values()])
        covered = coverage.of(rows[best[0]].text) if best and best[0] in rows else 0.0
        fused = fuse_minmax(cosines, bm25, gate=gate_of(covered), calibration=calibration)
    fused = relevant(fused, min_score=min_score)
    factors: dict[int, float] = {}
    if hybrid.temporal_decay.enabled:
        rows |= reader.chunk_rows([item.id for item in fused if item.id not in rows])
        factors = factors_of(reader, rows, half_life_days=hybrid.temporal_decay.half_life_days, now=now)
        fused = decayed(fused, factors)
    if not hybrid.mmr.enabled:
        return _scored(_distinct(reader, fused, rows, max_results), coverage, factors)
    chosen = varied_hits(
        reader,
        _distinct(reader, fused, rows, max(1, len(fused))),
        share=hybrid.mmr.lambda_,
        limit=max_results,
        unrelated=calibration.unrelated if cosines else None,
    )
    # Variety decides what is shown and in which order; a score goes on saying how well its place answers.
    by_relevance = sorted(chosen, key=lambda hit: (-hit[0].rank, hit[0].id))
    scored = {item.id: item for item, _ in _scored(by_relevance, coverage, factors)}
    return tuple((scored[item.id], row) for item, row in chosen)


def _scored(
    hits: Sequence[tuple[Fused, ChunkRow]], coverage: Coverage | None, factors: Mapping[int, float]
) -> tuple[tuple[Fused, ChunkRow], ...]:
    """Put absolute scores, less for what is old, on hits in the order of their ranks."""
    scored = []
    for item, row in hits:
        absolute = item
        if coverage is not None and item.text is not None:
            absolute = with_coverage(item, coverage.of(row.text))
        scored.append(replace(absolute, score=absolute.score * factors.get(item.id, 1.0)))
    return tuple(zip(descending(scored), (row for _, row in hits), strict=True))


def _distinct(
    reader: StoreReader, fused: Sequence[Fused], known: Mapping[int, ChunkRow], limit: int
) -> list[tuple[Fused, ChunkRow]]:
    """The best `limit` that do not repeat a better one.

    A chunk that a commit took away meanwhile is nobody's answer.
    """
    kept: list[tuple[Fused, ChunkRow]] = []
    for start in range(0, len(fused), limit):
        group = fused[start : start + limit]
        rows = {**known, **reader.chunk_rows([item.id for item in group if item.id not in known])}
        for item in group:
            row = rows.get(item.id)
            if row is not None and not repeats(row, (other for _, other in kept)):
                kept.append((item, row))
                if len(kept) == limit:
                    return kept
    return kept
