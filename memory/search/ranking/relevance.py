"""How surely a place answers a query, 0..1: what a result's `score` means. Pure.

The order of results comes from `memory.search.ranking.fusion`; its numbers only compare the candidates of one
list. The score is absolute. It is the logistic function of what speaks for a place:

* **in the query's own script**, its cosine and the share of the query that it holds: `7.3 c + 5.9 s - 3.36`;
* **where words cannot agree**, since the query is in Latin letters and the text in Chinese, mostly how far its cosine
  stands out from the mean of the nearest ones: `1.5 c + 20.5 (c - mean) + 8 s - 2.01`;
* where no word of the query is in any candidate, it may be of another language with the same script: the higher of
  the two, the second one less 0.75.

Both less `0.625 ln(chunks / 100)`: the more there is to choose from, the nearer comes what only happens to be near (a
chunk's prior odds of being the one are those of one among all). A place goes half of the way to the best one of its
list: where a memory clearly speaks about something, what stands beside it is worth showing, too. What holds most of
the query's words needs no vector, and what holds an identifier or a day that the query names needs nothing else;
where nothing holds the identifier that it names, what is merely near has to be nearer, by 1.

The numbers were fitted with the bundled model on twelve sets of questions, English and Chinese, so that at the
default `min_score` of 0.35 at most 2 in 100 questions lose their answer, and more than half of the questions about
something that a memory knows nothing of return nothing. Cosines of other models are brought to that model's scale
first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: The nearest chunks whose mean cosine is the crowd that a place has to stand out from.
CROWD = 24

#: Below and above these numbers of chunks the prior stays what it is there.
_FEWEST, _MOST = 20, 1000

#: A share of the query's weight from which its words count as found at all.
_WORDS_AGREE = 0.1

#: Odds of a place that answers clearly; what is beyond that speaks no louder for the places beside it.
_CLEAR = 0.69

#: What the odds are less where nobody has ever written what the query names.
_UNNAMED = 1.0

#: What an identifier or a day that was asked for scores at least.
EXACT_SCORE = 0.6

_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_SPACES = re.compile(r"\s+")
#: Characters of a text that tell its script.
_SCRIPT_SAMPLE = 400


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the cosines of a model mean: usual ones of a question with some text, and with the text that answers it."""

    unrelated: float
    answering: float

    def common(self, cosine: float) -> float:
        """A cosine on the scale of the model that the scores were fitted with."""
        share = (cosine - self.unrelated) / (self.answering - self.unrelated)
        return _FITTED.unrelated + share * (_FITTED.answering - _FITTED.unrelated)


_FITTED = Calibration(unrelated=0.05, answering=0.38)

#: Models that nobody here could measure: what their makers and users report for questions and passages.
_DEFAULT = Calibration(unrelated=0.10, answering=0.50)

#: By a part of the model's name, first match wins.
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
    """What speaks for one place. `cosine` is None where it has no vector.

    `coverage` is the share 0..1 of the query that it holds; `exact` says that it holds what can only be meant exactly.
    """

    cosine: float | None
    coverage: float
    exact: bool
    same_script: bool


def scores(
    places: Sequence[Evidence], *, crowd: float, chunks: int, calibration: Calibration, named: bool = True
) -> list[float]:
    """The score of each place of a list.

    Args:
        places: in any order.
        crowd: mean cosine of the nearest chunks, at most `CROWD` of them.
        chunks: how many there are to choose from.
        calibration: the model's.
        named: whether what the query means exactly, if anything, is anywhere.
    """
    prior = 0.625 * math.log(min(_MOST, max(_FEWEST, chunks)) / 100) + (0.0 if named else _UNNAMED)
    words_agree = any(place.coverage >= _WORDS_AGREE for place in places)
    # Of a few chunks that are nothing to the query one is the nearest all the same.
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
    """Whether a text is Chinese, Japanese or Korean, as far as its beginning tells."""
    if text.isascii():
        return False
    sample = _SPACES.sub("", text[:_SCRIPT_SAMPLE])
    return len(_CJK.findall(sample)) > 0.25 * len(sample)


def _by_words(coverage: float) -> float:
    """What words alone are worth: a half of the query is 0.4, four fifths and more are 1."""
    return min(1.0, max(0.0, 2 * coverage - 0.6))


def _logistic(odds: float) -> float:
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, odds))))
