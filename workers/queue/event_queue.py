"""Events from outside on their way to the producers."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

import redis

from schemas.errors import BrokerUnavailable
from schemas.ports import Event
from workers.queue.broker_errors import in_words
from workers.queue.names import Keys

#: Events kept while no producer takes them. An event is a hint: losing one costs nothing but time.
MAX_WAITING = 10_000

#: Seconds that an answer is kept for whoever asked, who may have gone.
ANSWER_SECONDS = 60


class BrokerInbox:
    """`schemas.ports.EventInbox` as a list in the broker."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client
        self._key = keys.inbox

    def put(self, event: Event) -> None:
        """Leave one event; raises BrokerUnavailable."""
        body = json.dumps({"kind": event.kind, "agent": event.agent, "paths": event.paths, "ticket": event.ticket})
        try:
            with self._client.pipeline() as pipe:
                pipe.rpush(self._key, body)
                pipe.ltrim(self._key, -MAX_WAITING, -1)
                pipe.execute()
        except redis.RedisError as error:
            raise BrokerUnavailable(in_words(error)) from error

    def take(self, timeout_seconds: float) -> Event | None:
        """Wait for one event; None after the timeout or when the broker does not answer."""
        try:
            found = self._client.blpop([self._key], timeout=timeout_seconds)
        except redis.RedisError:
            return None
        if found is None:
            return None
        body = json.loads(found[1])
        ticket = body.get("ticket")
        return Event(
            kind=str(body["kind"]),
            agent=str(body["agent"]),
            paths=tuple(map(str, body["paths"])),
            ticket=str(ticket) if ticket is not None else None,
        )

    def ask(self, event: Event, timeout_seconds: float) -> bool:
        """See `EventInbox.ask`. The answer comes in a list of its own, which ends by itself."""
        ticket = uuid.uuid4().hex
        try:
            self.put(replace(event, ticket=ticket))
            return self._client.blpop([self._answers(ticket)], timeout=max(timeout_seconds, 0.001)) is not None
        except (BrokerUnavailable, redis.RedisError):
            return False

    def answer(self, event: Event) -> None:
        """See `EventInbox.answer`."""
        if event.ticket is None:
            return
        with suppress(redis.RedisError), self._client.pipeline() as pipe:
            pipe.rpush(self._answers(event.ticket), "done")
            pipe.expire(self._answers(event.ticket), ANSWER_SECONDS)
            pipe.execute()

    def _answers(self, ticket: str) -> str:
        return f"{self._key}:{ticket}"
