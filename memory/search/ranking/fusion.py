"""Fusion of the vector side and the keyword side, and the confidence in each place. Pure functions of scores.

Two formulas, chosen by `query.hybrid.fusion`:

* `fuse_minmax` (default): both sides are scaled to 0..1 over the union of their candidates, and added with weights. The
  weight of the keywords depends on the candidate: none for a place with a tenth of the question, all for a place with
  nine tenths. So words decide where they agree, and the vector where they do not, as across languages.
* `fuse_weighted`: the reference formula, `vector_weight * cosine + text_weight / (1 + position)`.

A min-max score says "best of this list", not "good". So `rank` orders the list, and the absolute `score` is reported
and filters it. It is the confidence 0..1 that a place answers a query, the logistic function of the place's odds:

* **in the query's own script**, its cosine and the share of the query that it holds: `7.3 c + 5.9 s - 3.36`;
* **where words cannot agree**, since the query is in Latin letters and the text in Chinese, mostly how far its cosine
  stands out from the mean of the nearest ones: `1.5 c + 20.5 (c - mean) + 8 s - 2.01`;
* where no word of the query is in any candidate: the higher of the two, the second one less 0.75.

Both less `0.625 ln(chunks / 100)`: a chunk's prior odds are those of one among all. A place goes half of the way to the
best one of its list. A place with most of the query's words needs no vector, and a place with an identifier or a day of
the query needs nothing else. If no place holds an identifier of the query, the odds of every near place are less by 1.

The numbers were fitted with the bundled model on twelve sets of questions, English and Chinese. At the default
`min_score` of 0.35 at most 2 in 100 questions lose their answer, and more than half of the questions without an answer
return nothing. Cosines of other models are brought to that model's scale first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

#: Share of the question that any place may hold by chance.
_CHANCE = 0.1


@dataclass(frozen=True, slots=True)
class Fused:
    """One candidate after fusion.

    `rank` orders the list and means nothing outside of it. `score` is 0..1 and absolute: the confidence in the answer.
    `vector` is the cosine, `text` the keyword score (by min-max fusion the share of the query that the place holds),
    both 0..1, None if that side does not know the candidate.
    """

    id: int
    rank: float
    score: float
    vector: float | None
    text: float | None


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


#: Number of nearest chunks whose mean cosine a place has to stand out from.
CROWD = 24

#: Numbers of chunks below and above which the prior stays the same.
_FEWEST, _MOST = 20, 1000

#: Share of the query's weight from which its words count as found.
_WORDS_AGREE = 0.1

#: Odds of a clear answer; higher odds do not lift the places beside it further.
_CLEAR = 0.69

#: Reduction of the odds if no chunk holds the identifier that the query names.
_NO_EXACT_MATCH = 1.0

#: Least score of a place with an identifier or a day of the query.
EXACT_SCORE = 0.6


@dataclass(frozen=True, slots=True)
class Calibration:
    """Usual cosines of a model between a question and an unrelated text, and between a question and its answer."""

    unrelated: float
    answering: float

    def common(self, cosine: float) -> float:
        """Return a cosine on the scale of the model that the scores were fitted with."""
        share = (cosine - self.unrelated) / (self.answering - self.unrelated)
        return _FITTED.unrelated + share * (_FITTED.answering - _FITTED.unrelated)


_FITTED = Calibration(unrelated=0.05, answering=0.38)

#: Models that this project did not measure: cosines that makers and users report for questions and passages.
_DEFAULT = Calibration(unrelated=0.10, answering=0.50)

#: Part of a model's name -> calibration; the first match wins.
_BY_MODEL = (
    ("multilingual-use", _FITTED),
    ("e5", Calibration(unrelated=0.75, answering=0.88)),
    ("ada-002", Calibration(unrelated=0.70, answering=0.83)),
    ("embedding-3", Calibration(unrelated=0.08, answering=0.45)),
)


#: Share of a query's rare words that is certainty where a place has no vector.
CERTAIN_SHARE = 0.6

#: Confidence from which on a passage is more likely to fit than not.
LIKELY = 0.5


def confidence(score: float, vector_score: float | None) -> float:
    """Return the confidence 0..1 in a passage. Without a vector its score is its share of the query's rare words."""
    return score if vector_score is not None else min(1.0, score / CERTAIN_SHARE)


def calibration_of(model: str) -> Calibration:
    """Return the calibration of a model by its name."""
    name = model.lower()
    return next((calibration for part, calibration in _BY_MODEL if part in name), _DEFAULT)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for one place. `cosine` is None for a place without a vector.

    `coverage` is the share 0..1 of the query that it holds; `exact` is True if it holds an exact piece of the query.
    """

    cosine: float | None
    coverage: float
    exact: bool
    same_script: bool


def scores(
    places: Sequence[Evidence], *, crowd: float, chunks: int, calibration: Calibration, has_exact_match: bool = True
) -> list[float]:
    """Return the score of each place of a list, in their order.

    `crowd` is the mean cosine of the nearest chunks, at most `CROWD` of them; `chunks` the number of chunks of the
    index; `has_exact_match` is False if the query has exact pieces and no place holds one.
    """
    prior = 0.625 * math.log(min(_MOST, max(_FEWEST, chunks)) / 100) + (0.0 if has_exact_match else _NO_EXACT_MATCH)
    words_agree = any(place.coverage >= _WORDS_AGREE for place in places)
    # One of a few unrelated chunks is the nearest all the same.
    typical = max(_FITTED.unrelated, calibration.common(crowd))

    def odds(place: Evidence) -> float:
        if place.cosine is None:
            return -math.inf
        cosine = calibration.common(place.cosine)
        together = 7.3 * cosine + 5.9 * place.coverage - 3.36 - prior
        across = 1.5 * cosine + 20.5 * (cosine - typical) + 8 * place.coverage - 2.01 - prior
        if not place.same_script:
            return across
        return together if words_agree else max(together, across - 0.75)

    odds_of_places = [odds(place) for place in places]
    best = min(_CLEAR, max(odds_of_places, default=-math.inf))
    return [
        max(
            _logistic(max(place_odds, (place_odds + best) / 2)) if place_odds > -math.inf else 0.0,
            _by_words(place.coverage) if place.cosine is not None else place.coverage,
            max(EXACT_SCORE, place.coverage) if place.exact else 0.0,
        )
        for place, place_odds in zip(places, odds_of_places, strict=True)
    ]


def _by_words(coverage: float) -> float:
    """Return the score of words alone: 0.4 for a half of the query, 1 for four fifths and more."""
    return min(1.0, max(0.0, 2 * coverage - 0.6))


def _logistic(odds: float) -> float:
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, odds))))
