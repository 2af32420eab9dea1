"""Events from outside on their way to the producers."""

from __future__ import annotations

import json
from typing import Any

import redis

from schemas.errors import BrokerUnavailable
from schemas.ports import Event
from workers.names import Keys

#: Events kept while no producer takes them. An event is a hint: losing one costs nothing but time.
MAX_WAITING = 10_000


class BrokerInbox:
    """`schemas.ports.EventInbox` as a list in the broker."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client: Any = client
        self._key = keys.inbox

    def put(self, event: Event) -> None:
        """Leave one event; raises BrokerUnavailable."""
        body = json.dumps({"kind": event.kind, "agent": event.agent, "paths": event.paths})
        try:
            with self._client.pipeline() as pipe:
                pipe.rpush(self._key, body)
                pipe.ltrim(self._key, -MAX_WAITING, -1)
                pipe.execute()
        except redis.RedisError as error:
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def take(self, timeout_seconds: float) -> Event | None:
        """Wait for one event; None after the timeout or when the broker does not answer."""
        try:
            found = self._client.blpop([self._key], timeout=timeout_seconds)
        except redis.RedisError:
            return None
        if found is None:
            return None
        body = json.loads(found[1])
        return Event(kind=str(body["kind"]), agent=str(body["agent"]), paths=tuple(map(str, body["paths"])))
