"""Lines of a Markdown text, with their weights and a rank of the cut before each of them.

Weights are eighths of estimated tokens. Work is done in bulk or per line, never per character.
"""

from __future__ import annotations

import re
from array import array
from itertools import accumulate

#: Ranks of a cut before a line, worst first.
AFTER_HEADING = 0  # would separate a heading from its text
IN_FENCE = 1
IN_FENCE_AFTER_BLANK = 2
LINE = 3
PARAGRAPH = 4
FENCE = 5
HEADING = 6

#: Characters of a line that identify a heading ("###### ") or an opening fence ("   ```").
DECIDING_CHARS = 8

#: Weight of "\r\n" and of "\n", that of two ASCII characters, so that both are cut alike.
LINE_END_WEIGHT = 4

_HEADING = re.compile(r"#{1,6}[ \t]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")

#: First characters of lines that may be other than plain text; "" stands for the empty line.
_SPECIAL = frozenset(("", " ", "\t", "\r", "#", "`", "~"))


class MarkdownLines:
    """Lines of a text. They end at "\\n" only; an unfinished last line counts.

    `starts`: offset of each line. `weights_above`: weight of all lines above a line, with one more entry for the whole
    text. `kinds`: rank of a cut before each line, which depends on the lines above it and its first `DECIDING_CHARS`
    characters.
    """

    __slots__ = ("_finished", "_text", "count", "kinds", "starts", "weights_above")

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        self._text = text
        self._finished = not lines[-1]
        if self._finished:
            lines.pop()
        self.count = len(lines)
        self.starts = array("q", accumulate((len(line) + 1 for line in lines), initial=0))
        self.weights_above = array("q", accumulate(self._weights(lines), initial=0))
        self.kinds = _kinds(lines)

    def decided(self, line: int) -> bool:
        """Return True if enough of the line is known to tell its kind."""
        return line < self.count - 1 or self._finished or len(self._text) - self.starts[line] >= DECIDING_CHARS

    def content_end(self, line: int) -> int:
        """Return the offset of the line's end, without "\\n" or "\\r\\n"."""
        if line == self.count - 1 and not self._finished:
            return len(self._text)
        end = self.starts[line + 1] - 1
        return end - 1 if end > self.starts[line] and self._text[end - 1] == "\r" else end

    def _weights(self, lines: list[str]) -> list[int]:
        text = self._text
        if text.isascii():
            weights = [2 * len(line) + LINE_END_WEIGHT for line in lines]
        else:
            encoded = text.encode("utf-8", "surrogatepass").split(b"\n")
            weights = [3 * len(data) - len(line) + LINE_END_WEIGHT for data, line in zip(encoded, lines, strict=False)]
        if "\r" in text:
            weights = [
                weight - 2 if line.endswith("\r") else weight for weight, line in zip(weights, lines, strict=True)
            ]
        if not self._finished:
            # A "\r" at the very end weighs nothing until the next character shows if it is text.
            weights[-1] -= LINE_END_WEIGHT
        return weights


def _kinds(lines: list[str]) -> bytearray:
    kinds = bytearray()
    append = kinds.append
    fence = ""  # opening of the present fence
    plain = LINE  # kind of a line after a plain one
    default = PARAGRAPH  # kind of the next line if it is plain
    for line in lines:
        if line[:1] not in _SPECIAL:
            append(default)
            default = plain
            continue
        blank = not line or line.isspace()
        if fence:
            append(default)
            default = IN_FENCE_AFTER_BLANK if blank else IN_FENCE
            if not blank and _closes(line, fence):
                fence, plain, default = "", LINE, PARAGRAPH
            continue
        if _HEADING.match(line):
            append(AFTER_HEADING if default == AFTER_HEADING else HEADING)
            default = AFTER_HEADING
            continue
        opening = _FENCE.match(line)
        # The line's start decides the rank of a cut before it; the whole line decides if a fence opens.
        append(FENCE if opening and default != AFTER_HEADING else default)
        if opening and not ("`" in opening[1] and "`" in line[opening.end() :]):
            fence, plain, default = opening[1], IN_FENCE, IN_FENCE
        elif not blank:
            default = LINE
        elif default != AFTER_HEADING:
            default = PARAGRAPH
    return kinds


def _closes(line: str, fence: str) -> bool:
    match = _FENCE.match(line)
    return bool(
        match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not line[match.end() :].strip(" \t\r")
    )
