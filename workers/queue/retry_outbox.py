"""Retries of jobs that ended while the broker took nothing: they are enqueued before their message is over.

The library enqueues a retry, looks away when that fails, and acknowledges the message: its work would be nobody's.
"""

from __future__ import annotations

from typing import Any

import dramatiq
import redis
from dramatiq.middleware import Retries


class OwedRetries:
    """Messages that have to come again, and the milliseconds until then, by the id of the message that is not over."""

    def __init__(self) -> None:
        self._owed: dict[str, tuple[dramatiq.MessageProxy, int]] = {}

    def owe(self, message: dramatiq.MessageProxy, *, delay: int) -> None:
        """Keep it until `message` is acknowledged."""
        self._owed[message.options["redis_message_id"]] = (message, delay)

    def pay(self, broker: Any, message: dramatiq.MessageProxy) -> None:
        """Enqueue what is owed for a message, if anything. Raises `redis.RedisError`; it is owed then as before."""
        name = message.options["redis_message_id"]
        if name in self._owed:
            owed, delay = self._owed[name]
            broker.enqueue(owed, delay=delay)
            del self._owed[name]


class RetriesThatLast(Retries):
    """Delays a job that raises `dramatiq.Retry` as it says; actors let nothing else out (`workers.actors`).

    For a `workers.queue.broker.DoorbellBroker`.
    """

    def __init__(self) -> None:
        super().__init__(retry_when=_only_when_asked)

    def after_process_message(
        self,
        broker: Any,
        message: dramatiq.MessageProxy,
        *,
        result: object = None,
        exception: BaseException | None = None,
    ) -> None:
        """See `Retries`."""
        try:
            super().after_process_message(broker, message, result=result, exception=exception)  # type: ignore[no-untyped-call]
        except redis.RedisError:
            if not isinstance(exception, dramatiq.Retry):
                raise
            broker.owed.owe(message, delay=exception.delay or 0)


def _only_when_asked(retries: int, error: BaseException) -> bool:  # noqa: ARG001 - Dramatiq's signature
    return isinstance(error, dramatiq.Retry)
