"""Lock of a home on its namespace.

A worker that takes a document from the queue reads it from its own disk and writes the index in its own home. Workers
of two homes on one queue would each build half an index. So workers of a second home are refused while workers of the
first one are alive.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import redis
import structlog

from schemas.errors import UserError
from schemas.settings import Settings
from workers.queue.connection import made_once, namespace
from workers.queue.names import Keys

log = structlog.get_logger(__name__)

#: Seconds without a renewal after which the lock of a home is free.
LEASE_SECONDS = 30.0

#: Seconds between two renewals.
RENEW_SECONDS = 3.0

#: Seconds for which workers that ended in order leave the lock to other workers of their home.
LEAVING_SECONDS = 10.0

_HOLD: Final = """
-- KEYS: home; ARGV: identity, milliseconds. Returns 0, or for how many milliseconds more another home holds it.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 or left > tonumber(ARGV[2]) then  -- the server's clock was set back
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        left = tonumber(ARGV[2])
    end
    return math.max(left, 1)
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 0
"""


class HomeLock:
    """Lock of a home on its namespace.

    A private broker has no other homes and needs no lock. On a shared broker, a copy of a home has the same namespace.
    So the lock holds the home's id and the inode of its folder.
    """

    def __init__(self, client: redis.Redis, keys: Keys, settings: Settings) -> None:
        self._client: Any = client
        self._hold = client.register_script(_HOLD)
        self._key = keys.home
        self._settings = settings
        self._identity = _identity_of(settings.home) if settings.broker.url is not None else None
        #: True once workers of another home took the lock.
        self.lost = False

    def take(self, stop: threading.Event | None = None) -> None:
        """Take the lock, or join the workers of this home that hold it. A broker that is away refuses no worker.

        While another home holds it, wait until its lease expires or `stop` is set.

        Raises:
            UserError: workers of another home renew it.
        """
        stop = stop or threading.Event()
        with suppress(redis.RedisError):
            before = left = self._held_elsewhere()
            if left:
                log.info("waiting_for_another_homes_workers", seconds=round(left, 1))
            while left:
                # A lease that gets longer was renewed: its workers live.
                if left > before or stop.wait(RENEW_SECONDS / 6):
                    raise UserError(self.refusal())
                before, left = left, self._held_elsewhere()

    def renew(self) -> bool:
        """Renew the lease. Return False if another home holds the lock. Raises `redis.RedisError`."""
        return not self._held_elsewhere()

    def refusal(self) -> str:
        """Return why workers of this home must not take from the queue, and what to do."""
        named = self._settings.broker.namespace
        of_its_own = (
            "give each its own broker.namespace"
            if named is not None
            else f"where this home is a copy, delete {self._settings.home / 'namespace'} so that it gets its own"
        )
        return (
            f"workers of another home take from the queue {namespace(self._settings)!r} of this broker, and an index "
            f"has one home: {of_its_own}, or end the workers of the other home "
            f"({LEASE_SECONDS:.0f} s later it is forgotten)"
        )

    @contextmanager
    def held(self, *, lost: threading.Event) -> Iterator[None]:
        """Renew the lease in a thread while the block runs.

        Afterwards other workers of this home may renew it; without any it expires soon. `lost` is set if workers of
        another home took the lock because these could not renew it in time.
        """
        if self._identity is None:
            yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._renew, args=(done, lost), name="home-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=RENEW_SECONDS)
            with suppress(redis.RedisError):
                if self._client.get(self._key) == self._identity.encode():
                    self._client.pexpire(self._key, int(LEAVING_SECONDS * 1000))

    def _renew(self, done: threading.Event, lost: threading.Event) -> None:
        while not done.wait(RENEW_SECONDS):
            try:
                if not self.renew():
                    self.lost = True
                    lost.set()
                    return
            except redis.RedisError as error:
                log.debug("home_claim_not_renewed", error=str(error))

    def _held_elsewhere(self) -> float:
        """Return the seconds for which another home still holds the lock; 0 if this home holds it."""
        if self._identity is None:
            return 0.0
        left = self._hold(keys=[self._key], args=[self._identity, int(LEASE_SECONDS * 1000)])
        return float(left / 1000)


def _identity_of(home: Path) -> str:
    """Return a name of the home that differs from those of all other homes, copies included.

    Containers that share the folder see the same device and inode, under any path.
    """
    try:
        # A copy of the home has the same word, but another inode.
        word, folder = made_once(home / "id"), home.stat()
    except OSError as error:
        raise UserError(
            f"cannot use {home / 'id'}: {error.strerror}; workers need a home of their own to write to"
        ) from None
    return f"{word}:{folder.st_dev:x}:{folder.st_ino:x}"
