"""Page of a transcript for a person: one line of text for each line of the JSONL file.

A citation `sessions/x.jsonl#L12-L14` counts lines of the file, and opens like a citation of a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memory.chunking.lines import cut_point
from memory.transcripts.interpreter import Interpreter
from memory.transcripts.lines import RawLine
from memory.transcripts.packing import label
from memory.transcripts.transcript_format import Said

#: Characters of one page at most, as for a note.
MAX_CHARACTERS = 12_000

#: Weight of the heaviest character, in eighths of tokens (see `memory.chunking.lines.weigh`).
_HEAVIEST = 11


@dataclass(frozen=True, slots=True)
class RenderedLines:
    """A page of a transcript.

    `lines[i]` stands for line `first + i` of the file. It is empty for a line without words, and says so for a line
    that is too long to be read. `total` is the number of lines in the file. `cut_from` is None, or the characters of
    the only line of this page, if that is longer than a page.
    """

    first: int
    lines: tuple[str, ...]
    total: int
    cut_from: int | None = None


def render_lines(
    lines: Iterator[RawLine],
    *,
    first: int,
    count: int,
    format: str | None,  # noqa: A002 - the word of the settings and of the command line
    redact: Callable[[str], str],
    max_characters: int = MAX_CHARACTERS,
) -> RenderedLines:
    """Render lines `first` to `first + count - 1` (1-based), as many of them as fit `max_characters`.

    Args:
        lines: all lines of the file from its first one, an unterminated last one included. All are taken, as they
            are counted; those above the page are parsed only until the format is settled.
        first: the line to start with, 1 or more.
        count: lines wanted, 1 or more.
        format: the format's name, None to recognise it.
        redact: applied to each text; idempotent.
        max_characters: of all lines together, with a line end between each two.

    Memory is bounded by the longest line and the page. A page starts with whole lines, so that pages follow one
    another without a gap: the next one starts at `first + len(lines)`.
    """
    interpreter = Interpreter(format, redact=redact)
    shown: list[str] = []
    room = max_characters
    cut_from: int | None = None
    number = 0
    full = False
    for number, line in enumerate(lines, start=1):
        on_page = not full and first <= number < first + count
        if line.data is None and on_page:
            text = f"({line.size / 1e6:.0f} MB in one line, too long to be shown)"
        elif line.data is None or not (on_page or (number < first and interpreter.needs(line.data))):
            text = ""
        else:
            reading = interpreter.read(line.data)
            text = _rendered(reading) if on_page and isinstance(reading, Said) else ""
        if not on_page:
            continue
        needed = len(text) + (1 if shown else 0)
        if needed <= room:
            room -= needed
            shown.append(text)
            continue
        full = True
        if not shown:
            cut_from = len(text)
            shown.append(text[: cut_point(text, 0, max_characters, max_characters * _HEAVIEST)])
    return RenderedLines(first, tuple(shown), number, cut_from)


def _rendered(said: Said) -> str:
    return label(said.speaker, said.said_at) + " ".join(said.text.split())
