"""Gemini CLI's transcripts since 0.39: `~/.gemini/tmp/<project>/chats/session-<time>-<id>.jsonl`, subagents one deeper.

    {"sessionId": ..., "projectHash": ..., "startTime": ..., "kind": "main | subagent"}
    {"id": ..., "timestamp": ..., "type": "user", "content": [{"text": ...}], "displayContent": ...}
    {"id": ..., "timestamp": ..., "type": "gemini", "content": "text", "thoughts": [...], "toolCalls": [...]}
    {"$set": {"messages": [...], "lastUpdated": ...}}
    {"$rewindTo": id}

A message that gets tool calls is written again under its id. `$set` repeats messages for the model; `displayContent`
is the text that the person typed, where the program added files to it. Rewound messages were said, and are read.
Versions before 0.39 wrote one JSON document a session, which is no transcript of lines.
"""

from __future__ import annotations

from memory.transcripts.transcript_format import (
    PARTS,
    Entry,
    Facts,
    Message,
    TranscriptFormat,
    Wordless,
    kind_of,
    speaker_of,
    texts_of,
    time_of,
)
from memory.transcripts.wrappers import Cut, Wrappers

USER_WRAPPERS = Wrappers({Cut.ENVELOPE: ("session_context", "hook_context")})

_SAID = frozenset(("user", "gemini"))
_KNOWN = frozenset(("info", "error", "warning"))

#: The fact that the file is a subagent's.
_SUBAGENT = "subagent"
#: The fact that lists ids of the messages read last.
_LATEST = "latest"
_MOST_LATEST = 20


class GeminiFormat(TranscriptFormat):
    """Messages of user and model, each once; in a subagent's conversation, of Agent and Subagent."""

    name = "gemini-cli"

    def recognises(self, entry: Entry) -> bool:
        if kind_of(entry) in _SAID | _KNOWN:
            return "content" in entry and "id" in entry and "message" not in entry
        return _is_control(entry)

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:
        kind = kind_of(entry)
        if kind not in _SAID:
            if entry.get("kind") == "subagent":
                facts[_SUBAGENT] = True
            return Wordless.KNOWN if kind in _KNOWN or _is_control(entry) else None
        content = (kind == "user" and entry.get("displayContent")) or entry.get("content")
        text = "\n".join(texts_of(content, PARTS))
        latest = facts.get(_LATEST, [])
        if not text.strip() or entry.get("id") in latest:
            return Wordless.KNOWN
        facts[_LATEST] = [*latest, entry.get("id")][-_MOST_LATEST:]
        speaker = speaker_of(by_user=kind == "user", between_agents=_SUBAGENT in facts)
        words = USER_WRAPPERS.words(text) if kind == "user" else text
        return Message(speaker, words, time_of(entry.get("timestamp")))

    def needs(self, line: bytes, facts: Facts) -> bool:  # noqa: ARG002 - the line tells
        return b'"type"' in line or b'"kind"' in line


def _is_control(entry: Entry) -> bool:
    is_first = "sessionId" in entry and "startTime" in entry and not kind_of(entry)
    return is_first or "$set" in entry or "$rewindTo" in entry
