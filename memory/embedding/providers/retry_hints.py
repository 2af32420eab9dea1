"""How long a provider asks to wait, in the many ways in which providers say it."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping

#: No provider is waited for longer than this without another look.
LONGEST_WAIT_SECONDS = 3600.0

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: "1h2m3.5s", "20ms", "12.5 seconds", "1 minute".
_PART = re.compile(
    r"(\d+(?:\.\d+)?) ?(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h|days?|d)(?![a-z])", re.I
)
_HINT = re.compile(rf"(?:try again|retry) (?:in|after) ((?:{_PART.pattern}[ ,]*)+)", re.IGNORECASE)

#: What google.rpc.RetryInfo says, "34s" or "0.5s": https://google.aip.dev/193
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')

#: OpenAI's headers and those who follow them; the plain form counts everything.
_COUNTED = ("-requests", "-tokens", "")

#: Numbers above these are moments (Unix time), in seconds and in milliseconds.
_MOMENT_SECONDS, _MOMENT_MILLISECONDS = 1e9, 1e11


def retry_after(headers: Mapping[str, str], body: object) -> float | None:
    """Seconds that the provider asks to wait; None when it does not say, or names a time that has come already.

    In this order: `retry-after-ms`, `retry-after` (seconds or a date), Google's RetryInfo, "try again in 1m30s" in
    the body, `x-ratelimit-reset-...` of what is used up. `headers` has lower-case names or does not mind the case;
    `body` is parsed JSON or text.
    """
    words = body if isinstance(body, str) else json.dumps(body, default=str, ensure_ascii=False)
    for seconds in (
        _scaled(_number(headers.get("retry-after-ms")), 0.001),
        _seconds_or_date(headers.get("retry-after")),
        _number(delay[1]) if (delay := _RETRY_DELAY.search(words)) else None,
        duration(hint[1]) if (hint := _HINT.search(words)) else None,
        _reset(headers),
    ):
        if seconds is not None:
            return min(seconds, LONGEST_WAIT_SECONDS) if seconds > 0 else None
    return None


def duration(text: str) -> float | None:
    """Seconds of "6m0s", "20ms" or "1 minute"; None when there is no such thing in the text."""
    parts = _PART.findall(text)
    if not parts:
        return None
    return sum(float(count) * _UNIT_SECONDS[_unit(name)] for count, name in parts)


def _unit(name: str) -> str:
    lowered = name.lower()
    return "ms" if lowered.startswith(("ms", "milli")) else lowered[0]


def _seconds_or_date(value: str | None) -> float | None:
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    moment = email.utils.parsedate_tz(value)
    try:
        return None if moment is None else email.utils.mktime_tz(moment) - time.time()
    except (ValueError, OverflowError):
        return None


def _reset(headers: Mapping[str, str]) -> float | None:
    """When all of what is used up is there again."""
    waits = [
        _until(headers.get(f"x-ratelimit-reset{counted}"))
        for counted in _COUNTED
        if _number(headers.get(f"x-ratelimit-remaining{counted}")) == 0
    ]
    return max((wait for wait in waits if wait is not None), default=None)


def _until(value: str | None) -> float | None:
    number = _number(value)
    if number is None:
        return duration(value) if value else None
    if number > _MOMENT_MILLISECONDS:
        return number / 1000 - time.time()
    return number - time.time() if number > _MOMENT_SECONDS else number


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor
