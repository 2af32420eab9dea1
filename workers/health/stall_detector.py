"""Detection of a stalled pool of workers: work waits and no worker finishes any. `/readyz` fails meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import redis
from starlette.responses import JSONResponse

from memory.telemetry.server import Route
from workers.queue.connection import broker_facts, refusal
from workers.queue.names import QUEUES, Keys
from workers.queue.pending import MOVED_KEPT_SECONDS, PendingSet


class StallDetector:
    """Time of the last finished work, by the broker's clock, shared by all workers of a namespace."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys

    def moved(self) -> None:
        """Record that a batch of vectors was finished; `PendingSet.finish` does for documents. Raises
        `redis.RedisError`."""
        self._client.set(self._keys.moved, "1", ex=MOVED_KEPT_SECONDS)

    def refusal(self) -> str | None:
        """Return the reason why the broker takes no new work, None if it does. Raises `redis.RedisError`."""
        facts = broker_facts(self._client)
        return None if facts.writable else facts.warning

    def stalled_seconds(self) -> float:
        """Return the seconds for which work has waited while no worker finished any; 0 if no work waits.

        Uncommitted documents count as waiting work, delayed messages (a provider cools down) do not. Raises
        `redis.RedisError`.
        """
        since = self._waiting_since()
        if since is None:
            return 0.0
        seconds, micros = self._client.time()
        waited = float(seconds + micros / 1e6 - since)
        left = self._client.pttl(self._keys.moved) / 1000
        return max(0.0, min(waited, MOVED_KEPT_SECONDS - left) if left > 0 else waited)

    def _waiting_since(self) -> float | None:
        marks = PendingSet(self._client, self._keys)
        times = [pending.oldest_at for agent in marks.agents() if (pending := marks.pending(agent)).documents]
        for queue in QUEUES:
            messages = self._client.hvals(self._keys.messages(queue))
            times += [json.loads(raw)["message_timestamp"] / 1000 for raw in messages]
        known = [at for at in times if at is not None]
        return min(known) if known else None


def readiness(
    detector: StallDetector, *, stalled_after_seconds: float, problems: Callable[[], Sequence[str]] = lambda: ()
) -> Route:
    """Return the route of `/readyz` of workers and of `up`.

    It answers 200, or 503 when there are `problems`, when the broker does not answer, or when work has been waiting for
    longer than `stalled_after_seconds` and no job finished. Jobs of all workers of the namespace count, so an idle
    worker is ready while others finish some.
    """

    def answer() -> JSONResponse:
        found = [*problems()]
        try:
            takes_nothing, stalled = detector.refusal(), detector.stalled_seconds()
        except redis.RedisError as error:
            found.append(refusal(error) or "the broker does not answer")
        else:
            found += [takes_nothing] if takes_nothing is not None else []
            if stalled > stalled_after_seconds:
                found.append(
                    f"work has been waiting for {stalled:.0f} s and nothing was finished; `recalld status` says why"
                )
        if found:
            return JSONResponse({"status": "not ready", "error": "; ".join(found)}, 503)
        return JSONResponse({"status": "ready"})

    return answer
