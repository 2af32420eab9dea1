"""How much of a query is searched. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memory.search.ranking.boundaries import cut_at_or_before

#: Characters of a query that are searched. Keywords come from far fewer
#: (`memory.chunking.segmenting.MAX_QUERY_TERMS`), and embedding this many takes a local model some
#: 70 ms, ten times as long as the rest of a search.
SEARCHED_CHARACTERS = 2_000

#: A longer word is none, and may be cut.
_LONGEST_WORD = 256

#: Characters that are looked through for secrets: more than are searched, so that none of those is half of one.
_LOOKED_THROUGH = 2 * SEARCHED_CHARACTERS


@dataclass(frozen=True, slots=True)
class AskedFor:
    """`text` is what is searched; `remark` says in words that the query went on, None when it did not."""

    text: str
    remark: str | None


def asked_for(query: str, redact: Callable[[str], str]) -> AskedFor:
    """The beginning of a query, as far as it is searched, without its secrets.

    Somebody who pastes a whole log or a whole file gets an answer to how it begins, at the price of a short question.
    """
    query = query.strip()
    looked_through = query
    if len(query) > _LOOKED_THROUGH:
        looked_through = _beginning(query, _LOOKED_THROUGH)
    text = redact(looked_through)
    if len(text) > SEARCHED_CHARACTERS:
        text = _beginning(text, SEARCHED_CHARACTERS)
    elif looked_through is query:
        return AskedFor(text, None)
    return AskedFor(text, f"the query has {len(query):,} characters: its first {len(text):,} were searched")


def _beginning(text: str, length: int) -> str:
    return text[: cut_at_or_before(text, length, lowest=length - _LONGEST_WORD)]
