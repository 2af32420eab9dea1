"""OpenClaw's transcripts: `agents/<id>/sessions/<session>.jsonl`, versions 2 and 3.

    {"type": "session", "version": 3, "id": ..., "timestamp": ..., "cwd": ...}
    {"type": "message", "id": ..., "parentId": ..., "timestamp": ..., "message": {"role": "user", "content": ...}}
    {"type": "compaction", "id": ..., "parentId": ..., "summary": ..., "firstKeptEntryId": ..., "tokensBefore": ...}

Entries are a tree by `parentId`; every branch is read, in the order of the file.
"""

from __future__ import annotations

from memory.transcripts.content_reading import texts_of, time_of
from memory.transcripts.openclaw_wrappers import assistant_text, user_text
from memory.transcripts.transcript_format import (
    ASSISTANT,
    COMPACTED,
    KNOWN,
    USER,
    Compacted,
    Entry,
    Facts,
    Known,
    Said,
    TranscriptFormat,
    kind_of,
)

_KNOWN = frozenset(
    (
        "session",
        "custom",
        "custom_message",
        "branch_summary",
        "reset",
        "label",
        "leaf",
        "session_info",
        "model_change",
        "thinking_level_change",
    )
)

#: Who made a user's message, where it was not a person.
_NOT_A_PERSON = frozenset(("inter_session", "internal_system"))


class OpenClawFormat(TranscriptFormat):
    """Messages of user and assistant without what OpenClaw wraps around them."""

    name = "openclaw"

    def recognises(self, entry: Entry) -> bool:
        kind = entry.get("type")
        if kind == "message":
            return isinstance(entry.get("message"), dict)
        if kind == "session":
            return "id" in entry
        if kind == "compaction":
            return "firstKeptEntryId" in entry or "tokensBefore" in entry
        return kind_of(entry) in _KNOWN and "id" in entry and "parentId" in entry

    def read(self, entry: Entry, facts: Facts) -> Said | Compacted | Known | None:  # noqa: ARG002 - nothing to remember
        kind = entry.get("type")
        if kind == "message":
            return _message(entry)
        if kind == "compaction":
            return COMPACTED
        return KNOWN if kind_of(entry) in _KNOWN else None


def _message(entry: Entry) -> Said | Known:
    message = entry.get("message")
    if not isinstance(message, dict):
        return KNOWN
    role = message.get("role")
    if role == "user":
        if _provenance(entry) in _NOT_A_PERSON or _provenance(message) in _NOT_A_PERSON:
            return KNOWN
        speaker, text = USER, user_text("\n".join(texts_of(message.get("content"))))
    elif role == "assistant":
        speaker, text = ASSISTANT, assistant_text("\n".join(texts_of(message.get("content"))))
    else:
        return KNOWN
    return Said(speaker, text, time_of(message.get("timestamp"), entry.get("timestamp")))


def _provenance(holder: Entry) -> str:
    provenance = holder.get("provenance")
    kind = provenance.get("kind") if isinstance(provenance, dict) else None
    return kind if isinstance(kind, str) else ""
