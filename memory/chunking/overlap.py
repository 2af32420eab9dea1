"""What a chunk repeats of the one before it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from memory.chunking.lines import tail_point, weigh
from memory.chunking.markdown import LINE_END_WEIGHT, MarkdownLines


@dataclass(frozen=True, slots=True)
class Overlap:
    """Repeated text starts at offset `start` in line `line` (0-based) and weighs `weight` eighths of tokens."""

    start: int
    line: int
    weight: int


def overlap_before(
    text: str, lines: MarkdownLines, *, own: int, line: int, before: int, lowest: int, room: int
) -> Overlap:
    """Return what a chunk whose own part starts at `own` in line `line` should repeat.

    As many whole lines as weigh at most `room`, without blank ones at their start; if not even one fits, the
    end of the last line that has text. `before` is the weight of all text before `own`. Nothing before the
    offset `lowest`, the start of the previous chunk, is repeated.
    """
    nothing = Overlap(start=own, line=line, weight=0)
    if room <= 0 or own <= lowest:
        return nothing
    starts, above = lines.starts, lines.weights_above

    def has_text(number: int) -> bool:
        part = text[max(starts[number], lowest) : min(starts[number + 1], own)]
        return bool(part) and not part.isspace()

    first_whole = bisect_left(starts, lowest)
    # A chunk that starts inside its line can repeat the start of that line.
    last = line if starts[line] < own else line - 1
    whole = max(first_whole, bisect_left(above, before - room))
    while whole <= last and not has_text(whole):
        whole += 1
    if whole <= last:
        return Overlap(start=starts[whole], line=whole, weight=before - above[whole])

    while last >= first_whole and not has_text(last):
        last -= 1
    if last < 0:
        return nothing
    start = max(starts[last], lowest)
    end = own if last == line else lines.content_end(last)
    # The line's end and blank lines below it are repeated with it.
    below = 0 if last == line else before - above[last + 1] + LINE_END_WEIGHT
    if room <= below:
        return nothing
    point = tail_point(text, start, end, room - below)
    tail = text[point:end]
    if not tail or tail.isspace():
        return nothing
    return Overlap(start=point, line=last, weight=below + weigh(tail))
