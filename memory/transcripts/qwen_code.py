"""Qwen Code's transcripts: `~/.qwen/projects/<project>/chats/<session>.jsonl`, agents in `subagents/<session>/`.

    {"type": "user", "uuid": ..., "sessionId": ..., "timestamp": ..., "cwd": ..., "version": ..., "subtype": ...,
     "message": {"role": "user", "parts": [{"text": ...}]}, "systemPayload": {"displayText": ...}}
    {"type": "assistant", ..., "message": {"role": "model", "parts": [{"text": ..., "thought": true}, {"text": ...}]}}
    {"type": "tool_result", ...}
    {"type": "system", "subtype": "chat_compression", "systemPayload": ...}

`displayText` is the text that the person typed, where the program added to it.
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

USER_WRAPPERS = Wrappers({Cut.ELEMENT: ("system-reminder",)})

_KNOWN = frozenset(("tool_result", "system"))

#: Kinds of lines of type user that a person wrote: a turn, words while the assistant works, and spoken words. Others
#: are schedules, notifications and goals.
_PERSONS = frozenset((None, "mid_turn_user_message", "realtime_message"))


class QwenFormat(TranscriptFormat):
    """Turns of user and model; in a subagent's conversation, of Agent and Subagent."""

    name = "qwen-code"

    def recognises(self, entry: Entry) -> bool:
        kind, message = kind_of(entry), entry.get("message")
        if kind in _KNOWN and "sessionId" in entry and "systemPayload" in entry:
            return True
        return kind in ("user", "assistant", "tool_result") and isinstance(message, dict) and "parts" in message

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:  # noqa: ARG002 - nothing to remember
        kind, message = kind_of(entry), entry.get("message")
        if kind == "system" and entry.get("subtype") == "chat_compression":
            return Wordless.COMPACTED
        if kind not in ("user", "assistant"):
            return Wordless.KNOWN if kind in _KNOWN else None
        if not isinstance(message, dict) or (kind == "user" and entry.get("subtype") not in _PERSONS):
            return Wordless.KNOWN
        payload = entry.get("systemPayload")
        typed = payload.get("displayText") if kind == "user" and isinstance(payload, dict) else None
        texts = texts_of(typed or message.get("parts"), PARTS)
        text = "\n".join(filter(None, map(USER_WRAPPERS.words, texts) if kind == "user" else texts))
        speaker = speaker_of(by_user=kind == "user", between_agents=entry.get("isSidechain") is True)
        return Message(speaker, text, time_of(entry.get("timestamp")))
