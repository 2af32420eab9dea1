"""Places inside a line at which a piece of limited weight may end or start.

Weights are eighths of estimated tokens (`memory.chunking.chunker.estimate_tokens`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

#: Ends of sentences; Latin ones need white space after them, CJK ones do not.
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？；｡][”’」』）]*\s*")

#: Ends of words and, where no spaces are written, of clauses.
_WORD_END = re.compile(r"\s+|[，、：]")

#: Longest run of characters that combining marks keep together.
_MAX_CLUSTER = 16

_ZERO_WIDTH_JOINER = "\u200d"


def weigh(text: str) -> int:
    """Return the weight of a text: 3 * UTF-8 bytes - characters. An ASCII character weighs 2, any other at most 11."""
    if text.isascii():
        return 2 * len(text)
    return 3 * len(text.encode("utf-8", "surrogatepass")) - len(text)


def cut_point(text: str, start: int, end: int, room: int) -> int:
    """Return the end of a piece of text[start:end] that starts at `start`.

    The piece weighs at most `room`, which must hold a character (11) at least. It ends at a sentence or a word in its
    second half, else where it is full. The result depends only on characters that fit, and the next one.
    """
    fitting = _largest(min(end - start, room // 2), lambda size: weigh(text[start : start + size]) <= room)
    window = start + fitting // 2
    for pattern in (_SENTENCE_END, _WORD_END):
        best = 0
        for match in pattern.finditer(text, window, start + fitting):
            best = match.end()
        if best > start:
            return best
    full = start + fitting
    return next((at for at in range(full, max(start, full - _MAX_CLUSTER - 1), -1) if not _joins(text, at)), full)


def tail_point(text: str, start: int, end: int, room: int) -> int:
    """Return the start of the tail of text[start:end] that weighs at most `room`; `end` if none fits.

    It starts at a sentence or a word in its first half, else as early as possible.
    """
    fitting = _largest(min(end - start, room // 2), lambda size: weigh(text[end - size : end]) <= room)
    earliest = end - fitting
    if earliest == start:
        return start
    for pattern in (_SENTENCE_END, _WORD_END):
        # One character earlier, to find a word that starts exactly there.
        match = pattern.search(text, max(start, earliest - 1), earliest + fitting // 2)
        if match and match.end() >= earliest:
            return match.end()
    return next((at for at in range(earliest, min(end, earliest + _MAX_CLUSTER)) if not _joins(text, at)), earliest)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest size up to `most` that fits, if all sizes below a bound fit."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _joins(text: str, point: int) -> bool:
    """Return True if the character at `point` belongs to the one before it."""
    if point >= len(text) or point == 0:
        return False
    character = text[point]
    if character < "\u0300":
        return False
    return (
        unicodedata.category(character).startswith("M")
        or character == _ZERO_WIDTH_JOINER
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or text[point - 1] == _ZERO_WIDTH_JOINER
    )
