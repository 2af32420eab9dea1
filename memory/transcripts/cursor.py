"""Cursor's transcripts of its agent: `~/.cursor/projects/<project>/agent-transcripts/<id>/<id>.jsonl`.

    {"role": "user", "message": {"content": [{"type": "text", "text": "<timestamp>...</timestamp>\\n<user_query>..."}]}}
    {"role": "assistant", "message": {"content": [{"type": "text", "text": ...}, {"type": "tool_use", ...}]}}
    {"type": "turn_ended", "status": "success"}

Subagents' transcripts lie in `<id>/subagents/` and look like others. Lines have no time but the one in a person's text.
Facts from public descriptions of the format.
"""

from __future__ import annotations

from memory.transcripts.transcript_format import (
    ASSISTANT,
    USER,
    Entry,
    Facts,
    Message,
    TranscriptFormat,
    Wordless,
    between,
    kind_of,
    names,
    texts_of,
)
from memory.transcripts.wrappers import Cut, Wrappers

#: Elements that the program puts around a person's request, where a message has none.
USER_WRAPPERS = Wrappers(
    {
        Cut.ELEMENT: names("""
            additional_data attached_files cursor_rules_context git_status open_and_recently_viewed_files
            project_layout rules system_reminder timestamp user_info
        """)
    }
)

_REQUEST = "<user_query>"

#: Mark of thinking that was left out.
ASSISTANT_WRAPPERS = Wrappers({Cut.ALL: ("[REDACTED]",), Cut.BELOW: ("[REDACTED]",)})

_KNOWN = frozenset(("turn_ended",))


class CursorFormat(TranscriptFormat):
    """Messages of user and assistant."""

    name = "cursor"

    def recognises(self, entry: Entry) -> bool:
        return isinstance(entry.get("role"), str) and isinstance(entry.get("message"), dict) and "type" not in entry

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:  # noqa: ARG002 - nothing to remember
        role, message = entry.get("role"), entry.get("message")
        if not isinstance(role, str) or not isinstance(message, dict):
            return Wordless.KNOWN if kind_of(entry) in _KNOWN else None
        texts = texts_of(message.get("content"))
        if role == "user":
            return Message(USER, "\n".join(filter(None, map(_user_text, texts))))
        if role == "assistant":
            return Message(ASSISTANT, "\n".join(filter(None, map(ASSISTANT_WRAPPERS.words, texts))))
        return Wordless.KNOWN


def _user_text(text: str) -> str:
    request = between(text, _REQUEST, "</user_query>")
    return USER_WRAPPERS.words(text) if request is None else request.strip()
