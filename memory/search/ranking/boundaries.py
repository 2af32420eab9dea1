"""Allowed cuts of a text: between characters as people see them, and between words. Pure."""

from __future__ import annotations

import unicodedata

_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_REGIONAL = range(0x1F1E6, 0x1F200)
_TAGS = range(0xE0020, 0xE0080)
#: Conjoining vowels and final consonants of Hangul.
_JAMO = range(0x1160, 0x1200)


def splits_character(text: str, at: int) -> bool:
    """Return True if a cut before `text[at]` tears apart one visible character.

    Covers combining marks, variation selectors, joined and tinted emoji, flags, Hangul in pieces and CR LF.
    """
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if after < "\u0300":
        return before == "\r" and after == "\n"
    code = ord(after)
    if before == _JOINER or after == _JOINER or unicodedata.category(after)[0] == "M":
        return True
    if code in _SKIN_TONES or code in _TAGS or code in _JAMO:
        return True
    if code in _REGIONAL and ord(before) in _REGIONAL:
        start = at
        while start > 0 and ord(text[start - 1]) in _REGIONAL:
            start -= 1
        return (at - start) % 2 == 1
    return False


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
    # Letters beyond ASCII make words, too (Cyrillic, Greek, accented Latin), up to where scripts without spaces begin.
    return "\u00aa" <= character < "\u0e00" and character.isalnum()
