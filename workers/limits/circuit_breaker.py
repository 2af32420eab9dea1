"""Whether the broker answers, for those who can go on without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis
import structlog

from schemas.errors import BrokerUnavailable
from workers.queue.broker_errors import in_words, refusal

log = structlog.get_logger(__name__)

#: Seconds during which a broker that did not answer is left alone: finding out may take a second each time.
REST_SECONDS = 2.0

T = TypeVar("T")


class CircuitBreaker:
    """Asks the broker, and leaves it alone for a while after it did not answer. Thread-safe, shared by a process."""

    def __init__(self, *, rest_seconds: float = REST_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._away_until = 0.0
        self._said = False

    def ask(self, work: Callable[[], T]) -> T:
        """Return what `work` finds out from the broker.

        Raises:
            BrokerUnavailable: it did not answer, now or a moment ago.
        """
        with self._lock:
            if self._clock() < self._away_until:
                raise BrokerUnavailable("the broker did not answer a moment ago")
        try:
            answer = work()
        except redis.RedisError as error:
            self._failed(error)
            raise BrokerUnavailable(in_words(error)) from error
        self._said = False
        return answer

    def _failed(self, error: redis.RedisError) -> None:
        with self._lock:
            self._away_until = self._clock() + self._rest_seconds
            first, self._said = not self._said, True
        if not first:
            return
        # A server that is away is said elsewhere; one that answers with an error needs somebody to look at it.
        if isinstance(error, redis.ResponseError) or refusal(error) is not None:
            log.warning("broker_refuses", error=str(error))
        else:
            log.debug("broker_away", error=str(error))
