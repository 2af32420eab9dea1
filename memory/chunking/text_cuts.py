"""Places at which a text may be cut: between visible characters, and between words if possible. Pure."""

from __future__ import annotations

import re
import unicodedata

_JOINER = "\u200d"
#: Skin tones, letters of flags, and conjoining vowels and final consonants of Hangul.
_JOINED_TO_PREVIOUS = (range(0x1F3FB, 0x1F400), range(0x1F1E6, 0x1F200), range(0x1160, 0x1200))

#: Beyond ASCII, in scripts with spaces: up to Sinhala, Georgian, Ethiopic and its like, Vietnamese; joined in Persian.
_SPACED = re.compile("[\u00aa-\u0dff\u10a0-\u10ff\u1200-\u177f\u1e00-\u1fff\u200c]")


def splits_character(text: str, at: int) -> bool:
    """Return True if a cut before `text[at]` tears apart one visible character.

    Covers combining marks, variation selectors, joined and tinted emoji, flags, Hangul in pieces and CR LF. A row of
    flags counts as one.
    """
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if after < "\u0300":
        return before == "\r" and after == "\n"
    if before == _JOINER or after == _JOINER or unicodedata.category(after)[0] == "M":
        return True
    block = next((block for block in _JOINED_TO_PREVIOUS if ord(after) in block), None)
    # The first of two letters of a flag has another character before it.
    return block is not None and (block.start != 0x1F1E6 or ord(before) in block)


def splits_word(text: str, at: int) -> bool:
    """Return True if a cut before `text[at]` splits a word. CJK has no such words."""
    return 0 < at < len(text) and _in_word(text[at - 1]) and _in_word(text[at])


def cut_at_or_before(text: str, at: int, *, lowest: int) -> int:
    """Return the greatest allowed cut in (lowest, at].

    A single word longer than the room is cut between characters; a single character longer than the
    room (a pile of combining marks) is cut at `at`, so that a bound on the length always holds.
    """
    if at >= len(text):
        return len(text)
    for place in range(at, lowest, -1):
        if not splits_character(text, place) and not splits_word(text, place):
            return place
    for place in range(at, lowest, -1):
        if not splits_character(text, place):
            return place
    return at


def cut_at_or_after(text: str, at: int, *, highest: int) -> int:
    """Return the smallest allowed cut in [at, highest]; without one `highest`, which the caller knows to be allowed."""
    if at <= 0:
        return 0
    for place in range(at, highest):
        if not splits_character(text, place) and not splits_word(text, place):
            return place
    return highest


def _in_word(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character == "_"
    is_letter = character.isalnum() or unicodedata.category(character) in {"Mn", "Mc", "Cf"}
    return is_letter and _SPACED.match(character) is not None
