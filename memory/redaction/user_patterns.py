"""The patterns that settings add to the rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memory.redaction.masking import Span


def find_patterns(text: str, patterns: Sequence[re.Pattern[str]]) -> list[Span]:
    """Return what is secret by somebody's own patterns, in bytes of the text's UTF-8.

    Of a match its groups are secret, or all of it if none took part. A match of nothing is none.
    """
    found = sorted({part for pattern in patterns for part in _parts(text, pattern)})
    spans: list[Span] = []
    character = byte = 0
    for start, end in found:
        byte += _bytes(text[character:start])
        character = start
        spans.append(Span(byte, byte + _bytes(text[start:end]), "pattern"))
    return spans


def _parts(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        groups = [match.span(group) for group in range(1, pattern.groups + 1) if match.start(group) >= 0]
        yield from (part for part in groups or [match.span()] if part[0] < part[1])


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
