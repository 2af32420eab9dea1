"""Workers of one namespace share one home.

Whoever takes a document from the queue reads it from its own disk and writes the index in its own home. Workers of two
homes that took from one queue would leave each with half an index, and status with no word of it; so the second home
is refused while workers of the first are alive.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
import structlog

from schemas.errors import UserError
from schemas.settings import Settings
from workers.names import Keys

log = structlog.get_logger(__name__)

#: Seconds after which a home whose workers did not renew their claim is taken to be gone.
LEASE_SECONDS = 30.0


class HomeClaim:
    """The claim of a home on its namespace. A namespace that was made for the home has no others, and no claim."""

    def __init__(self, client: redis.Redis, keys: Keys, settings: Settings) -> None:
        self._client: Any = client
        self._key = keys.home
        self._namespace = settings.broker.namespace
        self._id = _id_of(settings.home) if self._namespace is not None else ""

    def take(self) -> None:
        """Claim the namespace, or join the workers of this home that hold it. A broker that is away is no reason.

        Raises:
            UserError: workers of another home hold it.
        """
        with suppress(redis.RedisError):
            if not self.renew():
                raise UserError(
                    f"workers of another home take from the queue {self._namespace!r} (broker.namespace) of this "
                    "server; an index has one home: run these workers there, with its disk, or give this home its own "
                    f"namespace (a home that is gone is forgotten after {LEASE_SECONDS:.0f} s)"
                )

    def renew(self) -> bool:
        """Go on holding it; False when another home does. Raises `redis.RedisError`."""
        if self._namespace is None:
            return True
        milliseconds = int(LEASE_SECONDS * 1000)
        if self._client.set(self._key, self._id, nx=True, px=milliseconds):
            return True
        if self._client.get(self._key) != self._id.encode():
            return False
        self._client.pexpire(self._key, milliseconds)
        return True


def _id_of(home: Path) -> str:
    """A name of the home that no other one has, made once."""
    path = home / "id"
    with suppress(FileNotFoundError):
        return path.read_text("ascii").strip()
    home.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".id.{secrets.token_hex(4)}")
    draft.write_text(secrets.token_hex(8), "ascii")
    try:
        # A link fails if another process was first; then its name counts.
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text("ascii").strip()
