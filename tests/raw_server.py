"""A server that answers with exactly the bytes that a test gives it."""

from __future__ import annotations

import hmac
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: Reads the request, then closes the connection without a word.
DROP: Final = "drop"
#: Reads the request, then says nothing until the other side has gone.
HANG: Final = "hang"
#: Reads the beginning of the request only, answers 413 and closes, which breaks off whoever still sends.
REFUSE_EARLY: Final = "refuse early"

#: What is done with one request: a word from above, the answer, its pieces, or what makes it from the request.
Turn = str | bytes | Sequence[bytes] | Callable[[bytes], bytes]


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """An HTTP answer with its length."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


def proof(secret: str) -> Callable[[bytes], bytes]:
    """The turn of a service that proves to be the one with this secret."""

    def proved(request: bytes) -> bytes:
        nonce = request.split()[1].rpartition(b"/")[2]
        return answer(json.dumps({"proof": hmac.new(secret.encode(), nonce, "sha256").hexdigest()}).encode())

    return proved


def announce(home: Path, server: RawServer, **more: object) -> None:
    """Write the entry of a service of this home that lives and listens where the server does."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    entry = {"host": "127.0.0.1", "port": int(server.url.rpartition(":")[2]), "pid": os.getpid(), **more}
    (home / "run" / "service.json").write_text(json.dumps(entry), "utf-8")


@dataclass
class RawServer:
    """`connections[n]` are the requests that connection n brought. `gone` is set once a client left a HANG."""

    url: str = ""
    connections: list[list[bytes]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    closed: int = 0

    @property
    def requests(self) -> list[bytes]:
        """All requests, connection by connection."""
        return [request for connection in self.connections for request in connection]


@contextmanager
def raw_server(*script: Sequence[Turn], tls: ssl.SSLContext | None = None) -> Iterator[RawServer]:
    """Serve on a free port; `script[n]` are the turns of connection n, after which it is closed."""
    state = RawServer()
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if tls else "http"
    state.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    threads: list[threading.Thread] = []

    def accept() -> None:
        for turns in script:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            requests: list[bytes] = []
            state.connections.append(requests)
            thread = threading.Thread(target=serve, args=(connection, turns, requests))
            thread.start()
            threads.append(thread)

    def serve(plain: socket.socket, turns: Sequence[Turn], requests: list[bytes]) -> None:
        plain.settimeout(20)
        with plain, suppress(OSError):
            connection = tls.wrap_socket(plain, server_side=True) if tls else plain
            with connection:
                for turn in turns:
                    request = _request(connection, whole=turn != REFUSE_EARLY)
                    if not request:
                        break
                    requests.append(request)
                    _take(connection, turn(request) if callable(turn) else turn, state, stop)
                    if isinstance(turn, str):
                        break
        state.closed += 1

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield state
    finally:
        stop.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for thread in threads:
            thread.join()


def _request(connection: socket.socket, *, whole: bool) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while whole and len(body) < length:
        more = connection.recv(65536)
        if not more:
            break
        body += more
    return head + b"\r\n\r\n" + body


def _take(
    connection: socket.socket, turn: str | bytes | Sequence[bytes], state: RawServer, stop: threading.Event
) -> None:
    if turn == HANG:
        while connection.recv(65536):
            pass
        state.gone.set()
    elif turn == REFUSE_EARLY:
        connection.sendall(answer(b'{"error": "too large"}', "Connection: close", status="413 Too Large"))
    elif isinstance(turn, bytes):
        connection.sendall(turn)
    elif not isinstance(turn, str):
        for piece in turn:
            connection.sendall(piece)
            if stop.wait(0.02):
                return
