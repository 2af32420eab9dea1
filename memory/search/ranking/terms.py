"""Query: the part of it that is searched, and its terms as pieces of text to look for in a chunk. Pure.

The terms are those of the full-text index (`memory.chunking.segmenting`). Here they serve snippets (the place of the
match) and coverage (the share of the question that a text holds), on the text as people wrote it. So they are found as
substrings: words by their stem, runs of CJK by their bigrams.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memory.chunking.segmenting import QueryTerm, listed_terms, query_terms
from memory.search.ranking.boundaries import cut_at_or_before
from memory.store.reader import TermCounts
from schemas.conditions import Condition, ConditionCode

#: Characters of a query that are searched. Keywords come from far fewer
#: (`memory.chunking.segmenting.MAX_QUERY_TERMS`), and embedding this many takes a local model some 70 ms, ten times as
#: long as the rest of a search.
SEARCHED_CHARACTERS = 2_000

#: A longer word is no word, and may be cut.
_LONGEST_WORD = 256

#: Characters of a query that are redacted: more than are searched, so that a secret at the end of those is whole.
_REDACTED_CHARACTERS = 2 * SEARCHED_CHARACTERS

#: Full-width ASCII is written with these; one character each way, so positions stay true.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_WIDE = re.compile("[\uff01-\uff5e\u3000]")

#: Latin letters with accents, which the full-text index ignores, too.
_PLAIN = {
    code: plain
    for code in range(0xC0, 0x250)
    if (plain := unicodedata.normalize("NFD", chr(code))[0]).isascii() and plain.isalpha()
}
_ACCENTED = re.compile("[\u00c0-\u024f]")

#: Words longer than this are looked for without their last letters: a cheap stem.
_STEM_FROM = 6

#: A rare word is in at most `_FEW` chunks, or in this share of them, and is one of the first `_MOST_LISTED` words.
_FEW, _RARE, _MOST_LISTED = 5, 0.05, 8

#: Factor of the weight of a pair of characters that no text has.
_STRADDLING = 0.3


def fold(text: str) -> str:
    """Return the text in lower case, in narrow forms and without accents, every character at its place."""
    if text.isascii():
        return text.lower()
    # Translation is slow, and few texts need it.
    narrow = text.translate(_NARROW) if _WIDE.search(text) else text
    narrow = narrow.translate(_PLAIN) if _ACCENTED.search(narrow) else narrow
    lower = narrow.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := character.lower()) == 1 else character for character in narrow)


@dataclass(frozen=True, slots=True)
class SearchedQuery:
    """Text that is searched. `cut` is the condition of a longer query, else None."""

    text: str
    cut: Condition | None


def searched_query(query: str, redact: Callable[[str], str]) -> SearchedQuery:
    """Return the searched beginning of a query, without its secrets.

    A user who pastes a whole log gets an answer to its beginning, at the price of a short question.
    """
    query = query.strip()
    looked_through = query
    if len(query) > _REDACTED_CHARACTERS:
        looked_through = _beginning(query, _REDACTED_CHARACTERS)
    text = redact(looked_through)
    if len(text) > SEARCHED_CHARACTERS:
        text = _beginning(text, SEARCHED_CHARACTERS)
    elif looked_through is query:
        return SearchedQuery(text, None)
    cut = Condition(ConditionCode.QUERY_CUT, params={"characters": len(query), "searched": len(text)})
    return SearchedQuery(text, cut)


def _beginning(text: str, length: int) -> str:
    return text[: cut_at_or_before(text, length, lowest=length - _LONGEST_WORD)]


def sought(query: str) -> list[str]:
    """Return the distinct pieces to look for, folded, at most 96. Empty for a query without a letter or digit.

    A phrase of Chinese, Japanese or Korean is represented by its pairs of characters.
    """
    return list(dict.fromkeys(_stem(fold(term.typed)) for term in _single_terms(query)))


def coverage_of(query: str, counts: TermCounts) -> Callable[[str, str], float]:
    """Return the function (text, `fold(text)`) -> share 0..1 of the query's weight that the text holds.

    A term weighs its inverse document frequency, `ln(1 + (N - n + 0.5) / (n + 0.5))`, so that words of many chunks say
    little, and a word of no chunk weighs most. But a pair of characters of no chunk probably straddles two words, as no
    text would write it: it weighs a third.
    """
    terms: list[tuple[str, float]] = []
    for term in _single_terms(query):
        holding = counts.holding.get(term.text, 0)
        weight = math.log(1 + (max(0, counts.chunks - holding) + 0.5) / (holding + 0.5))
        straddles = not holding and term.pair
        terms.append((_stem(fold(term.typed)), weight * _STRADDLING if straddles else weight))
    total = sum(weight for _, weight in terms)

    def coverage(text: str, folded: str) -> float:
        held = sum(weight for term, weight in terms if _begins_word(term, text, folded))
        return min(1.0, held / total) if total else 0.0

    return coverage


def rare_words(query: str, counts: TermCounts) -> list[str]:
    """Return the rare words of a list of words, or the only word, as the user typed them."""
    words = [term for term in listed_terms(query) if not term.outdated and not term.pair][:_MOST_LISTED]
    most = max(_FEW, _RARE * counts.chunks) if len(words) > 1 else counts.chunks
    return [term.typed for term in words if 0 < counts.holding.get(term.text, 0) <= most]


def _single_terms(query: str) -> Iterator[QueryTerm]:
    """Return the query's terms without phrases: pairs of characters represent a phrase of CJK."""
    return (term for term in query_terms(query) if " " not in term.text and not term.outdated)


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


def _stem(word: str) -> str:
    """Drop what English puts at the end of a word, keeping at least four letters."""
    if not word.isalpha() or len(word) < _STEM_FROM:
        return word[:-1] if len(word) > 4 and word.isalpha() and word.endswith("s") else word
    for ending in ("ations", "ation", "ingly", "ings", "edly", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word
