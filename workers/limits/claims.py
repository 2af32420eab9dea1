"""Claims on texts to embed, over all processes that share a cache: a text that two processes want is paid once.

A claim is a key with the name of the process that embeds the text. It holds for as long as that process is connected
to the broker: it subscribes to a channel of its name, and the server counts the subscribers. A process that dies loses
its connection at once, and its claims with it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final

import redis
import structlog

from memory.embedding.coordination import Claims
from schemas.errors import BrokerUnavailable
from workers.limits.circuit_breaker import CircuitBreaker
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

#: Seconds after which a claim ends in any case, for frozen processes and lost machines. A request takes at most 120.
KEPT_SECONDS: Final = 180

#: Seconds to wait for the server to confirm the subscription.
_CONFIRMED_SECONDS = 1.0

_TAKE: Final = """
-- KEYS: claims; ARGV: name, seconds kept. Returns the places (from 0) of the claims of other living processes.
local denied, alive = {}, {}
for i, key in ipairs(KEYS) do
  if not redis.call('SET', key, ARGV[1], 'NX', 'EX', ARGV[2]) then
    local holder = redis.call('GET', key)
    if holder ~= ARGV[1] and alive[holder] == nil then
      alive[holder] = redis.call('PUBSUB', 'NUMSUB', holder)[2] > 0
    end
    if holder ~= ARGV[1] and alive[holder] then
      denied[#denied + 1] = i - 1
    else
      redis.call('SET', key, ARGV[1], 'EX', ARGV[2])
    end
  end
end
return denied
"""


class Presence:
    """Name of this process, which the broker knows for as long as the process is connected. Thread-safe."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.name = f"{keys.prefix}:process:{secrets.token_hex(8)}"
        self._client: Any = client
        self._lock = threading.Lock()
        self._subscription: Any = None

    def ensure(self) -> None:
        """Connect, or connect again after a loss. Raises `redis.RedisError`."""
        with self._lock:
            if self._subscription is not None:
                try:
                    # A connection that was lost shows in reading.
                    self._subscription.get_message(timeout=0)
                except redis.RedisError:
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


class BrokerClaims(Claims):
    """Claims on texts for one cache and identity. While the broker does not answer, every claim is granted.

    A text that this process holds is granted again: its batcher sends a text only once.
    """

    def __init__(
        self, client: redis.Redis, breaker: CircuitBreaker, keys: Keys, presence: Presence, *, scope: str
    ) -> None:
        self._client: Any = client
        self._breaker = breaker
        self._keys = keys
        self._presence = presence
        self._scope = scope
        self._said = False
        self._script: Any = client.register_script(_TAKE)

    def take(self, hashes: Collection[str]) -> set[str]:
        wanted = list(hashes)
        try:
            denied = self._breaker.ask(lambda: self._take(wanted)) if wanted else ()
        except BrokerUnavailable:
            denied = ()  # `CircuitBreaker` logs it once
        return set(wanted).difference(wanted[place] for place in denied)

    def release(self, hashes: Collection[str]) -> None:
        if hashes:
            try:
                self._breaker.ask(lambda: self._client.delete(*map(self._key, hashes)))
            except BrokerUnavailable:
                return  # they end with this process, or after `KEPT_SECONDS`

    def _take(self, hashes: Sequence[str]) -> Sequence[int]:
        try:
            self._presence.ensure()
        except redis.exceptions.NoPermissionError as error:
            if not self._said:
                log.warning("claims_need_channels", error=str(error))
            self._said = True
            return ()
        denied: Sequence[int] = self._script(
            keys=[self._key(text_hash) for text_hash in hashes], args=[self._presence.name, KEPT_SECONDS]
        )
        return denied

    def _key(self, text_hash: str) -> str:
        return self._keys.claim(self._scope, text_hash)
