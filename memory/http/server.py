"""Server of every port: listening, and uvicorn with limits of time, size and number for slow or abusive clients.

uvicorn bounds neither the arrival of a request's head or body nor the reading of its answer, nor the size of a head.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, Literal, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from memory.http.origin_guard import ANSWER_HEADERS
from schemas.errors import UserError

#: Connections at most, where the system's limit of open files allows so many.
_MOST_CONNECTIONS = 512

#: Part of the open files that connections may take; the rest is for indexes.
_PART_OF_OPEN_FILES = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one server for its clients.

    Attributes:
        connections: open at a time; as many again may read that they are refused.
        head_seconds: from the first byte of a request to the end of its headers, and for an idle connection.
        body_seconds: from there to the end of the body.
        answer_seconds: for reading an answer.
        leaving_seconds: for reading a refusal.
        head_bytes: of a request line and its headers together.
        headers: of a request, and its trailers.
        body_bytes: of a body with its transfer encoding (`origin_guard.MAX_BODY_BYTES` bounds the body itself), and of
            what a refused client may still send.
    """

    connections: int = _MOST_CONNECTIONS
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    answer_seconds: float = 60.0
    leaving_seconds: float = 2.0
    head_bytes: int = 64 * 1024
    headers: int = 100
    body_bytes: int = 16 * 1024 * 1024


def bounds_here() -> Bounds:
    """Return the default bounds, with as many connections as this process may have open files for."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = _MOST_CONNECTIONS if limit == resource.RLIM_INFINITY else limit // _PART_OF_OPEN_FILES
    return Bounds(connections=min(_MOST_CONNECTIONS, allowed))


class DeadlineProtocol(HttpToolsProtocol):
    """One connection. Make a subclass for each server with `bounded`.

    A client has a time for each phase: to send a head, to send a body, to read an answer, and to read a refusal.
    """

    bounds: ClassVar[Bounds]

    @classmethod
    def bounded(cls, bounds: Bounds) -> type[DeadlineProtocol]:
        """Return the protocol of one server."""
        return type("BoundedProtocol", (cls,), {"bounds": bounds})

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._phase: Literal["head", "body", "answer", "leaving"] = "head"
        self._phase_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._enter("head", self.bounds.head_seconds)
        if len(self.connections) > 2 * self.bounds.connections:
            self.transport.abort()
        elif len(self.connections) > self.bounds.connections:
            self._refuse(503, "too many connections are open here; try again in a moment")

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(self._phase, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._phase == "head" and not self._phase_bytes:
            self._enter("head", self.bounds.head_seconds)
        before = self._phase
        if before != "leaving":  # else the client may finish sending, and then reads why it was refused
            super().data_received(data)
        if self._phase == before:
            self._phase_bytes += len(data)
            if before in {"body", "leaving"} and self._phase_bytes > self.bounds.body_bytes:
                self.transport.abort()
            elif before in {"head", "answer"} and self._phase_bytes > self.bounds.head_bytes:
                self._refuse(431, self._too_long)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.bounds.headers:
            self._refuse(431, f"a request has at most {self.bounds.headers} headers")
            raise ValueError  # ends the parser

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.bounds.head_bytes:
            self._refuse(431, self._too_long)
            raise ValueError  # ends the parser
        super().on_headers_complete()
        self._enter("body", self.bounds.body_seconds)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:
            self._enter("head", self.bounds.head_seconds)
        else:
            self._enter("answer", self.bounds.answer_seconds if self.flow.write_paused else None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase == "answer" and self.cycle.response_complete:
            self._enter("head", self.bounds.head_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._phase == "answer":
            self._enter("answer", self.bounds.answer_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._phase == "answer":
            self._enter("answer", None)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        self._refuse(400, "this is not a valid HTTP request")

    @property
    def _too_long(self) -> str:
        return f"a request's line and headers have at most {self.bounds.head_bytes} bytes"

    def _enter(self, phase: Literal["head", "body", "answer", "leaving"], seconds: float | None) -> None:
        """Begin a phase, with a time limit for the client if it is its turn."""
        self._phase, self._phase_bytes = phase, 0
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._late, seconds) if seconds is not None else None

    def _late(self, seconds: float) -> None:
        if self._phase not in {"head", "body"} or self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._phase == "head" and not self._phase_bytes:
            self.transport.close()
        else:
            self._refuse(408, f"the request's {self._phase} did not arrive within {seconds:g} seconds")

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer in place of the application and let the client read it; drop a client that has part of an answer."""
        if self._phase == "leaving" or self.transport.is_closing():
            return
        if self._phase == "body" and not self.pipeline and not self.cycle.response_started:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        elif self._phase != "head":
            self.transport.abort()
            return
        body = json.dumps({"error": sentence}).encode()
        headers = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
        lines = [f"{name}: {value}" for name, value in {**headers, **ANSWER_HEADERS}.items()]
        self._enter("leaving", self.bounds.leaving_seconds)
        self.transport.write("\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "", ""]).encode())
        self.transport.write(body)
        with contextlib.suppress(OSError):  # the client is gone
            self.transport.write_eof()


#: Connections that wait to be accepted.
_BACKLOG = 512

#: Seconds between two looks whether to end.
_TICK_SECONDS = 0.25


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
    """Server of an application whose clients are bounded, by default as fits this process."""

    def __init__(self, app: ASGIApp, *, grace_seconds: int, bounds: Bounds | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=DeadlineProtocol.bounded(bounds or bounds_here()),
            ws="none",
            backlog=_BACKLOG,
            access_log=False,
            log_config=None,
            log_level="error",  # an invalid request is the client's business
            server_header=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        super().__init__(config)

    async def main_loop(self) -> None:
        """Look for the end. uvicorn does so ten times a second, which was a quarter of all idle CPU."""
        while not await self.on_tick(0):
            await asyncio.sleep(_TICK_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn raises them once more at the end, before this process has cleaned up."""
        yield


class ServerThread:
    """Server on a thread of its own, whose port is open from the constructor on. It answers between `start` and `stop`.

    `section` of the settings names the host and the port in errors; port 0 takes a free one. `failed` gets the error
    that ended the server. The constructor raises:
        UserError: the port is taken, or the address is not this machine's.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        section: str,
        grace_seconds: int,
        failed: Callable[[Exception], None],
        bounds: Bounds | None = None,
    ) -> None:
        self._listener = listen(host, port, key=f"{section}.host", advice=f"choose another with {section}.port")
        self.port: int = self._listener.getsockname()[1]
        self._server = BoundedServer(app, grace_seconds=grace_seconds, bounds=bounds)
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name=f"{section} server", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
