"""Connection to the broker's server, and the namespace of a home within it."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import ExponentialBackoff

from memory.status.private_broker import socket_path
from schemas.errors import UserError
from schemas.settings import Settings
from workers.queue.broker_errors import RetryWhatPasses, TlsConnection

__all__ = ["IMPATIENT_SECONDS", "PATIENT_SECONDS", "connect", "namespace", "socket_path"]

#: A word made once for a home. Homes with an empty word would share one namespace.
_WORD = re.compile(r"[!-~]{1,200}")

#: Seconds that a caller which needs the broker waits for an answer.
PATIENT_SECONDS = 30.0

#: Seconds that a caller which can go on without the broker waits for an answer, retries included.
IMPATIENT_SECONDS = 1.0


def connect(settings: Settings, *, answer_seconds: float = PATIENT_SECONDS) -> redis.Redis:
    """Return a client of the configured server, else of the private one. Does not connect yet.

    The client retries a broken connection at once, and a second time with a long `answer_seconds`. Then it raises
    `redis.ConnectionError`.
    """
    patient = answer_seconds > IMPATIENT_SECONDS
    url = settings.broker.url.get_secret_value() if settings.broker.url else f"unix://{socket_path(settings.home)}"
    try:
        client = redis.Redis.from_url(
            url,
            socket_connect_timeout=min(2.0, answer_seconds),
            socket_timeout=answer_seconds if patient else answer_seconds / 2,
            retry=RetryWhatPasses(ExponentialBackoff(cap=0.2, base=0.02), retries=2 if patient else 1),
        )
    except ValueError as error:
        raise UserError(f"broker.url (or REDIS_URL) is not a Redis URL: {error}", exit_code=2) from None
    pool = client.connection_pool
    if issubclass(pool.connection_class, redis.SSLConnection):
        pool.connection_class = TlsConnection
    return client


def namespace(settings: Settings) -> str:
    """Return the prefix under which this home keeps its keys, so that homes can share one server.

    Without `broker.namespace` it is a random name, made once and kept in the home.
    """
    if settings.broker.namespace:
        return settings.broker.namespace
    try:
        return made_once(settings.home / "namespace")
    except OSError as error:
        raise UserError(
            f"cannot use {settings.home / 'namespace'}: {error.strerror}; repair that, or choose another folder with "
            "--home or RECALLD_HOME"
        ) from None


def made_once(path: Path) -> str:
    """Return the random word in a file of the home. Make a missing file, and set a damaged one aside.

    Raises:
        OSError: the file cannot be read or written.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        word = ""
        with suppress(IsADirectoryError, PermissionError):
            word = path.read_text(encoding="ascii", errors="replace").strip()
        if _WORD.fullmatch(word):
            return word
        path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns()}"))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fresh.write_text(secrets.token_hex(8), encoding="ascii")
    try:
        # The link fails if another process was first: its word counts.
        path.hardlink_to(fresh)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return path.read_text(encoding="ascii").strip()
