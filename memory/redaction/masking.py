"""What stands in a secret's place, and how it is put there.

A mask is `[redacted:<kind>]`: stable, so that a text gives the same chunks each time; it says what was there, and
keeps nothing of it. Texts are handled as UTF-8 bytes: rules then see one kind of string whatever the language.
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

#: What of a secret is replaced: the part of each line that is not blank, so that line ends stay.
_LINE_PART = re.compile(rb"[^\s](?:[^\r\n]*[^\s])?")


class Span(NamedTuple):
    """Bytes `start` to `end` are a secret."""

    start: int
    end: int
    kind: str


def without_masks(data: bytes) -> bytes:
    """The text as rules see it: masks are NUL, which no secret and no label contains."""
    if MASK_START not in data:
        return data
    return MASK.sub(lambda mask: b"\0" * len(mask[0]), data)


def mask_spans(data: bytes, spans: Iterable[Span]) -> bytes:
    """Put masks over spans of a text. Where spans overlap, all of both is masked, under the kind that came first.

    Masks that are there already stay as they are, and so does every line end.
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
    """Spans in their order in the text, none touching another."""
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
    """The parts of a span that a mask is put over: line by line, and around the masks that are in it."""
    start = span.start
    # By number: a copy of what follows for each span would be quadratic.
    for number in range(bisect_right(masks, span.start, key=lambda mask: mask[1]), len(masks)):
        mask_start, mask_end = masks[number]
        if mask_start >= span.end:
            break
        yield from (part.span() for part in _LINE_PART.finditer(data, start, max(start, mask_start)))
        start = mask_end
    yield from (part.span() for part in _LINE_PART.finditer(data, start, span.end))
