"""Query of a search: the part of it that is searched, and its pieces to look for in texts as people wrote them. Pure.

The terms are those of the full-text index (`memory.chunking.segmenting`). Snippets and coverage look for them as
substrings: words by their stem, runs of CJK by their bigrams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from memory.chunking.folding import fold, without_prefixes
from memory.chunking.segmenting import QueryTerm, query_terms
from memory.chunking.text_cuts import cut_at_or_before
from schemas.conditions import Condition, ConditionCode

#: Characters of a query that are searched. Keywords come from far fewer
#: (`memory.chunking.segmenting.MAX_QUERY_TERMS`), and embedding this many takes a local model some 70 ms, ten times as
#: long as the rest of a search.
SEARCHED_CHARACTERS = 2_000

#: A longer word is no word, and may be cut.
_LONGEST_WORD = 256

#: Characters of a query that are redacted: more than are searched, so that a secret at the end of those is whole.
_REDACTED_CHARACTERS = 2 * SEARCHED_CHARACTERS

#: Words longer than this are looked for without their last letters: a cheap stem.
_STEM_FROM = 6


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


# One search calls it several times.
@lru_cache(maxsize=64)
def sought(query: str) -> tuple[str, ...]:
    """Return the distinct pieces to look for, folded, at most 96. Empty for a query without a letter or digit.

    A phrase of Chinese, Japanese or Korean is represented by its pairs of characters, a word by the beginning of its
    forms, or by its English stem.
    """
    return tuple(dict.fromkeys(term.form or stem(term) for term in single_terms(query)))


@lru_cache(maxsize=64)
def stems(query: str) -> frozenset[str]:
    """Return the stems of a query's words, which do not depend on the words beside them."""
    return frozenset(map(stem, single_terms(query)))


def single_terms(query: str) -> Iterator[QueryTerm]:
    """Return the query's terms without phrases: pairs of characters represent a phrase of CJK."""
    return (term for term in query_terms(query) if " " not in term.text)


def stem(term: QueryTerm) -> str:
    """Return a term, folded, without its English ending if at least four letters remain."""
    word = without_prefixes(fold(term.typed))
    if not word.isalpha() or len(word) < _STEM_FROM:
        return word[:-1] if len(word) > 4 and word.isalpha() and word.endswith("s") else word
    for ending in ("ations", "ation", "ingly", "ings", "edly", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word
