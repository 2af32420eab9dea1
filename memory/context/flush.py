"""Flush: a hidden turn in which the model saves what matters, before its context is compacted.

`flush_plan` says whether it is due. `SilentFilter` keeps an answer from the user that only says "nothing to say".
`memory.context.note_files` carries out what the turn writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from memory.chunking.chunker import estimate_tokens
from memory.context.marks import marked
from memory.context.messages import Message, text_of
from schemas.sections import Flush

#: Answer of a model that has nothing to say to the user.
SILENT_TOKEN = "NO_REPLY"  # noqa: S105 - a word, no secret

#: At most one part in so many of the window is reserved for the answer.
MAX_RESERVE_PART = 4


class Skip(StrEnum):
    """Reason why no flush is due."""

    DISABLED = "disabled"
    HEARTBEAT = "heartbeat"
    WORKSPACE_READ_ONLY = "workspace_read_only"
    FLUSHED_IN_THIS_CYCLE = "flushed_in_this_cycle"
    BELOW_THRESHOLD = "below_threshold"
    SIZE_UNKNOWN = "size_unknown"


@dataclass(frozen=True, slots=True)
class FlushSession:
    """State of a session before its next turn.

    `tokens`: last known size of the context, None if never counted. While it `is_stale` or unknown, `messages` are
    counted. `compactions`: their number so far. `flushed_at`: that number at the last flush, None before the first one.
    """

    window_tokens: int
    tokens: int | None = None
    is_stale: bool = False
    messages: Sequence[Message] = ()
    transcript_bytes: int = 0
    compactions: int = 0
    flushed_at: int | None = None
    is_writable: bool = True
    is_heartbeat: bool = False


@dataclass(frozen=True, slots=True)
class FlushPlan:
    """A due flush: prompts of the hidden turn, the only `path` that it may write, and the silent token.

    Afterwards the session's `flushed_at` is `cycle`, the number of compactions when the plan was made.
    """

    system_prompt: str
    prompt: str
    path: str
    cycle: int
    silent_token: str = SILENT_TOKEN
    model: str | None = None


def flush_plan(session: FlushSession, settings: Flush, *, now: datetime) -> FlushPlan | Skip:
    """Return the plan of a flush that is due `now`, in the user's time zone, or the reason why none is."""
    if not settings.enabled:
        return Skip.DISABLED
    if session.is_heartbeat:
        return Skip.HEARTBEAT
    if not session.is_writable:
        return Skip.WORKSPACE_READ_ONLY
    if session.flushed_at == session.compactions:
        return Skip.FLUSHED_IN_THIS_CYCLE
    is_long = settings.transcript_bytes is not None and session.transcript_bytes >= settings.transcript_bytes
    tokens = context_tokens(session)
    if not is_long and tokens is None:
        return Skip.SIZE_UNKNOWN
    if not is_long and (tokens or 0) < flush_threshold(session.window_tokens, settings):
        return Skip.BELOW_THRESHOLD
    path = daily_note(now)
    return FlushPlan(
        system_prompt=marked(_SYSTEM_PROMPT.format(token=SILENT_TOKEN), kind="flush"),
        prompt=marked(_PROMPT.format(path=path, time=f"{now:%Y-%m-%d %H:%M %Z}", token=SILENT_TOKEN), kind="flush"),
        path=path,
        cycle=session.compactions,
        model=settings.model,
    )


def flush_threshold(window_tokens: int, settings: Flush) -> int:
    """Return the tokens of a context from which on a flush is due."""
    reserve = min(settings.reserve_tokens, window_tokens // MAX_RESERVE_PART)
    return max(1, window_tokens - reserve - settings.soft_threshold_tokens)


def context_tokens(session: FlushSession) -> int | None:
    """Return the known size of a context; where it is stale or unknown, at least the estimate from the messages."""
    if session.tokens is not None and not session.is_stale:
        return session.tokens
    if not session.messages:
        return session.tokens
    estimated = sum(estimate_tokens(text_of(message.get("content"))) for message in session.messages)
    return max(round(estimated), session.tokens or 0)


def daily_note(at: datetime) -> str:
    """Return the path of a day's note, relative to the workspace."""
    return f"memory/{at:%Y-%m-%d}.md"


class SilentFilter:
    """Filter of a streamed answer: an answer that begins with the token is held back, any other passes unchanged.

    Upper and lower case are the same, and white space before the token does not count. The token ends where no letter,
    digit or underscore follows.
    """

    def __init__(self, token: str = SILENT_TOKEN) -> None:
        self._token = token.lower()
        self._held = ""
        #: True if the answer is silent, False if it is not, None while both are possible.
        self.is_silent: bool | None = None

    def feed(self, piece: str) -> str:
        """Return the text that may be shown after the next piece of the answer."""
        if self.is_silent is not None:
            return "" if self.is_silent else piece
        self._held += piece
        begun = self._held.lstrip().lower()
        if len(begun) > len(self._token):
            self.is_silent = begun.startswith(self._token) and not _is_word(begun[len(self._token)])
        elif not self._token.startswith(begun):
            self.is_silent = False
        return self._released()

    def end(self) -> str:
        """Return the rest that may be shown after the last piece."""
        if self.is_silent is None:
            self.is_silent = self._held.strip().lower() == self._token
            return self._released()
        return ""

    def _released(self) -> str:
        if self.is_silent is not False:
            return ""
        held, self._held = self._held, ""
        return held


def _is_word(character: str) -> bool:
    return re.match(r"\w", character) is not None


_SYSTEM_PROMPT = (
    "The conversation is about to be compacted. Save its durable facts to the memory file now: decisions, preferences, "
    "names, numbers, open tasks. The user does not see this turn. If there is nothing to save, answer {token}."
)

_PROMPT = (
    "Save what is worth remembering to {path}, and to no other file. Append to it: never replace or repeat what it "
    "holds, and create no other file for the same day. MEMORY.md, USER.md, SOUL.md, TOOLS.md and AGENTS.md are "
    "read-only now. It is {time}. Afterwards, or if there is nothing to save, answer {token}."
)
