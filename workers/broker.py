"""The Dramatiq broker over Redis or Valkey, tuned to recover in seconds and to idle quietly."""

from __future__ import annotations

from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage, Retries, ShutdownNotifications, TimeLimit

from schemas.documents import Lane
from workers.names import QUEUES, Keys

#: Milliseconds without a sign of life after which a worker's jobs go to another one.
HEARTBEAT_TIMEOUT_MS = 10_000

#: Commands out of a million that look after dead workers' jobs: with the polling below, a look every
#: few seconds on each queue. The library's default takes many minutes.
MAINTENANCE_CHANCE = 200_000

#: Longest pause in milliseconds between two looks at an empty queue. A live job starts within this time; the others
#: may wait a little, and a delayed message is never urgent.
_IDLE_POLL_MS = {Lane.LIVE.value: 40, Lane.BACKFILL.value: 250}
_IDLE_POLL_OTHER_MS = 500
_IDLE_POLL_DELAYED_MS = 500


class QuietRedisBroker(RedisBroker):
    """RedisBroker whose idle consumers poll as often as their queue deserves."""

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:  # noqa: ARG002
        if queue_name.endswith(".DQ"):
            pause = _IDLE_POLL_DELAYED_MS
        else:
            pause = _IDLE_POLL_MS.get(queue_name, _IDLE_POLL_OTHER_MS)
        return super().consume(queue_name, prefetch, pause)


def make_broker(client: redis.Redis, keys: Keys) -> dramatiq.Broker:
    """Return a broker with every queue declared and no actors.

    Dramatiq's own retries are off: a job that raises `dramatiq.Retry` is delayed as it says, and actors
    let nothing else out (`workers.actors`).
    """
    broker = QuietRedisBroker(  # type: ignore[no-untyped-call] # RedisBroker's constructor has no annotations
        client=client,
        namespace=keys.dramatiq,
        maintenance_chance=MAINTENANCE_CHANCE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
        middleware=[TimeLimit(), ShutdownNotifications(), CurrentMessage(), Retries(retry_when=_only_when_asked)],
    )
    for queue in QUEUES:
        broker.declare_queue(queue)
    return broker


def message(actor: str, queue: str, *args: Any) -> dramatiq.Message[None]:
    """Return a message for an actor that this process need not know."""
    return dramatiq.Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options={})


def _only_when_asked(retries: int, error: BaseException) -> bool:  # noqa: ARG001 - Dramatiq's signature
    return isinstance(error, dramatiq.Retry)
