"""Lock of a home on its namespace.

A worker that takes a document from the queue reads it from its own disk and writes the index in its own home. Workers
of two homes on one queue would each build half an index. So a process compares its home when it starts, and workers of
a second home are refused while those of the first one renew the lock. The homes of a fleet write one store: they need
no lock, and each worker shows itself by its heartbeat.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from schemas.errors import UserError
from schemas.settings import Settings
from workers.queue.connection import BrokerClient, made_once, namespace, while_away
from workers.queue.names import Keys

#: Seconds without a renewal after which the lock of a home is free.
LEASE_SECONDS = 60.0

#: Seconds for which workers that ended in order leave the lock to other workers of their home.
LEAVING_SECONDS = 10.0

_HOLD: Final = """
-- KEYS: home; ARGV: identity, milliseconds. Returns 1 if this home holds the lock now.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""


@while_away(take=None, leave=None)
class QueueTenancy:
    """Lock of a home on its namespace. Workers of one home hold it together.

    A private broker has no other homes and needs no lock. On a shared broker, a copy of a home has the same namespace.
    So the lock holds the home's id and the inode of its folder.
    """

    def __init__(self, client: BrokerClient, keys: Keys, settings: Settings) -> None:
        self._client: Any = client
        self._hold = client.register_script(_HOLD)
        self._key = keys.home
        self._settings = settings
        is_shared = settings.broker.url is not None and settings.store.url is None
        self._identity = _identity_of(settings.home) if is_shared else None

    def take(self) -> None:
        """Take the lock. A broker that is away refuses no worker.

        Raises:
            UserError: workers of another home hold it.
        """
        if not self.renew():
            raise UserError(self.refusal())

    def renew(self, *, seconds: float = LEASE_SECONDS) -> bool:
        """Renew the lock. Return False if another home holds it. Raises BrokerUnavailable."""
        if self._identity is None:
            return True
        return bool(self._hold(keys=[self._key], args=[self._identity, int(seconds * 1000)]))

    def leave(self) -> None:
        """Leave the lock to other workers of this home; without any it is free soon."""
        self.renew(seconds=LEAVING_SECONDS)

    def refusal(self) -> str:
        """Return the reason why workers of this home must not take from the queue, and the remedy."""
        name = self._settings.broker.namespace
        of_its_own = (
            "give each its own broker.namespace"
            if name is not None
            else f"where this home is a copy, delete {self._settings.home / 'namespace'} so that it gets its own"
        )
        return (
            f"workers of another home take from the queue {namespace(self._settings)!r} of this broker, and an index "
            f"has one home: {of_its_own}, or end the workers of the other home "
            f"({LEASE_SECONDS:.0f} s later it is forgotten)"
        )


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
