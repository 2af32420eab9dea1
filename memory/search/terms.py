"""What a query asks for, as pieces of text that can be looked for in a chunk. Pure.

The terms are those of the full-text index (`memory.segmenting`). Here they serve snippets (where in the
text is the match?) and coverage (how much of the question does this text hold?), on the text as people
wrote it, so they are found as substrings: words by their stem, runs of CJK by their bigrams.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from memory.segmenting import query_terms

#: Full-width ASCII is written with these; one character each way, so positions stay true.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}

#: Words longer than this are looked for without their last letters: a cheap stem.
_STEM_FROM = 6


def fold(text: str) -> str:
    """Lower case and narrow forms, keeping every character at its place."""
    if text.isascii():
        return text.lower()
    narrow = text.translate(_NARROW)
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


def coverage(terms: Sequence[str], texts: Mapping[int, str]) -> dict[int, float]:
    """Share of the query's weight that each text holds, 0..1.

    A term weighs its inverse document frequency among these texts, so words that everything here has in
    common say little, and a word that nothing here has weighs most.
    """
    if not terms:
        return dict.fromkeys(texts, 0.0)
    found = {id_: _found(terms, text) for id_, text in texts.items()}
    weights = [
        math.log(1 + (len(texts) + 1) / (sum(flags[place] for flags in found.values()) + 0.5))
        for place in range(len(terms))
    ]
    total = sum(weights)
    return {
        id_: sum(weight for weight, flag in zip(weights, flags, strict=True) if flag) / total
        for id_, flags in found.items()
    }


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
