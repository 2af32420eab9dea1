"""What a clock that was set back leaves in the broker: signs of life, pauses and flags of a time yet to come.

Until that time comes again the dead would count as alive and pauses would not end. Whoever keeps the time here is
the process that looks, except for what the server itself counts down.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from workers.queue.names import Keys

#: Seconds by which the clocks of machines that share a broker may differ.
SKEW_SECONDS = 10.0

#: Option of a delayed message: when it was delayed, Unix time in milliseconds.
DELAYED_AT = "delayed_at"


def is_to_come(moment: float, *, now: float | None = None) -> bool:
    """Whether a Unix time that was written down as the present has not come yet."""
    return moment > (time.time() if now is None else now) + SKEW_SECONDS


def waits_by_another_clock(message: Mapping[str, Any]) -> bool:
    """Whether a message waits out a pause that was reckoned before the clock was set back: nobody knows its end."""
    return is_to_come(message["options"].get(DELAYED_AT, 0.0) / 1000)


def mend_signs_of_life(client: Any, keys: Keys) -> None:
    """Let every worker's sign of life be of the present at the latest; the living give another one at once."""
    now = time.time()
    to_come = client.zrangebyscore(keys.heartbeats, (now + SKEW_SECONDS) * 1000, "+inf")
    if to_come:
        client.zadd(keys.heartbeats, dict.fromkeys(to_come, int(now * 1000)), xx=True, lt=True)


def take_turn(client: Any, key: str, *, seconds: float) -> bool:
    """Whether this process is the one of all to do something every so many seconds."""
    if client.set(key, "1", nx=True, px=int(seconds * 1000)):
        return True
    # The server's own clock was set back: whoever had the last turn would keep it for all that time.
    if client.pttl(key) > seconds * 1000:
        client.pexpire(key, int(seconds * 1000))
    return False
