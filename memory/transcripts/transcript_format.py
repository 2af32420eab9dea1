"""What a line of a transcript may say, and what a format is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

USER = "User"
ASSISTANT = "Assistant"

#: In a conversation between agents: who asks, and who was asked.
AGENT = "Agent"
SUBAGENT = "Subagent"

#: One parsed line.
Entry: TypeAlias = dict[str, Any]

#: What a format keeps between lines of one file; JSON values only, as it is part of a fold's state.
Facts: TypeAlias = dict[str, Any]

#: The fact that lists what is held: [text without secrets, Unix time or None, digest of the text as it was].
HELD = "held"


@dataclass(frozen=True, slots=True)
class Said:
    """`text` was said by `speaker` at `said_at` (Unix time), None when the line tells no believable time."""

    speaker: str
    text: str
    said_at: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Words that a later line says, or takes back. The interpreter adds them to the fact `HELD`."""

    said: Said


@dataclass(frozen=True, slots=True)
class Compacted:
    """The program replaced what was said so far by a summary."""


@dataclass(frozen=True, slots=True)
class Known:
    """A line that is understood and says nothing to be found again."""


COMPACTED = Compacted()
KNOWN = Known()


class TranscriptFormat(ABC):
    """How one program writes its transcripts. Without state: what it has to remember is in the facts."""

    #: Its name in settings and on the command line.
    name: str

    @abstractmethod
    def recognises(self, entry: Entry) -> bool:
        """Whether this line can only be of this format."""

    @abstractmethod
    def read(self, entry: Entry, facts: Facts) -> Said | Held | Compacted | Known | None:
        """Return what the line says; None when its type is unknown. May change `facts`."""

    def kind(self, entry: Entry) -> str:
        """What an unknown line's type is called in a note."""
        return kind_of(entry)

    def needs(self, line: bytes, facts: Facts) -> bool:  # noqa: ARG002 - nothing to remember unless a format says so
        """Return True if the line may change `facts`, so that it is read for the sake of those after it."""
        return False


def kind_of(entry: Entry) -> str:
    """The `type` of a line, "" without one."""
    kind = entry.get("type")
    return kind if isinstance(kind, str) else ""
