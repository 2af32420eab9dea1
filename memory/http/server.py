"""Listening on a port, and the server that answers there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from memory.http.deadlines import Bounds, DeadlineProtocol, bounds_here
from schemas.errors import UserError

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


class BoundedServer(uvicorn.Server):
    """Server of an application whose clients are bounded.

    Args:
        app: the application.
        grace_seconds: for running requests after a stop.
        bounds: of clients; by default those that fit this process.
    """

    def __init__(self, app: ASGIApp, *, grace_seconds: int, bounds: Bounds | None = None) -> None:
        known = bounds or bounds_here()
        config = uvicorn.Config(
            app,
            http=DeadlineProtocol.bounded(known),
            ws="none",
            # asyncio accepts so many connections at once before it reads any of them.
            backlog=known.connections,
            access_log=False,
            log_config=None,
            log_level="error",  # an invalid request is the client's business
            server_header=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn raises them once more at the end, before this process has cleaned up."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; connections that are not accepted yet wait in a queue of the usual length."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)


class ServerThread:
    """Server on a thread of its own, which answers between `start` and `stop`.

    Args:
        server: the server.
        listener: the open port; `stop` closes it.
        name: of the thread.
        failed: called with the error that ended the server.
    """

    def __init__(
        self, server: uvicorn.Server, listener: socket.socket, *, name: str, failed: Callable[[Exception], None]
    ) -> None:
        self._server = server
        self._listener = listener
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def stop(self) -> None:
        """Let running requests finish within the server's grace, and close the port."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        except Exception as error:  # noqa: BLE001 - the owner of the port logs and reports it
            self._failed(error)
