"""Claims on texts to embed, over all processes that share a cache: a text that two processes want is paid once."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import redis

from memory.embedding.coordination import Claims
from schemas.errors import BrokerUnavailable
from workers.limits.circuit_breaker import CircuitBreaker
from workers.queue.names import Keys

#: Seconds without a renewal after which a process counts as dead and its claims are free.
LEASE_SECONDS = 10.0

#: Seconds between two renewals of the lease.
RENEWAL_SECONDS = 3.0

#: Seconds between two sweeps of the claims of dead processes.
SWEEP_SECONDS = 60.0

#: Seconds after which unused claims expire.
_KEPT_SECONDS: Final = 3600

#: Hashes handed to one script call: a command within Lua takes about 8,000 arguments, and two are needed for each.
_SLICE = 2500

# Hashes travel as one argument: packing thousands of them takes the client longer than all the rest.
_WORDS: Final = """
local function words(text)
  local found = {}
  for word in string.gmatch(text, '%S+') do found[#found + 1] = word end
  return found
end
"""

_ALIVE: Final = """
-- KEYS: ..., claimants last
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local alive = {}
local function is_alive(owner)
  if alive[owner] == nil then
    local lease = redis.call('ZSCORE', KEYS[#KEYS], owner)
    -- No lease is so long: the clock was set back.
    alive[owner] = (lease and tonumber(lease) > now and tonumber(lease) < now + LONGEST_LEASE) or false
  end
  return alive[owner]
end
""".replace("LONGEST_LEASE", "60")

_RENEW: Final = (
    _ALIVE
    + """
-- KEYS: claimants; ARGV: owner, lease (seconds)
redis.call('ZADD', KEYS[1], string.format('%.3f', now + ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.3f', now))
"""
)

_TAKE: Final = (
    _ALIVE
    + _WORDS
    + """
-- KEYS: claims, claimants; ARGV: owner, lease (seconds), seconds kept, hashes
-- Returns the places (from 0) of the hashes that others claim.
local owner, hashes = ARGV[1], words(ARGV[4])
redis.call('ZADD', KEYS[2], string.format('%.3f', now + ARGV[2]), owner)
local owners = redis.call('HMGET', KEYS[1], unpack(hashes))
local denied, taken = {}, {}
for i, hash in ipairs(hashes) do
  local other = owners[i]
  if other and other ~= owner and is_alive(other) then
    denied[#denied + 1] = i - 1
  elseif other ~= owner then
    taken[#taken + 1] = hash
    taken[#taken + 1] = owner
  end
end
if #taken > 0 then
  redis.call('HSET', KEYS[1], unpack(taken))
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return denied
"""
)

_RELEASE: Final = (
    _WORDS
    + """
-- KEYS: claims, claimants; ARGV: owner, hashes
local hashes = words(ARGV[2])
local owners = redis.call('HMGET', KEYS[1], unpack(hashes))
local own = {}
for i, hash in ipairs(hashes) do
  if owners[i] == ARGV[1] then own[#own + 1] = hash end
end
if #own > 0 then redis.call('HDEL', KEYS[1], unpack(own)) end
"""
)

_SWEEP: Final = (
    _ALIVE
    + """
-- KEYS: claims, claimants; ARGV: cursor. Returns the next cursor.
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 1000)
local dead = {}
for i = 1, #found[2], 2 do
  if not is_alive(found[2][i + 1]) then dead[#dead + 1] = found[2][i] end
end
if #dead > 0 then redis.call('HDEL', KEYS[1], unpack(dead, 1, math.min(#dead, 4000))) end
return found[1]
"""
)


class Claimant:
    """Owner name of a process that claims texts, and the thread that renews its lease. Close it at the end."""

    def __init__(
        self,
        client: redis.Redis,
        reach: CircuitBreaker,
        keys: Keys,
        *,
        lease_seconds: float = LEASE_SECONDS,
        renewal_seconds: float = RENEWAL_SECONDS,
    ) -> None:
        self.owner = secrets.token_hex(8)
        self.lease_seconds = lease_seconds
        self._client: Any = client
        self._reach = reach
        self._key = keys.claimants
        self._renewal_seconds = renewal_seconds
        self._renew: Any = client.register_script(_RENEW)
        self._lock = threading.Lock()
        self._claims: list[BrokerClaims] = []
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def keep_alive(self, claims: BrokerClaims) -> None:
        """Renew the lease from now on, and release and sweep these claims, too."""
        with self._lock:
            if claims not in self._claims:
                self._claims.append(claims)
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._run, name="claims-alive", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and free all claims at once."""
        self._ending.set()
        if self._thread is None:
            return
        self._thread.join()
        try:
            self._reach.ask(lambda: self._client.zrem(self._key, self.owner))
        except BrokerUnavailable:
            return  # they are free when the lease expires

    def _run(self) -> None:
        swept_at = time.monotonic()
        while not self._ending.wait(self._renewal_seconds):
            with self._lock:
                claims = list(self._claims)
            try:
                self._reach.ask(lambda: self._renew(keys=[self._key], args=[self.owner, self.lease_seconds]))
                for one in claims:
                    one.release_again()
                if time.monotonic() - swept_at >= SWEEP_SECONDS:
                    swept_at = time.monotonic()
                    for one in claims:
                        one.sweep()
            except BrokerUnavailable:
                continue  # `CircuitBreaker` logs it once


class BrokerClaims(Claims):
    """Claims on texts for one cache and identity. While the broker does not answer, every claim is granted.

    A text that this process holds is granted again: its batcher sends a text only once.
    """

    def __init__(
        self, client: redis.Redis, reach: CircuitBreaker, keys: Keys, claimant: Claimant, *, scope: str
    ) -> None:
        self._reach = reach
        self._claimant = claimant
        self._keys = [keys.claims(scope), keys.claimants]
        self._take: Any = client.register_script(_TAKE)
        self._release: Any = client.register_script(_RELEASE)
        self._sweep: Any = client.register_script(_SWEEP)
        self._lock = threading.Lock()
        self._unreleased: set[str] = set()

    def take(self, hashes: Collection[str]) -> set[str]:
        self._claimant.keep_alive(self)
        granted = set(hashes)
        with self._lock:
            self._unreleased -= granted
        own = [self._claimant.owner, self._claimant.lease_seconds, _KEPT_SECONDS]
        try:
            for part in _slices(hashes):
                denied = self._ask(self._take, [*own, " ".join(part)])
                granted.difference_update(part[place] for place in denied)
        except BrokerUnavailable:
            return granted  # `CircuitBreaker` logs it once
        return granted

    def release(self, hashes: Iterable[str]) -> None:
        ended = list(hashes)
        try:
            self._let_go(ended)
        except BrokerUnavailable:
            with self._lock:
                self._unreleased.update(ended)

    def release_again(self) -> None:
        """Release claims whose release failed before. Raises BrokerUnavailable."""
        with self._lock:
            late = list(self._unreleased)
        if late:
            self._let_go(late)
            with self._lock:
                self._unreleased.difference_update(late)

    def sweep(self) -> None:
        """Delete the claims of dead processes. Raises BrokerUnavailable."""
        cursor = b"0"
        while True:
            cursor = self._ask(self._sweep, [cursor])
            if cursor == b"0":
                return

    def _let_go(self, hashes: Collection[str]) -> None:
        for part in _slices(hashes):
            self._ask(self._release, [self._claimant.owner, " ".join(part)])

    def _ask(self, script: Any, args: list[Any]) -> Any:
        return self._reach.ask(lambda: script(keys=self._keys, args=args))


def _slices(hashes: Collection[str]) -> Iterator[Sequence[str]]:
    found = list(hashes)
    for start in range(0, len(found), _SLICE):
        yield found[start : start + _SLICE]
