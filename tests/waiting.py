"""Waiting for something to become true, instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds between two questions whose answer takes no time.
LONGEST_PAUSE_SECONDS = 0.05


def wait_until(predicate: Callable[[], T], *, timeout: float = 120.0, what: str = "", pause: float = 0.01) -> T:
    """Return the predicate's first true value, asked for every `pause` seconds, and less often later on.

    Asking takes processor time from what is waited for: it takes half of one processor at most.

    `timeout` is no statement about speed: it ends a test that is red anyway, on a machine that does ten other things.

    Raises:
        AssertionError: it was not true within `timeout` seconds.
    """
    begun = time.monotonic()
    tick = threading.Event()
    while True:
        asked = time.monotonic()
        value = predicate()
        if value:
            return value
        now = time.monotonic()
        if now > begun + timeout:
            raise AssertionError(f"not within {timeout} s: {what or predicate}")
        tick.wait(max(pause, now - asked, min((now - begun) / 20, LONGEST_PAUSE_SECONDS)))


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
