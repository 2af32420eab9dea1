"""Marks around text that recalld puts into a conversation. Readers of transcripts leave out what stands between them.

The text is quoted memory with its source: the mark says so to the model, so that it is no instruction.
"""

from __future__ import annotations

from typing import Literal
from xml.sax.saxutils import quoteattr

from memory.transcripts.transcript_format import CONTEXT_MARK as MARK

Kind = Literal["memory", "standing", "bootstrap", "flush", "session-note"]


def marked(text: str, *, kind: Kind, source: str | None = None) -> str:
    """Return the text as one element, on lines of its own. A mark inside of the text loses its meaning."""
    for tag in (f"<{MARK}", f"</{MARK}"):
        text = text.replace(tag, tag.replace("<", "&lt;"))
    attributes = f"kind={quoteattr(kind)}" + (f" source={quoteattr(source)}" if source is not None else "")
    return f"<{MARK} {attributes}>\n{text}\n</{MARK}>"
