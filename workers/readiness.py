"""Readiness of workers and of `up` (`/readyz`): fails while work waits and no job finishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import redis

from memory.telemetry.server import Page, Route
from workers.health.stall_detector import StallDetector
from workers.queue.connection import refusal


def readiness(
    movement: StallDetector, *, stalled_after_seconds: float, problems: Callable[[], Sequence[str]] = lambda: ()
) -> Route:
    """Return the route of `/readyz`.

    It answers 200, or 503 when there are `problems`, when the broker does not answer, or when work has been waiting for
    longer than `stalled_after_seconds` and no job finished. Jobs of all workers of the namespace count, so an idle
    worker is ready while others finish some.
    """

    def answer() -> Page:
        reason = _why_not(movement, stalled_after_seconds, problems)
        if reason is None:
            return Page.of({"status": "ready"})
        return Page.of({"status": "not ready", "error": reason}, status=503)

    return answer


def _why_not(movement: StallDetector, limit: float, problems: Callable[[], Sequence[str]]) -> str | None:
    found = [*problems()]
    try:
        takes_nothing = movement.refusal()
        stalled = movement.stalled_seconds()
    except redis.RedisError as error:
        return "; ".join([*found, refusal(error) or "the broker does not answer"])
    if takes_nothing is not None:
        found.append(takes_nothing)
    if stalled > limit:
        found.append(f"work has been waiting for {stalled:.0f} s and nothing was finished; `recalld status` says why")
    return "; ".join(found) or None
