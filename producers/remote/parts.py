"""Redacted content of a document in parts, each small enough for the door, cut at line ends where there are any.

Equal content gives equal parts from one place on, so that a repeated part is known to the door by its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from memory.redaction.json_lines import redact_line
from memory.transcripts.folding import NO_LINES_DIGEST, digest_with
from memory.transcripts.lines import RawLine, packed
from schemas.ingest import MOST_CONTENT_BYTES, MOST_PART_BYTES, Extent, running_digest

#: Bytes and pieces of a part before it is packed.
PART_BYTES = 2_000_000
PART_PIECES = 20_000


@dataclass(frozen=True, slots=True)
class Place:
    """Place in a transcript up to which it was sent: a position, and the number and running digest of lines before it.

    The last line starts `last_length` before the position. `tail` is the digest of a line behind it that was sent
    although it had no end.
    """

    offset: int = 0
    lines: int = 0
    digest: str = NO_LINES_DIGEST
    last_length: int = 0
    last_digest: str = ""
    tail: str = ""


START = Place()

#: Bytes of redacted content, and the place behind them; None inside of a line.
Piece: TypeAlias = tuple[bytes, Place | None]


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a document between two extents, as a Zstandard frame. `place` is behind it, None inside of a line."""

    after: Extent
    end: Extent
    frame: bytes
    place: Place | None


class LinesChanged(Exception):
    """Lines that were sent are others by now."""


def note_pieces(content: bytes) -> Iterator[Piece]:
    """Yield the lines of a note."""
    yield from ((line, START) for line in content.splitlines(keepends=True))


def transcript_pieces(
    lines: Iterator[RawLine], place: Place, redact: Callable[[str], str], *, sends_tail: bool
) -> Iterator[Piece]:
    """Yield the lines behind a place, redacted. A line that is too long to be read is empty.

    A last line without an end is left out, or with `sends_tail` sent if it is JSON. Raises LinesChanged.
    """
    for line in lines:
        tail = hashlib.blake2b(line.data or b"", digest_size=16).hexdigest()
        was_sent, present = bool(place.tail), place
        if was_sent and tail != place.tail:
            raise LinesChanged
        place = Place(
            line.end, place.lines + 1, digest_with(place.digest, line), line.end - line.start, line.digest.hex()
        )
        content = b"" if was_sent else redact_line(line.data or b"", redact)
        if line.has_line_end:
            yield content + b"\n", place
        elif sends_tail and not was_sent and _is_json(line.data):
            yield content, replace(present, tail=tail)


def parts_of(pieces: Iterable[Piece], after: Extent, *, cut_at: int = -1) -> Iterator[Part]:
    """Yield parts that follow the content `after`. One ends where the content has `cut_at` bytes, if a piece does."""
    group, size = list[Piece](), 0
    for piece in pieces:
        is_full = size + len(piece[0]) > PART_BYTES or len(group) == PART_PIECES
        if group and (is_full or after.size + size == cut_at):
            for part in _packed(group, after):
                yield part
                after = part.end
            group, size = [], 0
        group.append(piece)
        size += len(piece[0])
    if group:
        yield from _packed(group, after)


def _packed(group: list[Piece], after: Extent) -> Iterator[Part]:
    """Yield the part of some pieces, or smaller ones if it is too large for the door."""
    content, place = b"".join(data for data, _ in group), group[-1][1]
    frame = packed(content)
    if len(frame) <= MOST_PART_BYTES and len(content) <= MOST_CONTENT_BYTES:
        yield Part(after, Extent(after.size + len(content), running_digest(after.digest, content)), frame, place)
        return
    if len(group) > 1:
        halves = group[: len(group) // 2], group[len(group) // 2 :]
    else:
        cut = len(content) // 2
        while content[cut] & 0xC0 == 0x80:  # inside of a character
            cut -= 1
        halves = [(content[:cut], None)], [(content[cut:], place)]
    for half in halves:
        for part in _packed(half, after):
            yield part
            after = part.end


def _is_json(data: bytes | None) -> bool:
    try:
        return isinstance(json.loads(data or b""), dict)
    except (ValueError, RecursionError):
        return False
