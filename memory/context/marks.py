"""Marks around text that recalld puts into a conversation. Readers of transcripts leave out what they enclose."""

from __future__ import annotations

from typing import Literal

from memory.transcripts.transcript_format import CONTEXT_MARK as MARK

Kind = Literal["memory", "standing", "flush", "session-note"]


def marked(text: str, *, kind: Kind) -> str:
    """Return the text as one element, on lines of its own. A mark inside of the text loses its meaning."""
    for tag in (f"<{MARK}", f"</{MARK}"):
        text = text.replace(tag, tag.replace("<", "&lt;"))
    return f'<{MARK} kind="{kind}">\n{text}\n</{MARK}>'
