"""Relation of a query's language to that of a text, as far as a few words tell it. Pure.

Names and numbers are words of every language. So the words of a German question that an English text holds say little,
and `memory.search.ranking.confidence` weighs them by this relation.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from memory.chunking.sentences import is_cjk, letters_by_script
from memory.chunking.stop_words import is_english, is_evidently_foreign

#: Characters of a text that tell its language, and its script.
_SAMPLE, _SCRIPT_SAMPLE = 400, 100


class Languages(Enum):
    """Relation of two languages.

    `SAME`: both are English, or both Chinese, Japanese or Korean. `ALIKE`: neither is, in one script, so that they are
    probably the same. `UNKNOWN`: a list of names or code. `OTHER`: two languages of one script. `OTHER_SCRIPT`: two
    scripts that share numbers and a few names. `APART`: one of them is Chinese, Japanese or Korean, which have hardly
    a word in common with others.
    """

    SAME = auto()
    ALIKE = auto()
    UNKNOWN = auto()
    OTHER = auto()
    OTHER_SCRIPT = auto()
    APART = auto()


def languages_with(query: str) -> Callable[[str], Languages]:
    """Return the function text -> relation to the language of a query."""
    in_cjk, in_english, script = is_cjk(query), is_english(query), _script_of(query)
    is_foreign = is_evidently_foreign(query)

    def relation(text: str) -> Languages:
        sample = text[:_SAMPLE]
        if is_cjk(sample) != in_cjk:
            return Languages.APART
        if in_cjk:
            return Languages.SAME
        text_script = _script_of(text[:_SCRIPT_SAMPLE])
        if script and text_script and text_script != script:
            return Languages.OTHER_SCRIPT
        if is_english(text):
            return Languages.SAME if in_english else Languages.OTHER if is_foreign else Languages.UNKNOWN
        if in_english:
            return Languages.OTHER if is_evidently_foreign(sample) else Languages.UNKNOWN
        return Languages.ALIKE if is_foreign else Languages.UNKNOWN

    return relation


def _script_of(text: str) -> str:
    """Return the script of most letters of a text; empty without a letter."""
    if text.isascii():
        return "LATIN" if any(map(str.isalpha, text)) else ""
    return max(letters_by_script(text).items(), key=lambda script: script[1], default=("", 0))[0]
