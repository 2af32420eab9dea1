"""What a query asks for, as pieces of text that can be looked for in a chunk. Pure.

The terms are those of the full-text index (`memory.segmenting`). Here they serve snippets (where in the
text is the match?) and coverage (how much of the question does this text hold?), on the text as people
wrote it, so they are found as substrings: words by their stem, runs of CJK by their bigrams.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from memory.segmenting import query_terms

#: Full-width ASCII is written with these; one character each way, so positions stay true.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_WIDE = re.compile("[\uff01-\uff5e\u3000]")

#: Words longer than this are looked for without their last letters: a cheap stem.
_STEM_FROM = 6


def fold(text: str) -> str:
    """Lower case and narrow forms, keeping every character at its place."""
    if text.isascii():
        return text.lower()
    # Translating is slow, and few texts need it.
    narrow = text.translate(_NARROW) if _WIDE.search(text) else text
    lower = narrow.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := character.lower()) == 1 else character for character in narrow)


def sought(query: str) -> list[str]:
    """The distinct pieces to look for, folded, at most 96. Empty when the query holds no letter or digit.

    A phrase of Chinese, Japanese or Korean is there through its pairs of characters.
    """
    terms = (term for term in query_terms(query) if " " not in term.text)
    return list(dict.fromkeys(_stem(fold(term.typed)) for term in terms))


class Coverage:
    """Measures how much of a query a text holds.

    A term weighs its inverse document frequency among `sample` (the best keyword hits), so words that all of
    them have in common say little, and a word that none of them has weighs most.
    """

    def __init__(self, terms: Sequence[str], sample: Sequence[str]) -> None:
        self._terms = terms
        found = [_found(terms, text) for text in sample]
        self._weights = [
            math.log(1 + (len(sample) + 1) / (sum(flags[place] for flags in found) + 0.5))
            for place in range(len(terms))
        ]
        self._total = sum(self._weights)

    def of(self, text: str) -> float:
        """Share of the query's weight that the text holds, 0..1."""
        if not self._total:
            return 0.0
        found = _found(self._terms, text)
        return sum(weight for weight, flag in zip(self._weights, found, strict=True) if flag) / self._total


def _found(terms: Sequence[str], text: str) -> list[bool]:
    folded = fold(text)
    found = [term in folded for term in terms]
    # A pair of characters that straddles two words is in no text; between two pairs that are found it counts as found.
    return [
        flag or (0 < place < len(terms) - 1 and found[place - 1] and found[place + 1] and _straddles(terms, place))
        for place, flag in enumerate(found)
    ]


def _straddles(terms: Sequence[str], place: int) -> bool:
    before, pair, after = terms[place - 1 : place + 2]
    return len(before) == len(pair) == len(after) == 2 and pair == before[1] + after[0] and not pair.isascii()


def _stem(word: str) -> str:
    """Drop what English puts at the end of a word, keeping at least four letters."""
    if not word.isalpha() or len(word) < _STEM_FROM:
        return word[:-1] if len(word) > 4 and word.isalpha() and word.endswith("s") else word
    for ending in ("ations", "ation", "ingly", "ings", "edly", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word
