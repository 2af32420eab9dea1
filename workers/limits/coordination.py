"""Coordination of embedding between the processes of a home, through the broker: rate limits, claims and usage."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from memory.embedding.coordination import Coordination, InFlightRequests, NoClaims
from memory.embedding.providers.provider import EmbeddingProvider, ProviderLimits
from memory.embedding.rate_limit import AccountState, RateLimiter
from schemas.settings import Settings
from workers.health.account_state import Account
from workers.limits.circuit_breaker import CircuitBreaker
from workers.limits.claims import BrokerClaims, Presence
from workers.queue.connection import IMPATIENT_SECONDS, connect, namespace
from workers.queue.counters import FleetCounters
from workers.queue.names import Keys


def shared_limiter(
    client: redis.Redis,
    breaker: CircuitBreaker,
    *,
    account: str,
    model: str,
    limits: ProviderLimits | None = None,
    clock: Callable[[], float] | None = None,
) -> RateLimiter:
    """Return a rate limiter with its state in the broker: `acquire` is one round trip, `report` of a failure another.

    `clock` replaces the server's clock, for tests.
    """
    state = Account(client, account, model, clock=clock)

    def step(name: str, *arguments: object) -> AccountState:
        return breaker.ask(lambda: state.step(name, *arguments))

    return RateLimiter(limits, shared=step, clock=clock or time.monotonic)


class BrokerCoordination:
    """Coordination over the broker (a `Coordinate` of `memory.embedding.coordination`). Close it after its users.

    A provider without an account has a rate limiter of this process alone. `cache_scope` names the cache that the
    processes share. Without a cache there are no claims: a process could not read the vectors that another one paid
    for.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        cache_scope: str | None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._cache_scope = cache_scope
        #: Requests of this process in flight.
        self.asking = InFlightRequests()
        self._breaker = breaker or CircuitBreaker()
        #: Counts of this process; its owner flushes them at intervals.
        self.counters = FleetCounters(client, keys)
        self._presence = Presence(client, keys)
        self._lock = threading.Lock()
        self._limiters: dict[tuple[str, str], RateLimiter] = {}

    def __call__(self, provider: EmbeddingProvider) -> Coordination:
        """Return the coordination of a provider: the same rate limiter for the same account and model."""
        key = (provider.account, provider.model)
        with self._lock:
            if not provider.account:
                limiter = RateLimiter(provider.limits)
            elif key in self._limiters:
                limiter = self._limiters[key]
            else:
                limiter = self._limiters[key] = shared_limiter(
                    self._client, self._breaker, account=key[0], model=key[1], limits=provider.limits
                )
        if self._cache_scope is None:
            return Coordination(limiter, NoClaims(), self.counters, self.asking)
        scope = hashlib.blake2b(f"{self._cache_scope}\n{provider.identity}".encode(), digest_size=16).hexdigest()
        claims = BrokerClaims(self._client, self._breaker, self._keys, self._presence, scope=scope)
        return Coordination(limiter, claims, self.counters, self.asking)

    def close(self) -> None:
        """Publish the counts, and end all claims. The client stays open."""
        self.counters.flush()
        self._presence.close()


@contextmanager
def coordinating(settings: Settings) -> Iterator[BrokerCoordination]:
    """Yield the coordination of this home's processes, over a connection of its own with short timeouts."""
    keys = Keys(namespace(settings))
    scope = f"{socket.gethostname()}:{settings.home.absolute()}" if settings.cache.enabled else None
    with connect(settings, answer_seconds=IMPATIENT_SECONDS) as client:
        coordination = BrokerCoordination(client, keys, cache_scope=scope)
        try:
            yield coordination
        finally:
            coordination.close()
