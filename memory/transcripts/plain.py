"""Plain transcripts: one message a line, {"role", "content", "timestamp"} and perhaps {"name"}.

The shape of chat APIs and of most exports. `content` is a string or a list of blocks of type "text";
`timestamp` is ISO 8601 or a Unix time in seconds or milliseconds; `name` is the speaker's.
"""

from __future__ import annotations

from memory.transcripts.transcript_format import (
    ASSISTANT,
    KNOWN,
    USER,
    Entry,
    Facts,
    Said,
    TranscriptFormat,
    Wordless,
    clean,
    texts_of,
    time_of,
)

_SPEAKERS = {"user": USER, "human": USER, "assistant": ASSISTANT, "model": ASSISTANT, "ai": ASSISTANT}

#: Characters of a speaker's name at most: more would be no name.
_NAME_CHARACTERS = 40


class PlainFormat(TranscriptFormat):
    """Messages of user and assistant; other roles (system, tool) are known and say nothing."""

    name = "plain"

    def recognises(self, entry: Entry) -> bool:
        return isinstance(entry.get("role"), str) and isinstance(entry.get("content"), (str, list))

    def read(self, entry: Entry, facts: Facts) -> Said | Wordless | None:  # noqa: ARG002 - nothing to remember
        role = entry.get("role")
        if not isinstance(role, str):
            return None
        speaker = _SPEAKERS.get(role.lower())
        if speaker is None:
            return KNOWN
        name = entry.get("name")
        if isinstance(name, str) and name.strip():
            speaker = " ".join(clean(name).split())[:_NAME_CHARACTERS].rstrip()
        text = "\n".join(texts_of(entry.get("content")))
        return Said(speaker, text, time_of(entry.get("timestamp")))
