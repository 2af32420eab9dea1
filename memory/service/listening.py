"""What comes before the first request: an open port, and tokens for those who will ask."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from memory.service.bounded_protocol import BoundedProtocol
from memory.service.bounds import Bounds, bounds_here
from memory.service.security import is_loopback
from memory.service.tokens import ensure_metrics_token, ensure_tokens, read_tokens
from schemas.errors import UserError
from schemas.settings import Settings

_BACKLOG = 512


def listen(host: str, port: int, *, key: str, advice: str) -> socket.socket:
    """Open a port; 0 takes a free one. `key` is the setting that names the host, `advice` how to choose another port.

    Raises:
        UserError: the port is taken, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"{key} {host!r} is not an address of this machine: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} of {host} is in use: stop what listens there, or {advice}") from error
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def check_tokens(settings: Settings, *, host: str, key: str) -> None:
    """See that every agent has its token: on loopback they are made, beyond it they must be there.

    Raises:
        UserError: they cannot be written, or are missing; `key` is the setting that names the host.
    """
    ids = [agent.id for agent in settings.agents]
    if is_loopback(host):
        try:
            ensure_tokens(settings.home, ids)
            ensure_metrics_token(settings.home)
        except OSError as error:
            raise UserError(f"the agents' tokens cannot be written below {settings.home}: {error.strerror}") from error
        return
    missing = [agent for agent in ids if agent not in read_tokens(settings.home, ids)]
    if missing or not ids:
        raise UserError(
            f"refusing to listen on {host} without tokens: "
            f"put one for {', '.join(missing) or 'an agent'} into {settings.home / 'run' / 'tokens'}/<agent> "
            f"(mode 0600), or use {key} = 127.0.0.1"
        )


def bounded_server(app: FastAPI, *, grace_seconds: int, bounds: Bounds | None = None) -> QuietServer:
    """A server of `app` in which no client can take more than its part.

    Args:
        app: what answers.
        grace_seconds: what running requests get to finish after a stop.
        bounds: of clients; by default those that fit this process.
    """
    known = bounds or bounds_here()
    config = uvicorn.Config(
        app,
        http=type("BoundedProtocol", (BoundedProtocol,), {"bounds": known}),
        ws="none",
        backlog=known.connections,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,
    )
    return QuietServer(config)


class QuietServer(uvicorn.Server):
    """Leaves signals alone: uvicorn would raise them once more at the end, before this process has cleaned up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change nothing."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, with room for a crowd: `backlog` is also how many are accepted before any of them is read."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)
