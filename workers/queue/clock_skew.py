"""Repair of future times in the broker, which a clock that was set back leaves in heartbeats, pauses and flags.

Else dead workers would count as alive and pauses would not end until that time. The clock of the process that looks
decides, except for expiry times, which the server counts down.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from workers.queue.names import Keys

#: Seconds by which the clocks of machines that share a broker may differ.
SKEW_SECONDS = 10.0

#: Option of a delayed message: Unix time in milliseconds at which it was delayed.
DELAYED_AT = "delayed_at"


def is_to_come(moment: float, *, now: float | None = None) -> bool:
    """Return True if a recorded Unix time lies in the future."""
    return moment > (time.time() if now is None else now) + SKEW_SECONDS


def waits_by_another_clock(message: Mapping[str, Any]) -> bool:
    """Return True if a message was delayed before the clock was set back: the end of its pause is unknown."""
    return is_to_come(message["options"].get(DELAYED_AT, 0.0) / 1000)


def mend_signs_of_life(client: Any, keys: Keys) -> None:
    """Set future heartbeats of workers to the present. Living workers send another one at once."""
    now = time.time()
    to_come = client.zrangebyscore(keys.heartbeats, (now + SKEW_SECONDS) * 1000, "+inf")
    if to_come:
        client.zadd(keys.heartbeats, dict.fromkeys(to_come, int(now * 1000)), xx=True, lt=True)


def take_turn(client: Any, key: str, *, seconds: float) -> bool:
    """Return True for one process of all in each period of `seconds`."""
    if client.set(key, "1", nx=True, px=int(seconds * 1000)):
        return True
    # The server's own clock was set back: the flag of the last turn would live too long.
    if client.pttl(key) > seconds * 1000:
        client.pexpire(key, int(seconds * 1000))
    return False
