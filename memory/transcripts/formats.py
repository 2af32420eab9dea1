"""The formats of transcripts, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping

from memory.transcripts.claude_code_format import ClaudeCodeFormat
from memory.transcripts.codex_format import CodexFormat
from memory.transcripts.openclaw_format import OpenClawFormat
from memory.transcripts.plain_format import PlainFormat
from memory.transcripts.transcript_format import (
    COMPACTED,
    KNOWN,
    Compacted,
    Entry,
    Known,
    Said,
    TranscriptFormat,
)

__all__ = [
    "COMPACTED",
    "FORMATS",
    "KNOWN",
    "Compacted",
    "Entry",
    "Known",
    "Said",
    "TranscriptFormat",
    "is_compaction_line",
    "recognised_format",
]

#: In the order in which a line is shown to them: the more telling first.
FORMATS: Mapping[str, TranscriptFormat] = {
    each.name: each for each in (OpenClawFormat(), ClaudeCodeFormat(), CodexFormat(), PlainFormat())
}


def recognised_format(entry: Entry) -> TranscriptFormat | None:
    """The format that this line can only be of, None when it could be of any or of none."""
    return next((each for each in FORMATS.values() if each.recognises(entry)), None)


def is_compaction_line(line: bytes) -> bool:
    """Whether the line is a program's own mark of a compaction; a conversation about compactions is not."""
    if b"compact" not in line:
        return False
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(entry, dict):
        return False
    found = recognised_format(entry)
    return found is not None and isinstance(found.read(entry, {}), Compacted)
