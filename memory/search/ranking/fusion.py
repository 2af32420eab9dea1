"""Fusion of the vector side and the keyword side. Pure functions of scores.

Two formulas, chosen by `query.hybrid.fusion`:

* `fuse_minmax` (default): both sides are scaled to 0..1 over the union of their candidates, and added with weights. The
  weight of the keywords depends on the candidate: none for a place with a tenth of the question, all for a place with
  nine tenths. So words decide where they agree, and the vector where they do not, as across languages.
* `fuse_weighted`: the reference formula, `vector_weight * cosine + text_weight / (1 + position)`.

A min-max score says "best of this list", not "good". So `rank` orders the list, and the absolute `score` is reported
and filters it (`memory.search.ranking.confidence`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: Share of the question that any place may hold by chance.
_CHANCE = 0.1


@dataclass(frozen=True, slots=True)
class Fused:
    """One candidate after fusion.

    `rank` orders the list and means nothing outside of it. `score` is 0..1 and absolute: the confidence in the answer.
    `vector` is the cosine, `text` the keyword score (by min-max fusion the share of the query that the place holds),
    both 0..1, None if that side does not know the candidate. `rerank` is the reranker's score, on a scale of its own.
    """

    id: int
    rank: float
    score: float
    vector: float | None
    text: float | None
    rerank: float | None = None


def fuse_minmax(
    near: Mapping[int, float],
    words: Mapping[int, float],
    coverage: Mapping[int, float],
    *,
    vector_weight: float,
    text_weight: float,
    cosines: Mapping[int, float] | None = None,
    lift: Mapping[int, float] | None = None,
    scale: float = 1.0,
) -> list[Fused]:
    """Fuse by min-max scaling over the union; best first, ties by id. Scores are 0 until `scores` sets them.

    `near` and `words` are the scores of both sides (`memory.search.ranking.features`). A chunk without a vector is
    judged by its keywords alone, a chunk without `words` holds no term of the query. `coverage` is the share 0..1 of
    the query that a chunk holds, and `cosines` are reported. Weights are scaled to sum 1; both 0 means equal weights. A
    rank 0..1 is multiplied by `scale`, and the chunk's `lift` added.
    """
    cosines = near if cosines is None else cosines
    ids = near.keys() | words.keys()
    vector = _scaled(near)
    text = _scaled({id_: words.get(id_, 0.0) for id_ in ids}) if words else {}
    total = vector_weight + text_weight
    share = vector_weight / total if total > 0 else 0.5
    fused = []
    for id_ in ids:
        text_rank = text.get(id_, 0.0) if id_ in words else 0.0
        if near:
            text_rank *= _clip((coverage.get(id_, 0.0) - _CHANCE) / (1 - 2 * _CHANCE))
        vector_rank = vector.get(id_, text_rank)
        rank = share * vector_rank + (1 - share) * text_rank if near else text_rank
        fused.append(
            Fused(
                id=id_,
                rank=scale * rank + (lift.get(id_, 0.0) if lift else 0.0),
                score=0.0,
                vector=_clip(cosines[id_]) if id_ in cosines else None,
                text=_clip(coverage.get(id_, 0.0)) if id_ in words else None,
            )
        )
    return sorted(fused, key=lambda item: (-item.rank, item.id))


def fuse_weighted(
    cosines: Mapping[int, float],
    bm25: Mapping[int, float],
    *,
    vector_weight: float,
    text_weight: float,
) -> list[Fused]:
    """Fuse by the reference formula; best first, ties by id.

    The keyword score of the candidate at position p of the keyword list (0-based, by BM25) is 1 / (1 + p);
    a side that does not know a candidate contributes nothing. Weights are scaled to sum 1; both 0 means 0.7 and 0.3.
    """
    total = vector_weight + text_weight
    share = vector_weight / total if total > 0 else 0.7
    positions = {id_: place for place, (id_, _) in enumerate(sorted(bm25.items(), key=lambda hit: (-hit[1], hit[0])))}
    fused = []
    for id_ in cosines.keys() | bm25.keys():
        vector = _clip(cosines[id_]) if id_ in cosines else None
        text = 1.0 / (1 + positions[id_]) if id_ in positions else None
        score = share * (vector or 0.0) + (1 - share) * (text or 0.0)
        fused.append(Fused(id=id_, rank=score, score=score, vector=vector, text=text))
    return sorted(fused, key=lambda item: (-item.rank, item.id))


def descending(fused: Sequence[Fused], top: int) -> list[Fused]:
    """Make scores fall with the rank, so that sorting by them keeps the order.

    Each of the first `top` gets at least the scores of the others below it; each later hit at most the score of its
    predecessor.
    """
    result = list(fused)
    for place in range(min(top, len(result)) - 2, -1, -1):
        result[place] = replace(result[place], score=max(result[place].score, result[place + 1].score))
    for place in range(max(1, top), len(result)):
        result[place] = replace(result[place], score=min(result[place].score, result[place - 1].score))
    return result


def _scaled(scores: Mapping[int, float]) -> dict[int, float]:
    """Scale to 0..1; equal scores are all 1."""
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if high <= low:
        return dict.fromkeys(scores, 1.0)
    return {id_: (value - low) / (high - low) for id_, value in scores.items()}


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
