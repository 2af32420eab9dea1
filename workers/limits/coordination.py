"""Coordination of embedding between the processes of a home, through the broker: rate limits, claims and usage."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import redis

from memory.embedding.coordination import Claims, Coordination, InFlightRequests, NoClaims
from memory.embedding.gate import Gate, LocalGate
from memory.embedding.providers.provider import EmbeddingProvider
from schemas.errors import BrokerUnavailable
from schemas.ports import Usage, UsageRecorder
from schemas.settings import Settings
from workers.health.health_store import HealthStore
from workers.limits.circuit_breaker import CircuitBreaker
from workers.limits.claims import LEASE_SECONDS, RENEWAL_SECONDS, BrokerClaims, Claimant
from workers.limits.rate_limit import BrokerGate
from workers.queue.connection import IMPATIENT_SECONDS, connect, namespace
from workers.queue.names import Keys

#: Requests whose usage is kept while the broker is away.
MOST_UNCOUNTED = 10_000


class BrokerCoordination:
    """Coordination over the broker (a `Coordinate` of `memory.embedding.coordination`). Close it after its users.

    A provider without an account has a gate of this process alone. `cache_scope` names the cache that the processes
    share. Without a cache there are no claims: a process could not read the vectors that another one paid for.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        board: HealthStore,
        *,
        cache_scope: str | None,
        reach: CircuitBreaker | None = None,
        lease_seconds: float = LEASE_SECONDS,
        renewal_seconds: float = RENEWAL_SECONDS,
    ) -> None:
        self._client = client
        self._keys = keys
        self._cache_scope = cache_scope
        #: Requests of this process in flight.
        self.asking = InFlightRequests()
        self._reach = reach or CircuitBreaker()
        self._usage = _SharedUsage(board, self._reach)
        self._claimant = Claimant(
            client, self._reach, keys, lease_seconds=lease_seconds, renewal_seconds=renewal_seconds
        )
        self._lock = threading.Lock()
        self._gates: dict[tuple[str, str], Gate] = {}
        self._claims: dict[str, Claims] = {}

    def __call__(self, provider: EmbeddingProvider) -> Coordination:
        """Return the coordination of a provider: the same gate for the same account and model."""
        with self._lock:
            return Coordination(
                gate=self._gate(provider), claims=self._claims_of(provider), usage=self._usage, asking=self.asking
            )

    def close(self) -> None:
        """Release all claims. The client stays open."""
        self._claimant.close()

    def _gate(self, provider: EmbeddingProvider) -> Gate:
        if not provider.account:
            return LocalGate(provider.limits)
        key = (provider.account, provider.model)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = BrokerGate(
                self._client, self._reach, account=provider.account, model=provider.model, limits=provider.limits
            )
        return gate

    def _claims_of(self, provider: EmbeddingProvider) -> Claims:
        if self._cache_scope is None:
            return NoClaims()
        scope = hashlib.blake2b(f"{self._cache_scope}\n{provider.identity}".encode(), digest_size=16).hexdigest()
        claims = self._claims.get(scope)
        if claims is None:
            claims = self._claims[scope] = BrokerClaims(
                self._client, self._reach, self._keys, self._claimant, scope=scope
            )
        return claims


@contextmanager
def coordinating(settings: Settings) -> Iterator[BrokerCoordination]:
    """Yield the coordination of this home's processes, over a connection of its own with short timeouts."""
    keys = Keys(namespace(settings))
    scope = f"{socket.gethostname()}:{settings.home.absolute()}" if settings.cache.enabled else None
    with connect(settings, answer_seconds=IMPATIENT_SECONDS) as client:
        coordination = BrokerCoordination(client, keys, HealthStore(client, keys), cache_scope=scope)
        try:
            yield coordination
        finally:
            coordination.close()


class _SharedUsage(UsageRecorder):
    """Usage recorder that keeps requests while the broker is away and counts them later."""

    def __init__(self, board: HealthStore, reach: CircuitBreaker) -> None:
        self._board = board
        self._reach = reach
        self._lock = threading.Lock()
        self._uncounted: list[tuple[Usage, Mapping[str, Usage], bool]] = []

    def record_usage(self, usage: Usage, *, agents: Mapping[str, Usage], queries: bool = False) -> None:
        with self._lock:
            requests, self._uncounted = [*self._uncounted, (usage, agents, queries)], []
        try:
            self._reach.ask(lambda: self._board.add_usage(requests))
        except BrokerUnavailable:
            with self._lock:
                self._uncounted = [*requests, *self._uncounted][-MOST_UNCOUNTED:]
