"""What a query asks for, as pieces of text that can be looked for in a chunk. Pure.

The terms are those of the full-text index (`memory.chunking.segmenting`). Here they serve snippets (where in the
text is the match?) and coverage (how much of the question does this text hold?), on the text as people
wrote it, so they are found as substrings: words by their stem, runs of CJK by their bigrams.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator

from memory.chunking.segmenting import QueryTerm, listed_terms, query_terms
from memory.store.reader import TermCounts

#: Full-width ASCII is written with these; one character each way, so positions stay true.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_WIDE = re.compile("[\uff01-\uff5e\u3000]")

#: Latin letters with accents, which the full-text index does not see either.
_PLAIN = {
    code: plain
    for code in range(0xC0, 0x250)
    if (plain := unicodedata.normalize("NFD", chr(code))[0]).isascii() and plain.isalpha()
}
_ACCENTED = re.compile("[\u00c0-\u024f]")

#: Words longer than this are looked for without their last letters: a cheap stem.
_STEM_FROM = 6

#: A rare word is held by so many chunks at most, or by this share of them; it is one of so many words of a query.
_FEW, _RARE, _MOST_LISTED = 5, 0.05, 8

#: Weight of a pair of characters that no text has.
_STRADDLING = 0.3


def fold(text: str) -> str:
    """Lower case, narrow forms and no accents, keeping every character at its place."""
    if text.isascii():
        return text.lower()
    # Translating is slow, and few texts need it.
    narrow = text.translate(_NARROW) if _WIDE.search(text) else text
    narrow = narrow.translate(_PLAIN) if _ACCENTED.search(narrow) else narrow
    lower = narrow.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := character.lower()) == 1 else character for character in narrow)


def sought(query: str) -> list[str]:
    """The distinct pieces to look for, folded, at most 96. Empty when the query holds no letter or digit.

    A phrase of Chinese, Japanese or Korean is there through its pairs of characters.
    """
    return list(dict.fromkeys(_stem(fold(term.typed)) for term in _single_terms(query)))


class Coverage:
    """Measures how much of a query a text holds.

    A term weighs its inverse document frequency, `ln(1 + (N - n + 0.5) / (n + 0.5))`, so that words which many chunks
    have say little, and a word that none has weighs most. But a pair of characters that none has probably
    straddles two words, as no text would write it: it weighs a third.
    """

    def __init__(self, query: str, counts: TermCounts) -> None:
        self._terms: list[tuple[str, float]] = []
        for term in _single_terms(query):
            holding = counts.holding.get(term.text, 0)
            weight = math.log(1 + (max(0, counts.chunks - holding) + 0.5) / (holding + 0.5))
            straddles = not holding and term.pair
            self._terms.append((_stem(fold(term.typed)), weight * _STRADDLING if straddles else weight))
        self._total = sum(weight for _, weight in self._terms)

    def of(self, text: str, folded: str) -> float:
        """Share 0..1 of the query's weight that a text holds; `folded` is `fold(text)`."""
        if not self._total:
            return 0.0
        return min(1.0, sum(weight for term, weight in self._terms if _begins_word(term, text, folded)) / self._total)


def rare_words(query: str, counts: TermCounts) -> list[str]:
    """Return the words of a list of words that few chunks hold, or the only one, as they were typed."""
    words = [term for term in listed_terms(query) if not term.outdated and not term.pair][:_MOST_LISTED]
    most = max(_FEW, _RARE * counts.chunks) if len(words) > 1 else counts.chunks
    return [term.typed for term in words if 0 < counts.holding.get(term.text, 0) <= most]


def _single_terms(query: str) -> Iterator[QueryTerm]:
    """The query's terms without phrases: a phrase of Chinese, Japanese or Korean is there through its pairs."""
    return (term for term in query_terms(query) if " " not in term.text and not term.outdated)


def _begins_word(term: str, text: str, folded: str) -> bool:
    """Whether a term is there and not only in the middle of a word; `Reader` begins one in `openReader`."""
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


def _stem(word: str) -> str:
    """Drop what English puts at the end of a word, keeping at least four letters."""
    if not word.isalpha() or len(word) < _STEM_FROM:
        return word[:-1] if len(word) > 4 and word.isalpha() and word.endswith("s") else word
    for ending in ("ations", "ation", "ingly", "ings", "edly", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word
