"""The Dramatiq broker over Redis or Valkey, tuned to recover in seconds and to idle quietly."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.middleware import CurrentMessage, Retries, ShutdownNotifications, TimeLimit
from dramatiq.worker import ConsumerThread

from memory.status.pulses import Pulses
from memory.telemetry import tracing
from workers.queue.clock_skew import DELAYED_AT
from workers.queue.names import QUEUES, Keys

#: Milliseconds without a heartbeat after which a worker's jobs go to another one.
HEARTBEAT_TIMEOUT_MS = 10_000

#: Commands out of a million that recover dead workers' jobs. An idle consumer sends one a second, so each queue is
#: checked every few seconds. The library's default takes many minutes.
MAINTENANCE_CHANCE = 500_000

#: Seconds that an idle consumer waits for the bell. A lost bell, or a stop, may go unnoticed for as long.
IDLE_SECONDS = 1.0

#: Seconds that an idle consumer waits while it holds delayed messages: no bell rings when they are due.
_DELAYED_SECONDS = 0.2

#: Seconds between two looks for messages that this process took and none of its threads got.
LOOK_SECONDS = 10.0

#: Seconds that a consumer waits while its threads have all the work they may hold.
_BUSY_SECONDS = 0.02

#: Option of a message: the trace that its job continues (W3C Trace Context).
TRACEPARENT = "traceparent"

#: Bells kept for a queue: more would wake no further consumer.
_MAX_BELLS = 16


class RetryOutbox:
    """Retries of jobs that ended while the broker took nothing; enqueued before their message is acknowledged.

    Dramatiq ignores a retry that it cannot enqueue and acknowledges the message: the work would be lost.
    """

    def __init__(self) -> None:
        #: Message id -> message and its delay in milliseconds.
        self._owed: dict[str, tuple[dramatiq.MessageProxy, int]] = {}

    def owe(self, message: dramatiq.MessageProxy, *, delay: int) -> None:
        """Keep the retry until `message` is acknowledged."""
        self._owed[message.options["redis_message_id"]] = (message, delay)

    def pay(self, broker: Any, message: dramatiq.MessageProxy) -> None:
        """Enqueue the retry of a message, if there is one. On `redis.RedisError` it stays owed."""
        name = message.options["redis_message_id"]
        if name in self._owed:
            owed, delay = self._owed[name]
            broker.enqueue(owed, delay=delay)
            del self._owed[name]


class OutboxRetries(Retries):
    """Retries with the delay of `dramatiq.Retry`, the only exception of actors. For a `DoorbellBroker`."""

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


class DoorbellConsumer(_RedisConsumer):
    """Consumer that blocks on a bell instead of polling: a job starts at once, and an idle process idles.

    A process that enqueues a message rings the queue's bell, a short list that the consumer blocks on.

    Raises:
        dramatiq.ConnectionClosed: for every failed command. Any other error would end the consumer's thread, or leave
            a message with this process for good.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)  # type: ignore[no-untyped-call]
        self._looks_at = 0.0

    def __next__(self) -> dramatiq.MessageProxy | None:
        self.broker.takes(self.queue_name)
        if self.broker.draining:
            self._give_back_what_is_cached()
            threading.Event().wait(_BUSY_SECONDS)
            return None
        # The library's own pause, which grows with the misses, would come on top.
        self.misses = 0
        with _connection_closed():
            self._give_back_what_nobody_has()
            message: dramatiq.MessageProxy | None = super().__next__()  # type: ignore[no-untyped-call]
            if message is None:
                self._wait()
            else:
                self._handed.add(message.options["redis_message_id"])
        return message

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """Acknowledge a message. Dramatiq tries again until the broker takes it and its retry."""
        if self.broker.closed:
            return
        with _connection_closed():
            self.broker.owed.pay(self.broker, message)
            super().ack(message)  # type: ignore[no-untyped-call]
        self._handed.discard(message.options["redis_message_id"])

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Reject a message. Dramatiq tries again as for `ack`."""
        if self.broker.closed:
            return
        with _connection_closed():
            super().nack(message)  # type: ignore[no-untyped-call]
        self._handed.discard(message.options["redis_message_id"])

    def requeue(self, messages: Iterable[dramatiq.Message[Any] | dramatiq.MessageProxy]) -> None:
        """Give messages back. The next consumer returns those that the broker does not take."""
        given = list(messages)
        with _connection_closed():
            super().requeue(given)  # type: ignore[no-untyped-call]
        self._handed.difference_update(message.options["redis_message_id"] for message in given)

    @property
    def _handed(self) -> set[str]:
        handed: set[str] = self.broker.handed[self.queue_name]
        return handed

    def _give_back_what_nobody_has(self) -> None:
        """Give back messages that this process took and no thread got: the broker's answer or their consumer was lost.

        Else they would count as running until this process ends.
        """
        if time.monotonic() < self._looks_at:
            return
        taken: set[bytes] = self.broker.client.smembers(
            f"{self.broker.namespace}:__acks__.{self.broker.broker_id}.{self.queue_name}"
        )
        cached = {dramatiq.Message.decode(data).options["redis_message_id"] for data in self.message_cache if data}
        lost = [name for name in map(bytes.decode, taken) if name not in self._handed and name not in cached]
        if lost:
            self.broker.do_requeue(self.queue_name, *lost)
        self._looks_at = time.monotonic() + LOOK_SECONDS

    def _give_back_what_is_cached(self) -> None:
        """Give back messages that were fetched and not started. The library would forget them at its end."""
        cached, self.message_cache = self.message_cache, []
        if cached:
            self.requeue([dramatiq.Message.decode(data) for data in cached])

    def _wait(self) -> None:
        if self.outstanding_message_count >= self.prefetch:
            threading.Event().wait(_BUSY_SECONDS)
        else:
            delayed = self.outstanding_message_count and self.queue_name.endswith(".DQ")
            seconds = _DELAYED_SECONDS if delayed else IDLE_SECONDS
            self.broker.client.blpop([bell(self.broker.namespace, self.queue_name)], timeout=seconds)


class DoorbellBroker(RedisBroker):
    """RedisBroker that wakes a consumer for every enqueued message.

    `pulses` get every turn of a consumer. Once `draining`, no message is fetched. Once `closed`, the ends of jobs are
    not reported to the broker any more: their messages were given back.
    """

    pulses: Pulses | None = None
    draining: bool = False
    closed: bool = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call] # RedisBroker's constructor has no annotations
        #: Ids of messages that threads of this process have, by their queue.
        self.handed: defaultdict[str, set[str]] = defaultdict(set)
        #: Retries that the broker did not take when the job was over.
        self.owed = RetryOutbox()

    def close(self) -> None:
        """Close the connections. Ends of jobs are not reported any more."""
        self.closed = True
        super().close()

    def takes(self, queue: str) -> None:
        """Record that a consumer of this queue takes its turn, as it does at least every `IDLE_SECONDS`."""
        if self.pulses is not None:
            self.pulses.of(f"consumer of {queue}").busy("waits for messages")

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> DoorbellConsumer:
        """Return a consumer of a queue. The library asks for a new one after a lost connection."""
        # A consumer with a broker that refuses every command is not stuck.
        self.takes(queue_name)
        if queue_name.endswith(".DQ"):
            self.handed[queue_name].clear()  # the library forgets what was delayed
        return self.consumer_class(self, queue_name, prefetch, timeout)

    @property
    def consumer_class(self) -> type[DoorbellConsumer]:
        """Class of the consumers."""
        return DoorbellConsumer

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Enqueue a message, then ring. A bell that is lost delays the message by `IDLE_SECONDS`."""
        if delay is not None:
            message = message.copy(options={DELAYED_AT: time.time() * 1000})
        if isinstance(threading.current_thread(), ConsumerThread):
            with _connection_closed():  # a delayed message whose time has come
                enqueued: dramatiq.Message[Any] = super().enqueue(message, delay=delay)
        else:
            enqueued = super().enqueue(message, delay=delay)
        with suppress(redis.RedisError):
            self.ring(enqueued.queue_name)
        return enqueued

    def ring(self, queue: str) -> None:
        """Wake a consumer of a queue."""
        with self.client.pipeline(transaction=False) as pipe:
            key = bell(self.namespace, queue)
            pipe.rpush(key, 1)
            pipe.ltrim(key, -_MAX_BELLS, -1)
            pipe.execute()


