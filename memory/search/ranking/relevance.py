"""Confidence 0..1 that a place answers a query: the `score` of a result. Pure.

The order of results comes from `memory.search.ranking.fusion`, whose numbers only compare the candidates of one
list. The score is absolute. It is the logistic function of a place's odds:

* **in the query's own script**, its cosine and the share of the query that it holds: `7.3 c + 5.9 s - 3.36`;
* **where words cannot agree**, since the query is in Latin letters and the text in Chinese, mostly how far its cosine
  stands out from the mean of the nearest ones: `1.5 c + 20.5 (c - mean) + 8 s - 2.01`;
* where no word of the query is in any candidate, it may be of another language with the same script: the higher of
  the two, the second one less 0.75.

Both less `0.625 ln(chunks / 100)`: the more chunks there are, the nearer is the nearest unrelated one (a
chunk's prior odds of being the answer are those of one among all). A place goes half of the way to the best one of its
list: where a memory clearly speaks about something, its neighbours are worth showing, too. A place with most of the
query's words needs no vector, and a place with an identifier or a day of the query needs nothing else. If no place
holds an identifier of the query, the odds of every near place are less by 1.

The numbers were fitted with the bundled model on twelve sets of questions, English and Chinese, so that at the
default `min_score` of 0.35 at most 2 in 100 questions lose their answer, and more than half of the questions without
an answer in the memory return nothing. Cosines of other models are brought to that model's scale
first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: Number of nearest chunks whose mean cosine a place has to stand out from.
CROWD = 24

#: Numbers of chunks below and above which the prior stays the same.
_FEWEST, _MOST = 20, 1000

#: Share of the query's weight from which its words count as found.
_WORDS_AGREE = 0.1

#: Odds of a clear answer; higher odds do not lift the places beside it further.
_CLEAR = 0.69

#: Reduction of the odds if no chunk holds the identifier that the query names.
_UNNAMED = 1.0

#: Least score of a place with an identifier or a day of the query.
EXACT_SCORE = 0.6

_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_SPACES = re.compile(r"\s+")
#: Characters of a text by which its script is recognized.
_SCRIPT_SAMPLE = 400


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
    places: Sequence[Evidence], *, crowd: float, chunks: int, calibration: Calibration, named: bool = True
) -> list[float]:
    """Return the score of each place of a list.

    Args:
        places: in any order.
        crowd: mean cosine of the nearest chunks, at most `CROWD` of them.
        chunks: number of chunks of the index.
        calibration: the model's.
        named: False if the query has exact pieces and no place holds one.
    """
    prior = 0.625 * math.log(min(_MOST, max(_FEWEST, chunks)) / 100) + (0.0 if named else _UNNAMED)
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

    own = [odds(place) for place in places]
    best = min(_CLEAR, max(own, default=-math.inf))
    return [
        max(
            _logistic(max(value, (value + best) / 2)) if value > -math.inf else 0.0,
            _by_words(place.coverage) if place.cosine is not None else place.coverage,
            max(EXACT_SCORE, place.coverage) if place.exact else 0.0,
        )
        for place, value in zip(places, own, strict=True)
    ]


def is_cjk(text: str) -> bool:
    """Return True if the beginning of a text is Chinese, Japanese or Korean."""
    if text.isascii():
        return False
    sample = _SPACES.sub("", text[:_SCRIPT_SAMPLE])
    return len(_CJK.findall(sample)) > 0.25 * len(sample)


def _by_words(coverage: float) -> float:
    """Return the score of words alone: 0.4 for a half of the query, 1 for four fifths and more."""
    return min(1.0, max(0.0, 2 * coverage - 0.6))


def _logistic(odds: float) -> float:
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, odds))))
