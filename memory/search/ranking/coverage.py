"""Words of a query in a text: their share of its weight, the best sentence, and the rare words. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.chunking.folding import begins_word, places_in
from memory.chunking.segmenting import listed_terms
from memory.chunking.sentences import is_cjk, sentence_spans
from memory.search.ranking.query import single_terms, stem

if TYPE_CHECKING:
    from memory.store.reader import TermCounts

#: A rare word is in at most `_FEW` chunks, or in this share of them, and is one of the first `_MOST_LISTED` words.
_FEW, _RARE, _MOST_LISTED = 5, 0.05, 8

#: Factor of the weight of a pair of characters that no text has.
_STRADDLING = 0.3

#: Factor of the weight of a word that a text has in another form.
FORM = 0.85

#: First letters that a stem and a form of a word have in common, if they have so many.
_SAME_LETTERS = 4

#: BM25 of sentences: FTS5's constants, and about the mean length of a sentence.
_K1, _B, _AVERAGE_CHARACTERS = 1.2, 0.75, 110

#: Terms that are looked for in sentences: a long question has many, and the heaviest decide.
_MOST_LINE_TERMS = 12

#: Share of the query's weight below which the keywords of a text count for nothing, and so do its sentences.
_LEAST_SHARE = 0.1

#: Shorter sentences, as a text of few words, score no higher for that.
_FEWEST_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class WordMatch:
    """Words of a query in one text: the share 0..1 of the query's weight, and the BM25 of the best sentence."""

    coverage: float = 0.0
    line: float = 0.0


def word_matcher(query: str, counts: TermCounts) -> Callable[[str, str], WordMatch]:
    """Return the function (text, `fold(text)`) -> `WordMatch`.

    A term weighs its inverse document frequency, `ln(1 + (N - n + 0.5) / (n + 0.5))`, so that words of many chunks say
    little, and a word of no chunk weighs most, or as its other forms do if there are any. But a pair of characters of
    no chunk probably straddles two words, as no text would write it: it weighs a third. A text that has another form of
    a word holds most of it.

    In a sentence each of the heaviest terms counts once: `weight * (k1 + 1) / (1 + k1 * (1 - b + b * characters /
    average))`. Sentences of a query in Chinese, Japanese or Korean tell nothing more than the whole chunk and score 0.
    """
    terms = weighted_terms(query, counts)
    total = sum(weight for *_, weight in terms)
    line_terms = 0 if is_cjk(query) else _MOST_LINE_TERMS

    def matched(text: str, folded: str) -> WordMatch:
        covered_weight = 0.0
        places: list[tuple[int, int, float]] = []  # of a term in the text, number of the term, its weight
        for number, (stem_of_term, form, whole_weight) in enumerate(terms):
            if form and form[:_SAME_LETTERS] not in folded:
                continue
            weight, is_in_line = whole_weight, number < line_terms
            beginnings = _beginnings(stem_of_term, text, folded, only_first=not is_in_line)
            if form and not beginnings:
                weight, beginnings = FORM * weight, _beginnings(form, text, folded, only_first=not is_in_line)
            if beginnings:
                covered_weight += weight
                if is_in_line:
                    places += [(place, number, weight) for place in beginnings]
        share = min(1.0, covered_weight / total) if total else 0.0
        return WordMatch(share, _best_line(folded, places) if share >= _LEAST_SHARE else 0.0)

    return matched


def weighted_terms(query: str, counts: TermCounts) -> list[tuple[str, str, float]]:
    """Return the query's terms, the heaviest first: stem, beginning of its other forms (may be empty), weight."""
    terms: list[tuple[str, str, float]] = []
    for term in single_terms(query):
        holding = counts.holding.get(term.text, 0) or counts.holding.get(f"{term.form}*", 0)
        weight = math.log(1 + (max(0, counts.chunks - holding) + 0.5) / (holding + 0.5))
        straddles = not holding and term.pair
        terms.append((stem(term), term.form, weight * _STRADDLING if straddles else weight))
    return sorted(terms, key=lambda term: -term[2])


def _best_line(folded: str, places: list[tuple[int, int, float]]) -> float:
    """Return the BM25 of the best sentence, by places of terms in a folded text, their numbers and weights."""
    if not places:
        return 0.0
    spans = sentence_spans(folded, cjk=False)
    starts = [start for start, _ in spans]
    terms_by_sentence: dict[int, dict[int, float]] = {}
    for place, number, weight in places:
        terms_by_sentence.setdefault(bisect_right(starts, place) - 1, {})[number] = weight
    best = 0.0
    for sentence, weights in terms_by_sentence.items():
        start, end = spans[max(0, sentence)]
        damping = _K1 * (1 - _B + _B * max(_FEWEST_CHARACTERS, end - start) / _AVERAGE_CHARACTERS)
        best = max(best, sum(weights.values()) * (_K1 + 1) / (1 + damping))
    return best


def rare_words(query: str, counts: TermCounts) -> list[str]:
    """Return the rare words of a list of words, or the only word, as the user typed them."""
    words = [term for term in listed_terms(query) if not term.pair][:_MOST_LISTED]
    most = max(_FEW, _RARE * counts.chunks) if len(words) > 1 else counts.chunks
    return [term.typed for term in words if 0 < counts.holding.get(term.text, 0) <= most]


def _beginnings(term: str, text: str, folded: str, *, only_first: bool) -> list[int]:
    """Return the places of a term at which a word of a text begins; `Reader` begins one in `openReader`."""
    places = []
    place = folded.find(term)
    while place >= 0:
        if begins_word(folded, place) or _is_hump(text, folded, place):
            places.append(place)
            if only_first:
                break
        place = folded.find(term, place + 1)
    return places


def _is_hump(text: str, folded: str, place: int) -> bool:
    """Return True if a word begins inside of letters and digits, by a capital or by the change between both."""
    if not folded[place - 1 : place + 1].isascii():
        return False
    at = place if len(text) == len(folded) else places_in(text)[place]
    before, first = text[at - 1], text[at]
    return (first.isupper() and not before.isupper()) or before.isdigit() != first.isdigit()
