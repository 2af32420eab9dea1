"""Facts at the top of a session's note: the session, its program and its transcript. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_SESSION, _PROGRAM, _TRANSCRIPT = "- Session: ", "- Program: ", "- Transcript: "


@dataclass(frozen=True, slots=True)
class NoteFacts:
    """Origin of a session's note. `transcript` is the transcript's path in the agent's memory."""

    session: str
    program: str
    transcript: str

    def __str__(self) -> str:
        """Return the lines of the note that state these facts."""
        return f"{_SESSION}{self.session}\n{_PROGRAM}{self.program}\n{_TRANSCRIPT}{self.transcript}"


def note_facts(text: str) -> NoteFacts | None:
    """Return the facts that a note states, wherever they stand in its text; None without a transcript's line."""
    values = dict.fromkeys((_SESSION, _PROGRAM, _TRANSCRIPT), "")
    for line in text.splitlines():
        for prefix in values:
            if not values[prefix] and line.startswith(prefix):
                values[prefix] = line.removeprefix(prefix).strip()
    session, program, transcript = values.values()
    return NoteFacts(session, program, transcript) if transcript else None
