"""The Dramatiq broker over Redis or Valkey, tuned to recover in seconds and to idle quietly."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

import dramatiq
import structlog
from dramatiq.middleware import CurrentMessage, ShutdownNotifications, TimeLimit

from memory.status.processes import Pulses
from memory.telemetry import tracing
from schemas.errors import BrokerUnavailable
from workers.queue.connection import BrokerClient
from workers.queue.dramatiq_fixes import ReliableBroker, ReliableConsumer
from workers.queue.names import JOB_SCHEMA, QUEUES, SCHEMA, TRACEPARENT, Keys

log = structlog.get_logger(__name__)

#: Milliseconds without a heartbeat after which a worker's jobs go to another one.
HEARTBEAT_TIMEOUT_MS = 10_000

#: Commands out of a million that recover dead workers' jobs. An idle consumer sends one a second, so each queue is
#: checked every few seconds. The library's default takes many minutes.
MAINTENANCE_CHANCE = 500_000

#: Seconds that an idle consumer waits for the bell. A lost bell, or a stop, may go unnoticed for as long.
IDLE_SECONDS = 1.0

#: Seconds that an idle consumer waits while it holds delayed messages: no bell rings when they are due.
_DELAYED_SECONDS = 0.2

#: Seconds that a consumer waits while its threads have all the work they may hold.
_BUSY_SECONDS = 0.02

#: Seconds until a job that this version cannot do is offered to the workers again.
LEFT_SECONDS = 5.0

#: Bells kept for a queue: more would wake no further consumer.
_MAX_BELLS = 16


_PASS: Final = f"""
-- KEYS: turns, queue, bell; ARGV: message
if redis.call('LINDEX', KEYS[1], 0) ~= ARGV[1] then return end
redis.call('LPOP', KEYS[1])
local following = redis.call('LINDEX', KEYS[1], 0)
if following then
  redis.call('RPUSH', KEYS[2], following)
  redis.call('RPUSH', KEYS[3], 1)
  redis.call('LTRIM', KEYS[3], {-_MAX_BELLS}, -1)
end
"""


class DoorbellConsumer(ReliableConsumer):
    """Consumer that blocks on a bell instead of polling: a job starts at once, and an idle process idles.

    A process that enqueues a message rings the queue's bell, a short list that the consumer blocks on.
    """

    #: True if the queue was empty after the last fetch.
    _drained = False

    def __next__(self) -> dramatiq.MessageProxy | None:
        self.broker.takes(self.queue_name)
        if self.broker.draining:
            self.give_back_cached()
            threading.Event().wait(_BUSY_SECONDS)
            return None
        fetches = not self.message_cache
        if fetches and self.outstanding_message_count >= self.prefetch:
            threading.Event().wait(_BUSY_SECONDS)
            return None
        if fetches and self._drained:
            delayed = self.outstanding_message_count and self.queue_name.endswith(".DQ")
            seconds = _DELAYED_SECONDS if delayed else IDLE_SECONDS
            self.broker.client.blpop([self.broker.bell(self.queue_name)], timeout=seconds)
        # The library's own pause, which grows with the misses, would come on top.
        self.misses = 0
        message = super().__next__()
        if fetches:
            self._drained = self.outstanding_message_count < self.prefetch
        if message is None or self.queue_name.endswith(".DQ"):
            return message
        self.broker.pass_turn(message)
        if message.options.get(SCHEMA, 1) <= JOB_SCHEMA:
            return message
        self._leave(message)
        return None

    def _leave(self, message: dramatiq.MessageProxy) -> None:
        """Leave a job to workers of a later version: it comes back to the queue after a pause."""
        self.broker.enqueue(message.copy(), delay=int(LEFT_SECONDS * 1000))
        self.ack(message)
        if not self.broker.left_some:
            log.warning("jobs_left_to_later_version", schema=message.options[SCHEMA], known=JOB_SCHEMA)
        self.broker.left_some = True


class DoorbellBroker(ReliableBroker):
    """Broker that wakes a consumer for every enqueued message.

    `pulses` get every turn of a consumer. Once `draining`, no message is fetched. `left_some`: jobs were left to
    workers of a later version.
    """

    keys: Keys
    pulses: Pulses | None = None
    draining: bool = False
    left_some: bool = False

    def takes(self, queue: str) -> None:
        """Record that a consumer of this queue takes its turn, as it does at least every `IDLE_SECONDS`."""
        if self.pulses is not None:
            self.pulses.of(f"consumer of {queue}").busy("waits for messages")

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> DoorbellConsumer:
        """Return a consumer of a queue."""
        # A consumer with a broker that refuses every command is not stuck.
        self.takes(queue_name)
        consumer: DoorbellConsumer = super().consume(queue_name, prefetch, timeout)
        return consumer

    @property
    def consumer_class(self) -> type[DoorbellConsumer]:
        """Class of the consumers."""
        return DoorbellConsumer

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Enqueue a message, then ring. A bell that is lost delays the message by `IDLE_SECONDS`."""
        enqueued = super().enqueue(message, delay=delay)
        with suppress(BrokerUnavailable):
            self.ring(enqueued.queue_name)
        return enqueued

    def ring(self, queue: str) -> None:
        """Wake a consumer of a queue."""
        key = self.bell(queue)
        if self.client.rpush(key, 1) > _MAX_BELLS:
            self.client.ltrim(key, -_MAX_BELLS, -1)

    def pass_turn(self, message: dramatiq.MessageProxy) -> None:
        """Let the next message of a tenant into the queue, once its first one was taken."""
        if turns := self.keys.turns(message.queue_name, str(message.args[0]) if message.args else ""):
            places = [turns, self.keys.queue(message.queue_name), self.bell(message.queue_name)]
            self.client.eval(_PASS, len(places), *places, message.options["redis_message_id"])

    def bell(self, queue: str) -> str:
        """Return the key of a queue's bell."""
        return self.keys.bell(queue)


def make_broker(client: BrokerClient, keys: Keys) -> DoorbellBroker:
    """Return a broker with every queue declared, without actors and without a policy for failures."""
    broker = DoorbellBroker(
        client=client,
        namespace=keys.dramatiq,
        maintenance_chance=MAINTENANCE_CHANCE,
        heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
        middleware=[TimeLimit(), ShutdownNotifications(), CurrentMessage()],
    )
    broker.keys = keys
    for queue in QUEUES:
        broker.declare_queue(queue)
    return broker


def message(actor: str, queue: str, *args: Any) -> dramatiq.Message[None]:
    """Return a message for an actor that this process need not declare; its job continues the present trace."""
    trace = tracing.traceparent()
    options: dict[str, Any] = {SCHEMA: JOB_SCHEMA, **({TRACEPARENT: trace} if trace is not None else {})}
    return dramatiq.Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options=options)
