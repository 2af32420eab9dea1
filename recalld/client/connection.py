"""Exchanges with one service: a connection and a deadline for each, and the proof of the home's service.

Clients import this module when they are made, so that a command that finds no service loads no `http.client`.
"""

from __future__ import annotations

import hmac
import io
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected
from math import inf
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from .address import Address, running_service
from .errors import ServiceTimedOut, ServiceUnavailable, ServiceUnproven

if TYPE_CHECKING:
    from ssl import SSLContext

#: Seconds, of those of the whole exchange, and bytes that a service gets to prove that it is the one of its home.
PROOF_SECONDS = 5.0
PROOF_BYTES = 16 * 1024

_HEADERS = {"Accept": "application/json", "User-Agent": "recalld-client"}
_CLOSED = "the connection was closed without an answer"

#: Bytes of an answer that are read at a time.
_PIECE_BYTES = 16 * 1024


class Response(NamedTuple):
    """Answer to a request. `goes_on`: the connection carries another one. `location`: target of a redirect."""

    status: int
    body: bytes
    goes_on: bool
    location: str | None

    def json(self) -> Any:
        """Return the value of a JSON answer, None for any other answer."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Transport:
    """Exchanges with one service, each over a connection of its own. Safe to use from several threads."""

    def __init__(
        self, address: Address, *, connect_timeout_seconds: float, ssl_context: SSLContext | None = None
    ) -> None:
        self.address = address
        #: Folder whose service is asked: its address is looked up for each connection, which must prove itself.
        self.home: Path | None = None
        self._connect_timeout_seconds = connect_timeout_seconds
        self._ssl_context = ssl_context

    def exchange(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, seconds: float
    ) -> Response:
        """Send a request and read its answer, within so many seconds. `target` is path and query, quoted.

        The seconds of a home's service include its connection and its proof.

        Raises:
            ServiceUnavailable: no answer, not in time, or none of recalld's.
        """
        connection, deadline = None, time.monotonic() + seconds
        try:
            secret = self._secret()
            connect_seconds = (
                self._connect_timeout_seconds if secret is None else min(self._connect_timeout_seconds, seconds)
            )
            connection = _Connection(self.address, self._tls(), timeout_seconds=connect_seconds)
            if secret is None:
                deadline = time.monotonic() + seconds
            elif not connection.proves(secret, deadline=deadline):
                raise ServiceUnproven(
                    f"what answers at {self.address.authority} is not the recalld service of {self.home} and was asked "
                    "nothing; restart `recalld up`"
                )
            return connection.exchange(method, target, headers, body, deadline=deadline)
        except _NotHttp:
            raise self.not_recalld() from None
        except _Late:
            raise ServiceTimedOut(
                f"recalld at {self.address.authority} timed out: no answer within {seconds:g} seconds; ask again, or "
                "allow more time"
            ) from None
        except OSError as error:
            raise self._no_answer(error) from error
        finally:
            if connection is not None:
                connection.disconnect()

    def not_recalld(self) -> ServiceUnavailable:
        """Return the error for an answer of another program."""
        return ServiceUnavailable(
            f"what answers at {self.address.authority} is not a recalld service; correct the address"
        )

    def _secret(self) -> str | None:
        """Look up the address of a home's service; return the secret that it has to know, None for a given address."""
        if self.home is None:
            return None
        service = running_service(self.home)
        if service is None:
            raise ServiceUnavailable(f"no recalld service runs for {self.home}; start it with `recalld up`")
        self.address = Address(service.host, service.port)  # another one after a restart
        return service.secret

    def _tls(self) -> SSLContext | None:
        if self.address.secure and self._ssl_context is None:
            import ssl

            self._ssl_context = ssl.create_default_context()
        return self._ssl_context if self.address.secure else None

    def _no_answer(self, error: OSError) -> ServiceUnavailable:
        if self.address.secure:
            from ssl import SSLCertVerificationError

            if isinstance(error, SSLCertVerificationError):
                return ServiceUnavailable(
                    f"the certificate of {self.address.authority} is not trusted ({error.verify_message}); "
                    "pass an ssl_context= that knows who issued it"
                )
        return ServiceUnavailable(
            f"no recalld service answers at {self.address.authority} ({error or type(error).__name__}); "
            "start it with `recalld up`, or correct the address"
        )


