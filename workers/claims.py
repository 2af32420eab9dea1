"""Claims of texts, and the other coordination of embedding between processes by the broker: rate limits, usage.

A claim is a key with the name of the process that embeds a text, so that a text that two processes want is paid once.
It holds for as long as that process is connected to the broker: it subscribes to a channel of its name, and the server
counts the subscribers. A process that dies loses its connection at once, and its claims with it.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import structlog

from memory.embedding.breaker import FIRST_PAUSE_SECONDS, Breaker, waste_path
from memory.embedding.coordination import UNUSUAL_SECONDS, Claims, Coordination, InFlightRequests
from memory.embedding.providers.provider import EmbeddingProvider
from memory.embedding.rate_limit import RateLimiter
from memory.status.run_files import keep_derived
from schemas.errors import BrokerUnavailable
from schemas.settings import Settings
from workers.health.rate_limit import Account
from workers.queue.connection import IMPATIENT_SECONDS, BrokerAway, BrokerClient, connect, namespace, while_away
from workers.queue.counters import FleetCounters
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Seconds after which a claim ends in any case, for frozen processes and lost machines. A request takes at most 600.
KEPT_SECONDS: Final = 660

#: Seconds to wait for the server to confirm the subscription.
_CONFIRMED_SECONDS = 1.0

_TAKE: Final = """
-- KEYS: claims; ARGV: name, seconds kept. Returns the places (from 0) of the claims of other living processes.
local denied, alive = {}, {}
for i, holder in ipairs(redis.call('MGET', unpack(KEYS))) do
  if holder and holder ~= ARGV[1] and alive[holder] == nil then
    alive[holder] = redis.call('PUBSUB', 'NUMSUB', holder)[2] > 0
  end
  if holder and holder ~= ARGV[1] and alive[holder] then
    denied[#denied + 1] = i - 1
  else
    redis.call('SET', KEYS[i], ARGV[1], 'EX', ARGV[2])
  end
end
return denied
"""


class Presence:
    """Name of this process, which the broker knows for as long as the process is connected. Thread-safe."""

    def __init__(self, client: BrokerClient, keys: Keys) -> None:
        self.name = f"{keys.prefix}:process:{secrets.token_hex(8)}"
        self._client: Any = client
        self._lock = threading.Lock()
        self._subscription: Any = None

    def ensure(self) -> None:
        """Connect, or connect again after a loss. Raises BrokerUnavailable."""
        with self._lock:
            if self._subscription is not None:
                try:
                    # A connection that was lost shows in reading.
                    self._subscription.get_message(timeout=0)
                except BrokerUnavailable:
                    self._subscription.close()
                    self._subscription = None
            if self._subscription is None:
                subscription = self._client.pubsub()
                subscription.subscribe(self.name)
                subscription.get_message(timeout=_CONFIRMED_SECONDS)
                self._subscription = subscription

    def close(self) -> None:
        """Disconnect: the claims of this process end."""
        with self._lock:
            if self._subscription is not None:
                self._subscription.close()


@while_away(release=None)  # the claims end with this process, or after `KEPT_SECONDS`
class BrokerClaims(Claims):
    """Claims on texts for one cache and identity. While the broker does not answer, every claim is granted.

    A text that this process holds is granted again: its batcher sends a text only once.
    """

    def __init__(self, client: BrokerClient, keys: Keys, presence: Presence, *, scope: str) -> None:
        self._client: Any = client
        self._keys = keys
        self._presence = presence
        self._scope = scope
        self._said = False
        self._script: Any = client.register_script(_TAKE)

    def take(self, hashes: Collection[str]) -> set[str]:
        texts = list(hashes)
        try:
            denied = self._take(texts) if texts else ()
        except BrokerUnavailable:
            denied = ()
        return set(texts).difference(texts[place] for place in denied)

    def release(self, hashes: Collection[str]) -> None:
        if hashes:
            self._client.delete(*map(self._key, hashes))

    def _take(self, hashes: Sequence[str]) -> Sequence[int]:
        try:
            self._presence.ensure()
        except BrokerAway as error:
            if not (error.answered and error.refusal):
                raise
            if not self._said:
                log.warning("claims_need_channels", error=str(error))
            self._said = True
            return ()
        keys = [self._key(text_hash) for text_hash in hashes]
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.set(key, self._presence.name, nx=True, ex=KEPT_SECONDS)
            taken_places = [place for place, granted in enumerate(pipe.execute()) if not granted]
        if not taken_places:
            return ()
        # Those of dead processes, and of this one, are granted all the same.
        denied: Sequence[int] = self._script(
            keys=[keys[place] for place in taken_places], args=[self._presence.name, KEPT_SECONDS]
        )
        return [taken_places[place] for place in denied]

    def _key(self, text_hash: str) -> str:
        return self._keys.claim(self._scope, text_hash)


def shared_limiter(
    client: BrokerClient,
    provider: EmbeddingProvider,
    *,
    waste: Breaker | None = None,
    clock: Callable[[], float] | None = None,
) -> RateLimiter:
    """Return a rate limiter with its state in the broker: `acquire` is one round trip, `report` of a failure another.

    `waste` stops it while the provider's answers are useless. `clock` replaces the server's clock, for tests.
    """
    state = Account(client, provider.account, provider.model, clock=clock)
    return RateLimiter(provider.limits, shared=state.step, breaker=waste, clock=clock or time.monotonic)


class BrokerCoordination:
    """Coordination over the broker (a `Coordinate` of `memory.embedding.coordination`). Close it after its users.

    A provider without an account has a rate limiter of this process alone. `cache_scope` names the cache that the
    processes share. `breaker_of` returns the circuit breaker for a provider's useless answers.
    """

    def __init__(
        self,
        client: BrokerClient,
        keys: Keys,
        *,
        cache_scope: str,
        breaker_of: Callable[[EmbeddingProvider], Breaker] = lambda _provider: Breaker(),
        unusual_seconds: float = UNUSUAL_SECONDS,
    ) -> None:
        self._client = client
        self._keys = keys
        self._cache_scope = cache_scope
        #: Requests of this process in flight.
        self.in_flight = InFlightRequests(unusual_seconds=unusual_seconds)
        #: Counts of this process; its owner flushes them at intervals.
        self.counters = FleetCounters(client, keys)
        self._presence = Presence(client, keys)
        self._breaker_of = breaker_of
        self._lock = threading.Lock()
        self._limiters: dict[tuple[str, str], RateLimiter] = {}

    def __call__(self, provider: EmbeddingProvider) -> Coordination:
        """Return the coordination of a provider: the same rate limiter for the same account and identity."""
        key = (provider.account, provider.identity)
        with self._lock:
            limiter = self._limiters.get(key)
            if limiter is None and provider.account:
                limiter = self._limiters[key] = shared_limiter(self._client, provider, waste=self._breaker_of(provider))
        scope = hashlib.blake2b(f"{self._cache_scope}\n{provider.identity}".encode(), digest_size=16).hexdigest()
        claims = BrokerClaims(self._client, self._keys, self._presence, scope=scope)
        return Coordination(limiter or RateLimiter(), claims, self.counters, self.in_flight)

    def close(self) -> None:
        """Publish the counts, and end all claims. The client stays open."""
        self.counters.flush()
        self._presence.close()


@contextmanager
def coordinating(
    settings: Settings,
    *,
    keeps: bool = False,
    first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    unusual_seconds: float = UNUSUAL_SECONDS,
) -> Iterator[BrokerCoordination]:
    """Yield the coordination of this home's processes, over a connection of its own with short timeouts.

    A process that `keeps` the records of useless answers writes them to the home.
    """

    def breaker_of(provider: EmbeddingProvider) -> Breaker:
        keep = keep_derived if keeps else None
        return Breaker(waste_path(settings.home, provider), keep=keep, first_pause_seconds=first_pause_seconds)

    keys = Keys(namespace(settings))
    scope = f"{socket.gethostname()}:{settings.home.absolute()}" if settings.store.url is None else "fleet"
    with connect(settings, answer_seconds=IMPATIENT_SECONDS) as client:
        coordination = BrokerCoordination(
            client, keys, cache_scope=scope, breaker_of=breaker_of, unusual_seconds=unusual_seconds
        )
        try:
            yield coordination
        finally:
            coordination.close()
