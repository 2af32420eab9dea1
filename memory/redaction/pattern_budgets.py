"""How much the patterns of settings may cost, and what is said of one that costs more.

Somebody's pattern may try all ways to cut up a line, as `(a+)+$` does, and need longer than the world lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import Permanent, Transient


@dataclass(frozen=True, slots=True)
class PatternBudget:
    """What all patterns together may take for the texts of one document, or of one question.

    `seconds` and, for every megabyte, `seconds_per_megabyte` more are of processor time, so that a busy machine makes
    no pattern slow; `patience_seconds` pass on the clock at most before one text is given up.
    """

    seconds: float
    seconds_per_megabyte: float
    patience_seconds: float


#: For a document that is indexed. Usual patterns take 0.1 s for a megabyte and less.
INDEXING = PatternBudget(seconds=5.0, seconds_per_megabyte=5.0, patience_seconds=120.0)

#: For a question, and for a page of a document: somebody waits.
ASKING = PatternBudget(seconds=0.5, seconds_per_megabyte=1.0, patience_seconds=5.0)


#: What to do about a pattern that costs too much.
REWRITING = "rewrite the pattern without parts that fit a text in many ways, such as (a+)+ or .*.*"


class PatternTooCostly(Permanent):
    """A pattern needs more than may be spent on this text, which nobody may see without having looked for it.

    The message names the pattern by its place: its own words may be what is to be hidden. It is worded for a document;
    `of_question` says what is wrong, without what to do, where the text is a question.
    """

    def __init__(self, place: int, cost: str) -> None:
        super().__init__(f"{_too_much(place, cost, 'document')}, so nothing of it is indexed or shown: {REWRITING}")
        self.place = place
        self.of_question = f"{_too_much(place, cost, 'question')}, so nothing was searched"


def _too_much(place: int, cost: str, text: str) -> str:
    return f"pattern {place} of redaction.patterns needs too much for this {text} ({cost})"


class PatternsUnanswered(Transient):
    """Nobody could look for the patterns in this text now, so that nothing of it is indexed or shown yet.

    The message says why; what to do depends on who asked.
    """
