"""Tokens of known formats, found where a text has runs long enough to hold one: most texts have few."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from memory.redaction.masking import Span
from memory.redaction.token_formats import TOKEN_FORMATS

_TOKEN_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:~-"

#: What no shorter run of such characters can hold.
_SHORTEST = b"a" * 16

#: The shape of a text: `a` for each byte that a token may have, a space for any other.
_SHAPE = bytes(0x61 if byte in _TOKEN_CHARACTERS else 0x20 for byte in range(256))

#: A token starts a word, or follows an escaped line end or tab. Without groups, so that the engine skips every format
#: that begins with another character; which one it was is asked once there is one.
_TOKEN = re.compile(
    (
        r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?=[A-Za-z0-9_~.])(?:"
        + "|".join(token.pattern for token in TOKEN_FORMATS)
        + ")"
    ).encode()
)

#: What belongs to a run after a token's own characters and would tell something of it.
_REST = re.compile(rb"[A-Za-z0-9_-]*")


def find_tokens(data: bytes) -> Iterator[Span]:
    """Yield the tokens of known formats."""
    shape = data.translate(_SHAPE)
    start = shape.find(_SHORTEST)
    while start >= 0:
        end = shape.find(b" ", start + len(_SHORTEST))
        if end < 0:
            end = len(shape)
        position = start
        while (found := _TOKEN.search(data, position, end)) is not None:
            rest = _REST.match(data, found.end(), end)
            position = rest.end() if rest is not None else found.end()
            yield Span(found.start(), position, _kind(data, found.start(), end))
        start = shape.find(_SHORTEST, end)


def _kind(data: bytes, start: int, end: int) -> str:
    return next(token.kind for token in TOKEN_FORMATS if _compiled(token.pattern).match(data, start, end))


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    """Each format alone, when it is asked for: compiling all of them takes longer than most programs start."""
    return re.compile(pattern.encode())
