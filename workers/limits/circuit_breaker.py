"""Circuit breaker for callers that can go on without the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis
import structlog

from schemas.errors import BrokerUnavailable
from workers.queue.connection import in_words, refusal

log = structlog.get_logger(__name__)

#: Seconds without requests after the broker did not answer: each request may take a second to fail.
REST_SECONDS = 2.0

T = TypeVar("T")


class CircuitBreaker:
    """Circuit breaker of one process: after a failure, requests to the broker fail at once for a while. Thread-safe."""

    def __init__(self, *, rest_seconds: float = REST_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._away_until: float | None = None

    def ask(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which asks the broker.

        Raises:
            BrokerUnavailable: the broker did not answer, now or a moment ago.
        """
        if self._away_until is not None and self._clock() < self._away_until:
            raise BrokerUnavailable("the broker did not answer a moment ago")
        try:
            answer = work()
        except redis.RedisError as error:
            first, self._away_until = self._away_until is None, self._clock() + self._rest_seconds
            # Status shows a server that is away. A server that answers with an error needs the operator.
            if first and (isinstance(error, redis.ResponseError) or refusal(error) is not None):
                log.warning("broker_refuses", error=str(error))
            elif first:
                log.debug("broker_away", error=str(error))
            raise BrokerUnavailable(in_words(error)) from error
        self._away_until = None
        return answer