class Call:
    """Call that one thread makes and another thread may cancel."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._cancelled = False
        self._socket: socket.socket | None = None

    def uses(self, open_socket: socket.socket | None) -> None:
        """Name the socket that the call waits for, None for no socket.

        Raises:
            ConnectionAbortedError: the call was cancelled.
        """
        with self._lock:
            self._socket = open_socket
            if self._cancelled:
                raise ConnectionAbortedError("the call was cancelled")

    def cancel(self) -> None:
        """End the call: wake it if it waits for a socket, let it begin nothing else."""
        with self._lock:
            self._cancelled = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)


#: The call that this context makes for an AsyncClient.
CALL: ContextVar[Call | None] = ContextVar("recalld_call", default=None)


class _NotHttp(Exception):
    """Bytes that are no HTTP answer, or more than wanted."""


class _Late(Exception):
    """Deadline that passed, or a service that has too many clients to answer before it."""


class _Connection(io.RawIOBase):
    """Connection of one call, as the socket of `http.client`. Reads and writes of one exchange share a deadline."""

    def __init__(self, address: Address, ssl_context: SSLContext | None, *, timeout_seconds: float) -> None:
        _use(None)
        self._deadline = 0.0
        self._http = HTTPConnection(address.host, address.port)
        self._http.sock = self
        self._socket = socket.create_connection((address.host, address.port), timeout_seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ssl_context is not None:
                self._socket = ssl_context.wrap_socket(
                    self._socket, server_hostname=address.host, do_handshake_on_connect=False
                )
                _use(self._socket)
                self._socket.do_handshake()
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close the socket."""
        self._socket.close()

    def proves(self, secret: str, *, deadline: float) -> bool:
        """Return True if the service answers a challenge with the proof that it knows the secret."""
        nonce = os.urandom(16).hex()
        target = f"/v1/proof/{nonce}"
        try:
            deadline = min(deadline, time.monotonic() + PROOF_SECONDS)
            response = self.exchange("GET", target, {}, None, deadline=deadline, most_bytes=PROOF_BYTES)
        except _NotHttp:
            return False
        if response.status == 503:  # too many clients
            raise _Late
        proof = {"proof": hmac.new(secret.encode(), nonce.encode(), "sha256").hexdigest()}
        return response.status == 200 and response.json() == proof and response.goes_on

    def exchange(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        deadline: float,
        most_bytes: float = inf,
    ) -> Response:
        """Send a request and read its answer of at most `most_bytes`, both before the deadline.

        Raises:
            _Late
            _NotHttp: what came is no answer.
            OSError: the connection broke.
        """
        try:
            _use(self._socket)
            self._deadline = deadline
            self._http.request(method, target, body, {**_HEADERS, **headers})
            answer = self._http.getresponse()
            content = bytearray()
            while len(content) <= most_bytes and (piece := answer.read(_PIECE_BYTES)):
                content += piece
            _use(None)
        except socket.timeout:  # not TimeoutError before Python 3.10
            raise _Late from None
        except (IncompleteRead, RemoteDisconnected):
            raise ConnectionError(_CLOSED) from None
        except (HTTPException, ValueError):
            raise _NotHttp from None
        if len(content) > most_bytes:
            raise _NotHttp
        if answer.length:
            raise ConnectionError(_CLOSED)
        goes_on = answer.isclosed() and not answer.will_close
        return Response(answer.status, bytes(content), goes_on, answer.getheader("location"))

    def sendall(self, data: bytes) -> None:
        """Write; a service that refuses early closes before it took all, and its answer can still be read."""
        self._limit()
        with suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader of one answer."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the received bytes, or wait for some."""
        self._limit()
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: `http.client` closes its socket while the answer is unread."""

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        self._socket.settimeout(left)


def _use(open_socket: socket.socket | None) -> None:
    call = CALL.get()
    if call is not None:
        call.uses(open_socket)
