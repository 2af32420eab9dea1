"""Repairs of faults of Dramatiq 2.2 with Redis, each with a test in tests/integration/test_refused_writes.py.

1. *Lost retries.* `Retries.after_process_message` enqueues the next attempt. If Redis refuses that (a full disk, a
   replica, a timeout), `Broker.emit_after` logs the error and goes on, and the worker acknowledges the message: the job
   is gone. `ReliableBroker.retry` keeps such an attempt, and the consumer enqueues it before it acknowledges.
2. *Lost fetches.* `fetch` moves messages to the worker's set of unacknowledged ones on the server. If its answer is
   lost, or the consumer restarts with messages in its cache, no thread gets them, and they count as running while the
   process lives. `ReliableConsumer` compares that set with the messages it handed out, and requeues the rest.
3. *Dead consumers.* `_RedisConsumer` turns `redis.ConnectionError` alone into `ConnectionClosed`. `redis.ResponseError`
   (MISCONF, READONLY, OOM, NOREPLICAS) escapes: from `fetch` it drops the delayed messages of the consumer, from `ack`
   the message stays unacknowledged, and a delayed message is lost when its time comes. `BrokerAway` is a
   `ConnectionClosed`: after every error of the client, Dramatiq tries again.
4. *A warning for each worker.* Each `Worker` of a process adds a `_WorkerMiddleware`, and the broker warns of all but
   the first one. Several workers on different queues are supported.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.worker import _WorkerMiddleware

from schemas.errors import BrokerUnavailable

#: Option of a delayed message: Unix time in milliseconds at which it was delayed.
DELAYED_AT = "delayed_at"

#: Seconds between two looks for messages that this process took and none of its threads got.
LOOK_SECONDS = 10.0


class ReliableConsumer(_RedisConsumer):
    """Consumer that loses no message.

    Raises:
        dramatiq.ConnectionClosed: for every failed command.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)  # type: ignore[no-untyped-call]
        self._looks_at = 0.0

    def __next__(self) -> dramatiq.MessageProxy | None:
        self._give_back_lost()
        message: dramatiq.MessageProxy | None = super().__next__()  # type: ignore[no-untyped-call]
        if message is not None:
            self._handed.add(message.options["redis_message_id"])
        return message

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """Acknowledge a message after its retry is enqueued. Dramatiq tries again until the broker takes both."""
        if self.broker.closed:
            return
        self.broker.retry_owed(message)
        super().ack(message)  # type: ignore[no-untyped-call]
        self._handed.discard(message.options["redis_message_id"])

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Reject a message. Dramatiq tries again as for `ack`."""
        if self.broker.closed:
            return
        super().nack(message)  # type: ignore[no-untyped-call]
        self._handed.discard(message.options["redis_message_id"])

    def requeue(self, messages: Iterable[dramatiq.Message[Any] | dramatiq.MessageProxy]) -> None:
        """Give messages back. The next consumer returns those that the broker does not take."""
        given = list(messages)
        super().requeue(given)  # type: ignore[no-untyped-call]
        self._handed.difference_update(message.options["redis_message_id"] for message in given)

    def give_back_cached(self) -> None:
        """Give back messages that were fetched and not started."""
        cached, self.message_cache = self.message_cache, []
        if cached:
            self.requeue([dramatiq.Message.decode(data) for data in cached])

    @property
    def _handed(self) -> set[str]:
        handed: set[str] = self.broker.handed[self.queue_name]
        return handed

    def _give_back_lost(self) -> None:
        if time.monotonic() < self._looks_at:
            return
        unacknowledged: set[bytes] = self.broker.client.smembers(
            f"{self.broker.namespace}:__acks__.{self.broker.broker_id}.{self.queue_name}"
        )
        cached = {dramatiq.Message.decode(data).options["redis_message_id"] for data in self.message_cache if data}
        lost_names = [
            name for name in map(bytes.decode, unacknowledged) if name not in self._handed and name not in cached
        ]
        if lost_names:
            self.broker.do_requeue(self.queue_name, *lost_names)
        self._looks_at = time.monotonic() + LOOK_SECONDS


class ReliableBroker(RedisBroker):
    """Broker of `ReliableConsumer`s. Once `closed`, the ends of jobs are not reported: their messages went back."""

    closed: bool = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call] # RedisBroker's constructor has no annotations
        #: Ids of messages that threads of this process have, by their queue.
        self.handed: defaultdict[str, set[str]] = defaultdict(set)
        # Id of a message -> its next attempt, and the delay in milliseconds.
        self._owed: dict[str, tuple[dramatiq.Message[Any], int]] = {}

    def close(self) -> None:
        """Close the connections. Ends of jobs are not reported any more."""
        self.closed = True
        super().close()

    def add_middleware(self, middleware: dramatiq.Middleware, **place: Any) -> None:
        """Add a middleware; several workers are no reason for a warning."""
        if isinstance(middleware, _WorkerMiddleware):
            self.middleware.append(middleware)
            for queue in self.get_declared_queues():
                middleware.after_declare_queue(self, queue)
            for queue in self.get_declared_delay_queues():
                middleware.after_declare_delay_queue(self, queue)
        else:
            super().add_middleware(middleware, **place)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Any:
        """Return a consumer of a queue. The library asks for a new one after a lost connection."""
        if queue_name.endswith(".DQ"):
            self.handed[queue_name].clear()  # the library forgets what was delayed
        return super().consume(queue_name, prefetch, timeout)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Enqueue a message, `delay` milliseconds later."""
        if delay is not None:
            message = message.copy(options={DELAYED_AT: time.time() * 1000})
        return super().enqueue(message, delay=delay)

    def retry(self, message: dramatiq.MessageProxy, *, seconds: float) -> None:
        """Let a job come again, also if the broker takes nothing now."""
        options = {"retries": int(message.options.get("retries", 0)) + 1}
        again: dramatiq.Message[Any] = message.copy(options=options)
        delay = int(seconds * 1000)
        try:
            self.enqueue(again, delay=delay)
        except BrokerUnavailable:
            self._owed[message.options["redis_message_id"]] = again, delay

    def retry_owed(self, message: dramatiq.MessageProxy) -> None:
        """Enqueue the attempt that `retry` could not. Without the broker it stays owed."""
        name = message.options["redis_message_id"]
        if name in self._owed:
            again, delay = self._owed[name]
            self.enqueue(again, delay=delay)
            del self._owed[name]
