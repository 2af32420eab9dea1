"""Masks in place of secrets.

A mask is `[redacted:<kind>]`. It is stable, so that a text gives the same chunks each time, and keeps nothing of the
secret but its kind. Texts are UTF-8 bytes here: rules see one kind of string in every language.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

#: A mask that is there already. No rule looks into one.
MASK = re.compile(rb"\[redacted:[a-z]+(?:-[a-z]+)*\]")

#: Cheap to look for before `MASK`.
MASK_START = b"[redacted:"

#: The part of a secret that is replaced in each line: all but the blanks around it, so that line ends stay.
_LINE_PART = re.compile(rb"[^\s](?:[^\r\n]*[^\s])?")


class Span(NamedTuple):
    """Bytes `start` to `end` are a secret."""

    start: int
    end: int
    kind: str


def without_masks(data: bytes) -> bytes:
    """Return the text with NUL in place of masks, as rules see it: no secret and no label contains NUL."""
    if MASK_START not in data:
        return data
    return MASK.sub(lambda mask: b"\0" * len(mask[0]), data)


def mask_spans(data: bytes, spans: Iterable[Span]) -> bytes:
    """Return the text with masks over the spans. Overlapping spans become one mask, of the kind that came first.

    Masks of the text and its line ends stay as they are.
    """
    parts: list[bytes] = []
    done = 0
    masks = [mask.span() for mask in MASK.finditer(data)] if MASK_START in data else []
    for span in _joined(spans):
        mask = f"[redacted:{span.kind}]".encode()
        for start, end in _unmasked(data, span, masks):
            parts += [data[done:start], mask]
            done = end
    parts.append(data[done:])
    return b"".join(parts)


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in the order of the text, overlapping ones joined."""
    joined: list[tuple[int, Span]] = []
    for rank, span in sorted(enumerate(spans), key=lambda ranked: ranked[1].start):
        if not joined or span.start >= joined[-1][1].end:
            joined.append((rank, span))
            continue
        before, last = joined[-1]
        kind = last.kind if before < rank else span.kind
        joined[-1] = (min(before, rank), Span(last.start, max(last.end, span.end), kind))
    return [span for _, span in joined]


def _unmasked(data: bytes, span: Span, masks: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a span that get a mask: one for each line, and around the masks that the span holds."""
    start = span.start
    # By number: a copy of what follows for each span would be quadratic.
    for number in range(bisect_right(masks, span.start, key=lambda mask: mask[1]), len(masks)):
        mask_start, mask_end = masks[number]
        if mask_start >= span.end:
            break
        yield from (part.span() for part in _LINE_PART.finditer(data, start, max(start, mask_start)))
        start = mask_end
    yield from (part.span() for part in _LINE_PART.finditer(data, start, span.end))
