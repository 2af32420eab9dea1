"""Putting the vector side and the keyword side together. Pure functions of scores.

Two formulas, chosen by `query.hybrid.fusion`:

* `fuse_minmax` (default): both sides are scaled to 0..1 over the union of their candidates, both scores filled in
  for every candidate, and added with weights. How much the keywords count depends on the query: `gate`
  takes their weight away when even the best keyword hit holds little of what was asked, as with a
  question in one language over notes in another.
* `fuse_weighted`: the reference formula, `vector_weight * cosine + text_weight / (1 + position)`.

What a min-max score says is "best of this list", not "good"; so the list is ordered by `rank` and
reports and filters by `score`, an absolute one (see `Fused`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

#: Weights of the min-max formula, measured best over six question sets in two languages.
MINMAX_VECTOR_WEIGHT = 0.4
MINMAX_TEXT_WEIGHT = 0.6


@dataclass(frozen=True, slots=True)
class Fused:
    """One candidate after fusion.

    `rank` orders the list and means nothing outside of it. `score` is 0..1 and absolute: how well the
    place answers by the better of its two sides. `vector` is the cosine, `text` the keyword score, both
    0..1, None where that side does not know the candidate. The keyword score of `fuse_minmax` is relative to
    the best hit until `with_coverage` makes it the absolute one.
    """

    id: int
    rank: float
    score: float
    vector: float | None
    text: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Which cosines of a model mean unrelated (score 0) and surely related (score 1)."""

    unrelated: float
    related: float

    def score(self, cosine: float) -> float:
        """Scale a cosine to 0..1."""
        return _clip((cosine - self.unrelated) / (self.related - self.unrelated))


def fuse_minmax(
    cosines: Mapping[int, float],
    bm25: Mapping[int, float],
    *,
    gate: float,
    calibration: Calibration,
) -> list[Fused]:
    """Fuse by min-max scaling over the union; best first, ties by id.

    Args:
        cosines: chunk id -> cosine; a chunk without a vector is absent and judged by its keywords alone.
        bm25: chunk id -> BM25, positive; a chunk that holds no term of the query is absent and counts as 0.
        gate: 0..1, multiplies the weight of the keyword side.
        calibration: turns cosines into absolute scores.
    """
    ids = cosines.keys() | bm25.keys()
    vector = _scaled(cosines)
    text = _scaled({id_: bm25.get(id_, 0.0) for id_ in ids}) if bm25 else {}
    text_weight = MINMAX_TEXT_WEIGHT * gate if bm25 else 0.0
    vector_weight = MINMAX_VECTOR_WEIGHT if cosines else 0.0
    if vector_weight == 0:
        text_weight = 1.0
    fused = []
    for id_ in ids:
        keyword = text.get(id_, 0.0)
        near = vector.get(id_, keyword * min(1.0, gate))
        rank = (vector_weight * near + text_weight * keyword) / (vector_weight + text_weight)
        fused.append(
            Fused(
                id=id_,
                rank=rank,
                score=calibration.score(cosines[id_]) if id_ in cosines else 0.0,
                vector=_clip(cosines[id_]) if id_ in cosines else None,
                text=keyword if id_ in bm25 else None,
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


def with_coverage(fused: Fused, coverage: float) -> Fused:
    """Make the share 0..1 of the query's weight that a keyword hit covers its absolute keyword score."""
    text = _clip(coverage)
    return replace(fused, text=text, score=max(fused.score, text))


def relevant(fused: Iterable[Fused], *, min_score: float) -> list[Fused]:
    """Leave out what only its vector speaks for and whose score is below `min_score`.

    A keyword hit stays whatever its score: an exact word was asked for and is there.
    """
    return [item for item in fused if item.text is not None or item.score >= min_score]


def descending(fused: Sequence[Fused]) -> list[Fused]:
    """Give every item at least the score of those ranked below it, so that sorting by score keeps the order."""
    floor = 0.0
    result = []
    for item in reversed(fused):
        floor = max(floor, item.score)
        result.append(item if item.score == floor else replace(item, score=floor))
    result.reverse()
    return result


def gate_of(best_coverage: float) -> float:
    """How far to trust the keyword side: not at all below a tenth of the query's weight, fully from half of it on.

    Measured on questions in one language over notes in two, against the same with one language.
    """
    return _clip((best_coverage - 0.1) * 2.5)


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
