"""Share of a query that a text holds, by the weight of its terms, and its rare words. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from memory.chunking.segmenting import listed_terms
from memory.search.ranking.query import fold, single_terms, stem

if TYPE_CHECKING:
    from memory.store.reader import TermCounts

#: A rare word is in at most `_FEW` chunks, or in this share of them, and is one of the first `_MOST_LISTED` words.
_FEW, _RARE, _MOST_LISTED = 5, 0.05, 8

#: Factor of the weight of a pair of characters that no text has.
_STRADDLING = 0.3


def coverage_of(query: str, counts: TermCounts) -> Callable[[str, str], float]:
    """Return the function (text, `fold(text)`) -> share 0..1 of the query's weight that the text holds.

    A term weighs its inverse document frequency, `ln(1 + (N - n + 0.5) / (n + 0.5))`, so that words of many chunks say
    little, and a word of no chunk weighs most. But a pair of characters of no chunk probably straddles two words, as no
    text would write it: it weighs a third.
    """
    terms: list[tuple[str, float]] = []
    for term in single_terms(query):
        holding = counts.holding.get(term.text, 0)
        weight = math.log(1 + (max(0, counts.chunks - holding) + 0.5) / (holding + 0.5))
        straddles = not holding and term.pair
        terms.append((stem(fold(term.typed)), weight * _STRADDLING if straddles else weight))
    total = sum(weight for _, weight in terms)

    def coverage(text: str, folded: str) -> float:
        covered_weight = sum(weight for term, weight in terms if _begins_word(term, text, folded))
        return min(1.0, covered_weight / total) if total else 0.0

    return coverage


def rare_words(query: str, counts: TermCounts) -> list[str]:
    """Return the rare words of a list of words, or the only word, as the user typed them."""
    words = [term for term in listed_terms(query) if not term.pair][:_MOST_LISTED]
    most = max(_FEW, _RARE * counts.chunks) if len(words) > 1 else counts.chunks
    return [term.typed for term in words if 0 < counts.holding.get(term.text, 0) <= most]


def _begins_word(term: str, text: str, folded: str) -> bool:
    """Return True if a term begins a word of a text; `Reader` begins one in `openReader`."""
    place = folded.find(term)
    if not term[0].isascii():
        return place >= 0
    while place > 0:
        before = text[place - 1]
        if not before.isalnum() or not before.isascii() or (text[place].isupper() and not before.isupper()):
            return True
        if before.isdigit() != text[place].isdigit():
            return True
        place = folded.find(term, place + 1)
    return place == 0
