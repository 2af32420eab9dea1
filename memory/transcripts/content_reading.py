"""Text and time of a message, from the shapes that programs give them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

#: Unix times that a message can have been said at: 1980 to 2100. Others are a clock that was never set.
_EARLIEST = 315_532_800
_LATEST = 4_102_444_800

#: A number from here on counts milliseconds.
_MILLISECONDS = 100_000_000_000

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"

TEXT_BLOCKS = frozenset(("text",))


def texts_of(content: Any, kinds: Collection[str] = TEXT_BLOCKS) -> Iterator[str]:
    """The texts of a message's content: a string, or blocks of which those of `kinds` hold a `text`."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            if isinstance(block, dict) and block.get("type") in kinds and isinstance(text := block.get("text"), str):
                yield text


def clean(text: str) -> str:
    """Text that can be stored: NUL and lone surrogates become U+FFFD, white space around it goes."""
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
    if not text.isascii():
        text = _LONE_SURROGATE.sub(_REPLACEMENT, text)
    return text.strip()


def mark_of(text: str) -> str:
    """Return a short digest of a text, by which it is known again; white space around it does not count."""
    return hashlib.blake2b(clean(text).encode(), digest_size=8).hexdigest()


def time_of(*values: Any) -> float | None:
    """The first believable time among ISO 8601 strings (UTC unless they say) and Unix times in s or ms."""
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
