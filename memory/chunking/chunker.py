"""Chunks of a document: a pure function of the text.

Laws, for every text:

* The own parts (`source[own_start:end]`) concatenate to the text; every line with text is in a chunk.
* Chunks of a prefix are a prefix of the chunks, except for the last one: appending to a transcript never changes
  the chunks before its last one.
* A chunk's estimated tokens are at most `tokens` + SLACK_TOKENS, its UTF-8 bytes at most `max_bytes`.
* Line ends "\\r\\n" and "\\n" give the same line ranges.

The prefix law holds because cutting is greedy from left to right. A decision depends only on the text before the line
that triggers it and on that line's first `DECIDING_CHARS` characters. Until these are known, all text stays in the last
chunk.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from memory.chunking.lines import cut_point, tail_point, weigh
from memory.chunking.markdown import AFTER_HEADING, DECIDING_CHARS, HEADING, LINE_END_WEIGHT, MarkdownLines

#: Version of the cuts, part of the index fingerprint.
CHUNKING_VERSION = 1

#: Estimated tokens by which the last chunk may exceed its target: the start of an undecided line (7 characters of at
#: most 11/8 token).
SLACK_TOKENS = 10

#: UTF-8 bytes of the same.
_SLACK_BYTES = (DECIDING_CHARS - 1) * 4

#: Smallest bounds that still leave room for a character and the start of a line.
_MIN_TOKENS = 16
_MIN_BYTES = 160


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece of a text. Offsets are in characters of the text.

    `text` is `source[start:end]`; its part before `own_start` repeats the end of the previous chunk.
    `start_line` and `end_line` are the 1-based, inclusive lines that hold `text`; lines end at "\\n" only.
    `tokens` is the estimate for `text`.
    """

    text: str
    start: int
    own_start: int
    end: int
    start_line: int
    end_line: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk of the present version of a document, as an index takes it.

    A note's chunks are the filled pieces of its text, a transcript's are packed messages. The store keeps each as a
    row: `StoredChunk` without the text compares it with the next version, `ChunkRow` answers a search. A row whose text
    the next version still has stays, with a `MovedChunk` if its place is another.

    The lines of a transcript are those of its first and last message in the JSONL file (1-based). `said_at` is the Unix
    time of its last message that has one, None in a note.
    """

    ordinal: int
    start_line: int
    end_line: int
    text: str
    text_hash: str
    said_at: float | None = None


def estimate_tokens(text: str) -> float:
    """Return the estimated tokens: (3 * UTF-8 bytes - characters) / 8.

    An ASCII character counts 1/4, a Cyrillic one 5/8, a CJK one 1, an emoji 11/8. Additive over concatenation.
    """
    return weigh(text) / 8


def text_hash(text: str) -> str:
    """Return the BLAKE2b digest of 16 bytes in hex, which identifies a chunk in its document and its embedding."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def chunk_text(text: str, *, tokens: int = 400, overlap: int = 80, max_bytes: int = 8191) -> list[Piece]:
    """Cut `text` into chunks of about `tokens` estimated tokens, each at most `max_bytes` long in UTF-8.

    A half-full chunk ends before a heading. Otherwise a full chunk ends before the best place in its second half: a
    heading, a code fence, a paragraph, a line, and last a line inside a code fence. A line that does not fit is cut at
    a sentence, at a word, or anywhere. Up to `overlap` tokens of the previous chunk are repeated (counted within the
    target), except after a break at a heading. Own parts may be whitespace only.

    Raises:
        ValueError: `tokens` is below 16, `overlap` negative or `max_bytes` below 160.
    """
    if tokens < _MIN_TOKENS or overlap < 0 or max_bytes < _MIN_BYTES:
        raise ValueError(f"chunks need tokens >= {_MIN_TOKENS}, overlap >= 0 and max_bytes >= {_MIN_BYTES}")
    if not text:
        return []
    # A byte weighs at least 2 (see `weigh`), so that half the weight bounds the bytes.
    budget = min(tokens * 8, (max_bytes - _SLACK_BYTES) * 2)
    return _Cutter(text, budget=budget, overlap=min(overlap * 8, budget // 2)).run()


class _Cutter:
    """Run over one text. Weights are eighths of tokens, `_above[i]` is the weight of all lines above line i."""

    def __init__(self, text: str, *, budget: int, overlap: int) -> None:
        self._text = text
        self._budget = budget
        self._overlap = overlap
        self._lines = MarkdownLines(text)
        self._above = self._lines.weights_above
        self._chunks: list[Piece] = []
        # Start of the present chunk's own part: offset, line, and weight of all text before it.
        self._own_start = self._line = self._before = 0
        # Start of the chunk with what it repeats: offset, line, and weight of the repeated text.
        self._start = self._start_line = self._repeated = 0

    def run(self) -> list[Piece]:
        while self._cut_once():
            pass
        self._emit(len(self._text), self._lines.count)
        return self._chunks

    def _cut_once(self) -> bool:
        """End the present chunk if the text allows it; return False if the rest of the text is the last chunk."""
        lines, above = self._lines, self._above
        first_overflowing = bisect_right(above, self._before - self._repeated + self._budget) - 1
        if first_overflowing == self._line:
            rest = above[self._line + 1] - self._before
            if rest > self._budget:
                self._break_inside(self._line, self._own_start, self._before)
                return True
            # The line fits as a whole with a shorter overlap; a very short overlap is useless.
            spare = self._budget - rest
            self._repeat(room=spare if spare >= self._overlap // 2 else 0)
            first_overflowing = bisect_right(above, self._before - self._repeated + self._budget) - 1

        room = self._budget - self._repeated
        half_full = max(bisect_left(above, self._before + room // 2), self._line + 1)
        heading = lines.kinds.find(HEADING, half_full, first_overflowing + 1)
        if heading >= 0:
            self._break_before(heading, at_heading=True)
            return True
        if first_overflowing == lines.count or not lines.decided(first_overflowing):
            return False

        kinds = lines.kinds[half_full : first_overflowing + 1]
        best = max(kinds, default=AFTER_HEADING)
        if best == AFTER_HEADING:
            # Too early to break, or only between a heading and its text: an earlier heading is better.
            quarter_full = max(bisect_left(above, self._before + room // 4), self._line + 1)
            heading = lines.kinds.rfind(HEADING, quarter_full, first_overflowing + 1)
            if heading >= 0:
                self._break_before(heading, at_heading=True)
                return True
        if kinds:
            self._break_before(half_full + kinds.rindex(best), at_heading=False)
        else:
            self._break_inside(first_overflowing, lines.starts[first_overflowing], above[first_overflowing])
        return True

    def _break_before(self, line: int, *, at_heading: bool) -> None:
        start = self._lines.starts[line]
        self._emit(start, line)
        self._own_start, self._line, self._before = start, line, self._above[line]
        self._repeat(room=0 if at_heading else self._overlap)

    def _break_inside(self, line: int, start: int, before: int) -> None:
        """Cut a line whose part from `start` on does not fit; `before` is the weight of all text before `start`."""
        room = self._budget - self._repeated - (before - self._before)
        end = cut_point(self._text, start, self._lines.content_end(line), room)
        self._emit(end, line + 1)
        self._own_start, self._line, self._before = end, line, before + weigh(self._text[start:end])
        self._repeat(room=self._overlap)

    def _repeat(self, *, room: int) -> None:
        """Choose the overlap with the previous chunk, at most `room` of weight and never more than the limit."""
        lowest = self._chunks[-1].start if self._chunks else self._own_start
        no_overlap = self._own_start, self._line, 0
        room = min(room, self._overlap)
        overlap = self._overlap_within(room, lowest) if room > 0 and self._own_start > lowest else None
        self._start, self._start_line, self._repeated = overlap or no_overlap

    def _overlap_within(self, room: int, lowest: int) -> tuple[int, int, int] | None:
        """Return offset, line and weight of the text to repeat, which starts at or after the offset `lowest`.

        It has as many whole lines as `room` holds, without blank ones at the start. If no line fits, it is the end of
        the last line with text.
        """
        text, own_start, line, before = self._text, self._own_start, self._line, self._before
        starts, above = self._lines.starts, self._above

        def has_text(number: int) -> bool:
            part = text[max(starts[number], lowest) : min(starts[number + 1], own_start)]
            return bool(part) and not part.isspace()

        first_whole = bisect_left(starts, lowest)
        # A chunk that starts inside its line can repeat the start of that line.
        last = line if starts[line] < own_start else line - 1
        first = max(first_whole, bisect_left(above, before - room))
        while first <= last and not has_text(first):
            first += 1
        if first <= last:
            return starts[first], first, before - above[first]

        while last >= first_whole and not has_text(last):
            last -= 1
        if last < 0:
            return None
        end = own_start if last == line else self._lines.content_end(last)
        # The overlap includes the line's end and blank lines below it.
        below = 0 if last == line else before - above[last + 1] + LINE_END_WEIGHT
        if room <= below:
            return None
        point = tail_point(text, max(starts[last], lowest), end, room - below)
        tail = text[point:end]
        return (point, last, below + weigh(tail)) if tail and not tail.isspace() else None

    def _emit(self, end: int, end_line: int) -> None:
        text = self._text[self._start : end]
        self._chunks.append(
            Piece(
                text=text,
                start=self._start,
                own_start=self._own_start,
                end=end,
                start_line=self._start_line + 1,
                end_line=end_line,
                tokens=weigh(text) / 8,
            )
        )
