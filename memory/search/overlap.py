"""Chunks of one file overlap; a list of results should not say the same thing twice. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from memory.store.reader import ChunkRow

#: A chunk is dropped when this share of the shorter of the two is text of the better one, too.
REPEATED_SHARE = 0.5


def repeats(row: ChunkRow, better: Iterable[ChunkRow]) -> bool:
    """Whether most of this chunk is already shown by a better one of the same document.

    Measured in text, not in lines: the pieces of one very long line share their line number and nothing else.
    """
    return any(
        row.key == other.key
        and row.start_line <= other.end_line
        and other.start_line <= row.end_line
        and _shared(row, other) > REPEATED_SHARE * min(len(row.text), len(other.text))
        for other in better
    )


def _shared(one: ChunkRow, two: ChunkRow) -> int:
    """Characters of the longest end of the earlier chunk that is also the start of the later one."""
    earlier, later = (one.text, two.text) if one.ordinal <= two.ordinal else (two.text, one.text)
    if earlier in later or later in earlier:
        return min(len(earlier), len(later))
    shortest = int(REPEATED_SHARE * min(len(earlier), len(later)))
    # An end of at least `shortest` characters must begin with these; looking for them is quick.
    head = later[: max(1, min(shortest, 64))]
    place = earlier.find(head)
    while place >= 0:
        if later.startswith(earlier[place:]):
            return len(earlier) - place
        place = earlier.find(head, place + 1)
    return 0
