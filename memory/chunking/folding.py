"""Folding of letters that people write in several ways, for the index, queries, coverage and snippets. Pure.

Case, width and accents make no difference, nor do the points of Arabic and Hebrew, the forms of alef and ya, a final
sigma, the dots of Turkish i, ß, ё, or a nasal that Hindi writes as a dot or as a letter. The index drops the first
letters of words in Arabic and Hebrew that are the article, "and" or a preposition.

Marks that make another letter stay: vowel signs of Indian scripts, voicing of kana, everything of Thai and its like.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import TypeAlias

from memory.chunking.text_cuts import splits_word

#: Letters that Unicode takes for unrelated, a nasal that is a mark, and characters without width; and their plain form.
_PAIRS = "łl øo æae œoe ıi ßss ςσ ँं ىي یي ٱا کك ةه \u0640 \u00ad \u200c \u200d"
_ALIKE = {pair[0]: pair[1:] for pair in _PAIRS.split(" ")}

# From Latin to Arabic; India; Latin and Greek with several accents, without Vietnamese tones, which tell words apart;
# joiners; forms for presentation; full-width ASCII.
_BLOCKS = (
    *(range(0xA0, 0x700), range(0x900, 0xE00), range(0x1E00, 0x1EA0), range(0x1F00, 0x2000), range(0x200C, 0x200E)),
    *(range(0xFB00, 0xFE00), range(0xFE70, 0xFF00), range(0xFF01, 0xFF5F), range(0x3000, 0x3001)),
)


#: "And", prepositions and the article before a word of at least three letters.
_SEMITIC = "א-ת\u0621-\u06d3"
_PREFIX = f"(?<![{_SEMITIC}])(?=[وفبكلاובכלמשה])(?:[وف]?(?:[بكل]?ال|لل)?[بل]?|ו?(?:כש|[בכלמש])?ה?)"
_PREFIXES = re.compile(f"{_PREFIX}(?=[{_SEMITIC}]{{3}})")
_AFTER_PREFIX = re.compile(f"{_PREFIX}$")
_LONGEST_PREFIX = 5
_SEMITIC_LETTER = re.compile(f"[{_SEMITIC}]")

#: A nasal before a consonant.
_NASAL = re.compile("[ङञणनम]\u094d(?=[क-ह])")

#: Pattern and the replacement of its matches.
_Step: TypeAlias = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def fold(text: str) -> str:
    """Return the text in lower case and in its plain letters. `places_in` has the place of each in the text."""
    return text.lower() if text.isascii() else _folded(text)


# A search folds its candidates several times, and the next one has some of them, too.
@lru_cache(maxsize=1_024)
def _folded(text: str) -> str:
    folded = _lower(text)
    for pattern, replacement in _steps_for(text):
        folded = pattern.sub(replacement, folded)
    return folded


@lru_cache(maxsize=8)
def places_in(text: str) -> Sequence[int]:
    """Return the place in a text of each character of `fold(text)`, and of its end."""
    folded = _lower(text)
    places: Sequence[int] = range(len(text) + 1)
    for pattern, replacement in () if text.isascii() else _steps_for(text):
        done, moved = 0, list[int]()
        for match in pattern.finditer(folded):
            moved += places[done : match.start()]
            moved += [places[match.start()]] * len(replacement(match))
            done = match.end()
        folded, places = pattern.sub(replacement, folded), [*moved, *places[done:]]
    return places


def without_prefixes(folded: str) -> str:
    """Return a folded text without the prefixes of its words, as the index and its queries have it."""
    return _PREFIXES.sub("", folded) if _SEMITIC_LETTER.search(folded) else folded


def begins_word(folded: str, place: int) -> bool:
    """Return True if a word of a folded text begins at a place, perhaps after its prefix."""
    before = folded[place - 1 : place]
    if (before < "\x80" and not before.isalnum()) or not splits_word(folded, place):
        return True
    return bool(_AFTER_PREFIX.search(folded, max(0, place - _LONGEST_PREFIX), place))


def _steps_for(text: str) -> tuple[_Step, ...]:
    return _steps() if "\u094d" in text else _steps()[:1]


def _lower(text: str) -> str:
    # The only letter that is longer in lower case.
    return text.replace("İ", "i").lower()


@cache  # it takes 7 ms
def _steps() -> tuple[_Step, ...]:
    """Return the steps of folding: single characters, and nasals before a consonant."""
    letters = map(chr, chain(*_BLOCKS))
    table = {letter: plain for letter in letters if (plain := _plain(letter)) != letter.lower()}
    return (
        (re.compile(f"[{''.join(table)}]"), lambda match: table[match[0]]),
        (_NASAL, lambda _: "ं"),
    )


def _plain(character: str) -> str:
    """Return a lower-case character without its accents. Combining classes: 8 is voicing, 9 is virama."""
    parts = unicodedata.normalize("NFKD", character)
    bare = (part for part in parts if (mark := unicodedata.combining(part)) in (0, 8, 9) or 84 <= mark < 200)
    return "".join(_ALIKE.get(part, part) for part in bare).lower()
