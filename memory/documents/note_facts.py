"""Facts at the top of a session's note: the session, its program and its transcript. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from memory.documents.roots import session_id

#: Words of the lines in which our notes name a transcript, and OpenClaw's own the key of a session.
ORIGIN_WORDS = ("Transcript:", "**Session Key**:")

_TRANSCRIPT_LINE, _SESSION_KEY_LINE = (
    re.compile(rf"^[ \t]*[-*+][ \t]+{re.escape(words)}[ \t]*(\S.*)$", re.MULTILINE) for words in ORIGIN_WORDS
)

#: Line that names a session by its id or its transcript.
_SESSION_LINE = re.compile(r"^[ \t]*[-*+][ \t]+(?:Session:|\*\*Session ID\*\*:|Transcript:)[ \t]*(\S.*)")


@dataclass(frozen=True, slots=True)
class NoteFacts:
    """Origin of a session's note. `transcript` is the transcript's path in the agent's memory."""

    session: str
    program: str
    transcript: str

    def __str__(self) -> str:
        """Return the lines of the note that state these facts."""
        return f"- Session: {self.session}\n- Program: {self.program}\n- Transcript: {self.transcript}"


def named_transcripts(text: str) -> list[str]:
    """Return the paths of all transcripts that a note names, also in indented lines and behind other bullets."""
    return [match[1].strip() for match in _TRANSCRIPT_LINE.finditer(text)]


def named_sessions(text: str) -> list[str]:
    """Return the keys of all sessions that a note names as OpenClaw does."""
    return [match[1].strip() for match in _SESSION_KEY_LINE.finditer(text)]


def noted_sessions(text: str, first_line: int, last_line: int) -> set[str]:
    """Return the ids of the sessions that lines of a note are about: those named in them, and the last one above."""
    sessions: set[str] = set()
    for number, line in enumerate(text.split("\n")[:last_line], start=1):
        if match := _SESSION_LINE.match(line):
            sessions = {session_id(match[1].strip()), *(sessions if number > first_line else ())}
    return sessions
