"""Confidence 0..1 that a place answers a query. It is reported as the score, and filters the list.

The confidence is the logistic function of the place's odds. For `chunks` of the index, a cosine `c`, the share `s` of
the query that the place holds, and the highest cosine `closest` of any candidate or a sentence of one, they are:

* **in the query's own language**: `15 closest + 6.5 s - 0.3 ln(chunks / 100) - 8`, below 100 chunks with 1 in place of
  0.3; before the sentences have vectors, `7.3 c + 5.9 s - 0.625 ln(chunks / 100) - 3.36`. Where neither text nor query
  is English, the language is probably the same, words vary more, and 6.7 takes the place of 8;
* **in another language**, where names and numbers are the words in common: the higher of that and of
  `10 c + 15 (c - mean) + 8 s - 0.625 ln(chunks / 100) - 4.5`, in which `mean` is that of the nearest ones; in another
  script, where fewer words agree, with 3.4;
* **where words cannot agree**, since only one of both is Chinese, Japanese or Korean, mostly how far the cosine stands
  out: `1.5 c + 20.5 (c - mean) + 8 s - 0.625 ln(chunks / 100) - 2.01`;
* where the languages are not known and no word of the query is in any candidate: the higher of the first and the last
  one, the last less 0.75.

A chunk's prior odds are those of one among all. A place goes half of the way to the best one of its list. A place with
most of the query's words needs no vector, and a place with an identifier or a day of the query needs nothing else. If
no place holds an identifier of the query, the odds of every near place are less by 1.

The numbers were fitted with the bundled model on sets of questions in English and Chinese, those of other languages on
five more (`tests/benchmarks/RESULTS.md`). Cosines of other models are brought to that model's scale first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memory.search.ranking.languages import Languages

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

#: Prior odds against a place of one among a hundred chunks, in English or CJK, and in other languages.
_SAME, _ALIKE = 8.0, 6.7

#: The same in another language, of one script or of two.
_OTHER, _OTHER_SCRIPT = 4.5, 3.4

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
    languages: Languages


def scores(
    places: Sequence[Evidence],
    *,
    crowd: float,
    chunks: int,
    calibration: Calibration,
    closest: float | None = None,
    has_exact_match: bool = True,
) -> list[float]:
    """Return the score of each place of a list, in their order.

    `crowd` is the mean cosine of the nearest chunks, at most `CROWD` of them; `chunks` the number of chunks of the
    index; `closest` the highest cosine of any candidate or a sentence of one, None before sentences have vectors;
    `has_exact_match` is False if the query has exact pieces and no place holds one.
    """
    rarity = math.log(min(_MOST, max(_FEWEST, chunks)) / 100)
    lack = 0.0 if has_exact_match else _NO_EXACT_MATCH
    words_agree = any(place.coverage >= _WORDS_AGREE for place in places)
    # One of a few unrelated chunks is the nearest all the same.
    typical = max(_FITTED.unrelated, calibration.common(crowd))

    def odds(place: Evidence) -> float:
        if place.cosine is None:
            return -math.inf
        cosine = calibration.common(place.cosine)
        standing_out = cosine - typical
        across = 1.5 * cosine + 20.5 * standing_out + 8 * place.coverage - 0.625 * rarity - 2.01
        if closest is not None:
            most = _ALIKE if place.languages is Languages.ALIKE else _SAME
            together = (
                15 * calibration.common(closest) + 6.5 * place.coverage - (0.3 if rarity > 0 else 1.0) * rarity - most
            )
        else:
            together = 7.3 * cosine + 5.9 * place.coverage - 0.625 * rarity - 3.36
        match place.languages:
            case Languages.APART:
                return across - lack
            case Languages.OTHER | Languages.OTHER_SCRIPT:
                least = _OTHER if place.languages is Languages.OTHER else _OTHER_SCRIPT
                foreign = 10 * cosine + 15 * standing_out + 8 * place.coverage - 0.625 * rarity - least
                return max(together, foreign) - lack
            case Languages.SAME if closest is not None:
                return together - lack
        return (together if words_agree else max(together, across - 0.75)) - lack

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
