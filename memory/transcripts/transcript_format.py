"""Interface of transcript formats, and their shared parts: the kinds of lines, text and time of a message."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Literal, TypeAlias

USER = "User"
ASSISTANT = "Assistant"

#: Speakers of a conversation between agents: the agent that asks, and the agent that answers.
AGENT = "Agent"
SUBAGENT = "Subagent"


def speaker_of(*, by_user: bool, between_agents: bool) -> str:
    """Return the speaker of a message in the user's or the assistant's place."""
    if between_agents:
        return AGENT if by_user else SUBAGENT
    return USER if by_user else ASSISTANT


#: One parsed line.
Entry: TypeAlias = dict[str, Any]

#: State of a format between the lines of one file; JSON values only, as it is part of a fold's state.
Facts: TypeAlias = dict[str, Any]

#: The fact that lists queued messages: [text without secrets, Unix time or None, digest of the text as it was].
QUEUE = "held"


@dataclass(frozen=True, slots=True)
class Message:
    """Text of one speaker. `said_at` is Unix time, None when the line has no believable time."""

    speaker: str
    text: str
    said_at: float | None = None


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """Message that a later line delivers or takes back. The interpreter adds it to the fact `QUEUE`."""

    message: Message


class Wordless(Enum):
    """Kind of a line without words for the index."""

    #: The program replaced the conversation so far by a summary.
    COMPACTED = auto()
    #: The program began a new conversation below the line.
    RESET = auto()
    #: A line of a known type without words.
    KNOWN = auto()
    #: White space only.
    BLANK = auto()
    #: Not a JSON object.
    BROKEN = auto()
    #: Too many values for the memory that they would take.
    OVERFULL = auto()


class TranscriptFormat(ABC):
    """Format of one program's transcripts. Stateless: `facts` hold the statements of a line about later lines."""

    #: Its name in settings and on the command line.
    name: str

    @abstractmethod
    def recognises(self, entry: Entry) -> bool:
        """Return True if this line can only be of this format."""

    @abstractmethod
    def read(self, entry: Entry, facts: Facts) -> Message | QueuedMessage | Wordless | None:
        """Return the message of the line; None when its type is unknown. May change `facts`."""

    def kind(self, entry: Entry) -> str:
        """Return the name of an unknown line's type, for a note."""
        return kind_of(entry)

    def version(self, entry: Entry) -> Any:
        """Return the version of the program that wrote the line, if the line names it as a text."""
        return entry.get("version")

    def needs(self, line: bytes, facts: Facts) -> bool:  # noqa: ARG002 - most lines change nothing
        """Return True if the line may change `facts`, and so the reading of later lines."""
        return False


def kind_of(entry: Entry) -> str:
    """Return the `type` of a line, "" without one."""
    kind = entry.get("type")
    return kind if isinstance(kind, str) else ""


#: Believable Unix times of a message: 1980 to 2100. Other times come from a clock that was never set.
_EARLIEST = 315_532_800
_LATEST = 4_102_444_800

#: A number from here on counts milliseconds.
_MILLISECONDS = 100_000_000_000

#: Name of the element around text that recalld puts into a conversation.
CONTEXT_TAG = "recalld-context"
_CONTEXT = re.compile(rf"<{CONTEXT_TAG}\b[^<>]*>")

#: Kinds of such text.
ContextKind = Literal["memory", "standing", "flush", "session-note"]

#: Beginnings of the names of elements that recalld, Claude Code and Codex put around text for a model.
_PROGRAM_ELEMENTS = (
    *(CONTEXT_TAG, "system", "instructions", "permissions", "user_instructions", "environment_context", "turn_aborted"),
    *("user-prompt-submit-hook", "hook_prompt", "command-", "local-command", "bash-", "task-notification"),
)
_PROGRAM_TAG = re.compile(rf"<(?=[^\w<]*(?:{'|'.join(_PROGRAM_ELEMENTS)}))", re.IGNORECASE)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def names(words: str, *phrases: str) -> tuple[str, ...]:
    """Return the words of a text, and the phrases."""
    return (*words.split(), *phrases)


TEXT_BLOCKS = frozenset(("text",))

#: Parts of Gemini's messages, which have no type.
PARTS = frozenset((None,))


def texts_of(content: Any, kinds: Collection[str | None] = TEXT_BLOCKS) -> Iterator[str]:
    """Yield the texts of a message's content: a string, or blocks, of which those of `kinds` hold a `text`.

    Thoughts among the blocks are left out.
    """
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            if not isinstance(block, dict) or block.get("thought") is True or block.get("type") not in kinds:
                continue
            if isinstance(text := block.get("text"), str):
                yield text


def without_context(text: str) -> str:
    """Return the text without recalld's own insertions into the conversation."""
    return without_spans(text, _CONTEXT, f"</{CONTEXT_TAG}>").strip() if f"<{CONTEXT_TAG}" in text else text


def tagged(text: str, *, kind: ContextKind) -> str:
    """Return text for a conversation as one element, on lines of its own; readers of transcripts leave it out.

    Tags of programs inside of the text lose their meaning.
    """
    return f'<{CONTEXT_TAG} kind="{kind}">\n{_PROGRAM_TAG.sub("&lt;", text)}\n</{CONTEXT_TAG}>'


def without_spans(text: str, begin: re.Pattern[str], end: str) -> str:
    """Return the text without the spans from a match of `begin` over the next `end`, in linear time.

    A regular expression for both would look for the same missing end after each beginning.
    """
    parts: list[str] = []
    done = 0
    while (match := begin.search(text, done)) and (place := text.find(end, match.end())) >= 0:
        parts.append(text[done : match.start()])
        done = place + len(end)
    return "".join([*parts, text[done:]])


def between(text: str, begin: str, end: str) -> str | None:
    """Return the text from the first `begin` to the next `end`, None without both."""
    inside, closed, _ = text.partition(begin)[2].partition(end)
    return inside if closed else None


def clean(text: str) -> str:
    """Return text that can be stored: NUL and lone surrogates become U+FFFD, white space around it goes."""
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
    if not text.isascii():
        text = _LONE_SURROGATE.sub(_REPLACEMENT, text)
    return text.strip()


def text_digest(text: str) -> str:
    """Return a short digest of a text without the white space around it."""
    return hashlib.blake2b(clean(text).encode(), digest_size=8).hexdigest()


def time_of(*values: Any) -> float | None:
    """Return the first believable time among ISO 8601 strings (UTC by default) and Unix times in s or ms."""
    for value in values:
        seconds = _seconds(value)
        if seconds is not None and _EARLIEST <= seconds < _LATEST:
            return seconds
    return None


def _seconds(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _LATEST * 1000:
        return value / 1000 if value >= _MILLISECONDS else float(value)
    return None