def bell(namespace: str, queue: str) -> str:
    """Return the key of a queue's bell."""
    return f"{namespace}:{queue}.bell"


def make_broker(client: redis.Redis, keys: Keys) -> DoorbellBroker:
    """Return a broker with every queue declared and no actors.

    A job that raises `dramatiq.Retry` is delayed as it says (`workers.queue.broker`).
    """
    broker = DoorbellBroker(
        client=client,
        namespace=keys.dramatiq,
        maintenance_chance=MAINTENANCE_CHANCE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
        middleware=[TimeLimit(), ShutdownNotifications(), CurrentMessage(), OutboxRetries()],
    )
    for queue in QUEUES:
        broker.declare_queue(queue)
    return broker


def message(actor: str, queue: str, *args: Any) -> dramatiq.Message[None]:
    """Return a message for an actor that this process need not declare; its job continues the present trace."""
    trace = tracing.traceparent()
    options = {TRACEPARENT: trace} if trace is not None else {}
    return dramatiq.Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options=options)


@contextmanager
def _connection_closed() -> Iterator[None]:
    # A full disk or memory, a replica, or a frozen server passes like a lost connection.
    try:
        yield
    except redis.RedisError as error:
        raise dramatiq.ConnectionClosed(error) from None  # type: ignore[no-untyped-call]
