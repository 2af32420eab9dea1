"""Workers of one namespace share one home.

Whoever takes a document from the queue reads it from its own disk and writes the index in its own home. Workers of two
homes that took from one queue would leave each with half an index, and status with no word of it; so the second home
is refused while workers of the first are alive.
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

#: Seconds after which a home whose workers did not renew their claim is taken to be gone.
LEASE_SECONDS = 30.0

#: Seconds between two renewals: who waits for the claim to run out sees within so many that it will not.
RENEW_SECONDS = 3.0

#: Seconds for which workers that ended in order leave the claim to others of their home; those renew it before.
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
    """The claim of a home on its namespace.

    A private broker has no other homes, and needs no claim. On a shared one the namespace that a home made for itself
    is no proof: a copy of the home has it, too. So the home is told by its id and by which folder it is.
    """

    def __init__(self, client: redis.Redis, keys: Keys, settings: Settings) -> None:
        self._client: Any = client
        self._hold = client.register_script(_HOLD)
        self._key = keys.home
        self._settings = settings
        self._identity = _identity_of(settings.home) if settings.broker.url is not None else None
        #: Whether workers of another home took it over.
        self.lost = False

    def take(self, stop: threading.Event | None = None) -> None:
        """Claim the namespace, or join the workers of this home that hold it. A broker that is away is no reason.

        The claim of a home whose workers are gone is waited for, until it has run out or `stop` is set.

        Raises:
            UserError: workers of another home hold it.
        """
        stop = stop or threading.Event()
        with suppress(redis.RedisError):
            before = left = self._held_elsewhere()
            if left:
                log.info("waiting_for_another_homes_workers", seconds=round(left, 1))
            while left:
                # A claim that gets longer is renewed: its workers live.
                if left > before or stop.wait(RENEW_SECONDS / 6):
                    raise UserError(self.refusal())
                before, left = left, self._held_elsewhere()

    def renew(self) -> bool:
        """Go on holding it; False when another home does. Raises `redis.RedisError`."""
        return not self._held_elsewhere()

    def refusal(self) -> str:
        """Why workers of this home must not take from the queue, and what to do."""
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
        """Renew it while the block runs: a sweeper that keeps house for long must not let it run out.

        Afterwards it is left to other workers of this home; without any it runs out soon. `lost` is set when workers of
        another home took it over, after these could not renew it for too long.
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
        """For how many seconds more workers of another home hold it; 0 when this home does."""
        if self._identity is None:
            return 0.0
        left = self._hold(keys=[self._key], args=[self._identity, int(LEASE_SECONDS * 1000)])
        return float(left / 1000)


def _identity_of(home: Path) -> str:
    """A name of the home that no other one has, a copy of it neither.

    Whatever the containers that share the folder call it and themselves, its device and inode are the same for all.
    """
    try:
        # A copy of the home has the same word.
        word, folder = made_once(home / "id"), home.stat()
    except OSError as error:
        raise UserError(
            f"cannot use {home / 'id'}: {error.strerror}; workers need a home of their own to write to"
        ) from None
    return f"{word}:{folder.st_dev:x}:{folder.st_ino:x}"
