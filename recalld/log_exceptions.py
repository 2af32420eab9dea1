"""What an exception says in a log: its type, where it came from, and its words only where they are ours.

A message may quote what somebody wrote: a validator's its input, a codec's its text, a provider's what it was sent.
The traceback's frames are our own code and tell a developer where to look; status has the words.
"""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Any

import structlog

from schemas.errors import RecalldError

#: Types whose messages are made of names of files, errors of the system and words of ours.
_SPEAKING = (RecalldError, OSError)

#: Where a message of ours gives somebody else the word, and what is logged in place of that.
_FOREIGN = (
    # memory.embedding.providers.endpoint: a provider's own sentence.
    (re.compile(r"\((HTTP \d{3}): .*\)", re.DOTALL), r"(\1)"),
    # What nobody foresaw: the type says enough.
    (re.compile(r"\b(unexpected \w+|failed on it: \w+|failed: \w+Error): .*", re.DOTALL), r"\1"),
)

#: Fields that hold an error's words.
_FIELDS = ("error", "message", "reason")


def without_foreign_words(text: str) -> str:
    """Our sentence, without what it quotes of others."""
    for pattern, kept in _FOREIGN:
        text = pattern.sub(kept, text)
    return text


def describe(error: BaseException) -> str:
    """The traceback of an exception and of those behind it, the last one last; no words but ours."""
    parts = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = "".join(traceback.format_tb(current.__traceback__))
        name = type(current).__qualname__
        words = f": {without_foreign_words(str(current))}" if isinstance(current, _SPEAKING) else ""
        parts.append(f"Traceback (most recent call last):\n{frames}{name}{words}")
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return "\n\n".join(reversed(parts))


def describe_exceptions(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.ProcessorReturnValue:
    """A structlog processor: `exc_info` becomes `exception`, and errors' words lose what is not ours."""
    error = _exception(event.pop("exc_info", None))
    if error is not None:
        event["exception"] = describe(error)
    for field in _FIELDS:
        if isinstance(event.get(field), str):
            event[field] = without_foreign_words(event[field])
    return event


def _exception(given: Any) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    if isinstance(given, tuple) and len(given) == 3 and isinstance(given[2], TracebackType | None):
        return given[1] if isinstance(given[1], BaseException) else None
    if given:
        import sys

        return sys.exc_info()[1]
    return None
