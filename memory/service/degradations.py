"""What a search had to do without, in a word for each of its sentences."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.search import SearchAnswer

#: What a sentence of `SearchAnswer.degraded` contains -> what was missing. The first that fits counts.
_SIGNS = (
    ("did not finish within", "time"),
    ("the queue does not answer", "queue"),
    ("changed files are not noticed", "watch"),
    ("there is no index yet", "index"),
    ("vectors only", "keywords"),
    ("keywords only", "vectors"),
    ("vector", "vectors"),
)


def without(answer: SearchAnswer) -> Sequence[str]:
    """What was missing, each once: vectors, keywords, queue, time, index or other."""
    found = [next((what for sign, what in _SIGNS if sign in reason), "other") for reason in answer.degraded]
    return tuple(dict.fromkeys(found))
