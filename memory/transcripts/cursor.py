"""Cursor's transcripts of its agent: `~/.cursor/projects/<project>/agent-transcripts/<id>/<id>.jsonl`.

    {"role": "user", "message": {"content": [{"type": "text", "text": "<timestamp>...</timestamp>\\n<user_query>..."}]}}
    {"role": "assistant", "message": {"content": [{"type": "text", "text": ...}, {"type": "tool_use", ...}]}}
    {"type": "turn_ended", "status": "success"}

Subagents' transcripts lie in `<id>/subagents/` and look like others. Answers have the time of the person's text above.
Facts from public descriptions of the format.
"""

from __future__ import annotations

import re

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
    time_of,
)
from memory.transcripts.wrappers import Cut, Wrappers

#: Elements that the program puts around a person's request, where a message has none.
USER_WRAPPERS = Wrappers(
    {
        Cut.ELEMENT: names("""
            additional_data agent_skills attached_files cursor_rules_context dynamic_tools git_status image_files
            open_and_recently_viewed_files project_layout rules system_notification system_reminder timestamp user_info
        """)
    }
)

_REQUEST = "<user_query>"

#: Mark of thinking that was left out.
ASSISTANT_WRAPPERS = Wrappers({Cut.ALL: ("[REDACTED]",), Cut.BELOW: ("[REDACTED]",)})

_KNOWN = frozenset(("turn_ended",))

_TIME = re.compile(
    r"<timestamp>[A-Z][a-z]{2,8}, ([A-Z][a-z]{2}) (\d{1,2}), (\d{4}), (\d{1,2}):(\d\d) ([AP])M"
    r"(?: \(UTC(?:([+-])(\d{1,2})(?::(\d\d))?)?\))?</timestamp>",
    re.ASCII,
)
_MONTHS = names("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")

#: The fact with the Unix time of the person's last message.
_AT = "at"


class CursorFormat(TranscriptFormat):
    """Messages of user and assistant."""

    name = "cursor"

    def recognises(self, entry: Entry) -> bool:
        return isinstance(entry.get("role"), str) and isinstance(entry.get("message"), dict) and "type" not in entry

    def read(self, entry: Entry, facts: Facts) -> Message | Wordless | None:
        role, message = entry.get("role"), entry.get("message")
        if not isinstance(role, str) or not isinstance(message, dict):
            return Wordless.KNOWN if kind_of(entry) in _KNOWN else None
        texts = list(texts_of(message.get("content")))
        if role == "user":
            facts[_AT] = next(filter(None, map(_time, texts)), facts.get(_AT))
            return Message(USER, "\n".join(filter(None, map(_user_text, texts))), facts[_AT])
        if role == "assistant":
            return Message(ASSISTANT, "\n".join(filter(None, map(ASSISTANT_WRAPPERS.words, texts))), facts.get(_AT))
        return Wordless.KNOWN

    def needs(self, line: bytes, facts: Facts) -> bool:  # noqa: ARG002 - the line tells
        return b"<timestamp>" in line


def _user_text(text: str) -> str:
    request = between(text, _REQUEST, "</user_query>")
    return USER_WRAPPERS.words(text) if request is None else request.strip()


def _time(text: str) -> float | None:
    match = _TIME.search(text)
    if not match or match[1] not in _MONTHS:
        return None
    _, day, year, hour, minute, half, sign, hours, minutes = match.groups()
    date = f"{year}-{_MONTHS.index(match[1]) + 1:02}-{int(day):02}"
    zone = f"{sign or '+'}{int(hours or 0):02}:{minutes or '00'}"
    return time_of(f"{date}T{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}{zone}")
