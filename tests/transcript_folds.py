"""Helpers of the tests of transcripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from memory.chunking.chunker import Chunk
from memory.transcripts.folding import TranscriptFold
from memory.transcripts.interpreter import Interpreter, Reading
from memory.transcripts.lines import RawLine, lines_in


def raw_lines(data: bytes, *, start: int = 0) -> list[RawLine]:
    """The lines of a file with that content, the first one at `start`."""
    return list(lines_in(iter([data]), start=start)) if data else []


def readings(*entries: dict[str, Any], name: str | None = None) -> list[Reading]:
    """Return the messages in the entries of one file."""
    interpreter = Interpreter(name)
    return [interpreter.read(json.dumps(entry).encode()) for entry in entries]


def new_fold(
    *,
    tokens: int = 400,
    overlap: int = 80,
    max_bytes: int = 8191,
    max_message_chars: int = 400_000,
    redact: Callable[[str], str] = str,
    name: str | None = None,
    state: str | None = None,
) -> TranscriptFold:
    """A fold with the settings' defaults that redacts nothing."""
    return TranscriptFold(
        tokens=tokens,
        overlap=overlap,
        max_bytes=max_bytes,
        max_message_chars=max_message_chars,
        redact=redact,
        format=name,
        state=state,
    )


def feed(fold: TranscriptFold, data: bytes) -> RawLine | None:
    """Feed the lines; a last one without its end is not fed but returned, for `open`."""
    for line in raw_lines(data, start=fold.offset):
        if not line.has_line_end:
            return line
        fold.feed(line)
    return None


def folded(data: bytes, **options: Any) -> tuple[TranscriptFold, list[Chunk]]:
    """The fold of a whole file, and all its chunks."""
    fold = new_fold(**options)
    tail = feed(fold, data)
    return fold, [*fold.take(), *fold.open(tail)]


def text_of(chunks: list[Chunk]) -> str:
    """All text in the chunks."""
    return "\n".join(chunk.text for chunk in chunks)
