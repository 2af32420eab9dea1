"""A client that sends exactly the bytes that a test gives it, at its own pace, and may never read.

answer = said(port, b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
answer.status, answer.error       (200, "")

with HostileClient(port) as client:
    client.send(b"POST /v1/search HTTP/1.1\\r\\n")
    client.was_sent_away()
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The first answer that came; status 0 when the connection ended without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of a refusal, "" for anything else."""
        with suppress(ValueError):
            found = self.json
            if isinstance(found, dict) and set(found) == {"error"}:
                return str(found["error"])
        return ""


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """An HTTP request. A header of `headers` takes the place of the one that would be sent."""
    named = {line.partition(":")[0].lower() for line in headers}
    lines = [f"{method} {path} HTTP/1.1"]
    if "host" not in named:
        lines.append("Host: localhost")
    if body and "content-type" not in named:
        lines.append("Content-Type: application/json")
    if body and not named & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


class HostileClient:
    """One connection. `receive_bytes`: how much the system takes from the server for a client that does not read."""

    def __init__(self, port: int, *, receive_bytes: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._socket.settimeout(_PATIENCE_SECONDS)
        self._socket.connect(("127.0.0.1", port))

    def __enter__(self) -> HostileClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *pieces: bytes) -> bool:
        """Send all of it; False when the server went away meanwhile."""
        try:
            for piece in pieces:
                self._socket.sendall(piece)
        except (BrokenPipeError, ConnectionError):
            return False
        return True

    def push(self, piece: bytes) -> bool:
        """Send what the system takes without waiting; False when it takes nothing more."""
        try:
            return self._socket.send(piece, socket.MSG_DONTWAIT) > 0
        except (BlockingIOError, ConnectionError):
            return False

    def was_sent_away(self) -> bool:
        """Return True if the server has closed its side or broken the connection off. Reads nothing."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))

    def read(self) -> Answer:
        """Wait for one answer, or the end of the connection."""
        data = bytearray()
        with suppress(ConnectionError):
            while (more := self._socket.recv(65536)) != b"":
                data += more
                if (found := _answer(bytes(data))) is not None:
                    return found
        return _answer(bytes(data), ended=True) or Answer(0, {}, bytes(data))


def said(port: int, *pieces: bytes) -> Answer:
    """Return a server's answer to these bytes."""
    with HostileClient(port) as client:
        client.send(*pieces)
        return client.read()


@contextmanager
def crowd(port: int, count: int, *, first: bytes = b"") -> Iterator[list[HostileClient]]:
    """So many connections at once, each of which has sent `first`."""
    with ExitStack() as stack:
        clients = [stack.enter_context(HostileClient(port)) for _ in range(count)]
        for client in clients:
            client.send(first)
        yield clients


def held(clients: Iterable[HostileClient]) -> int:
    """Return the number of connections that the server still holds."""
    return sum(not client.was_sent_away() for client in clients)


def _answer(data: bytes, *, ended: bool = False) -> Answer | None:
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return None
    if head.startswith(b"HTTP/1.1 100"):
        return Answer(100, {}, b"")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", len(rest) if ended else 1 << 62))
    if len(rest) < length and not ended:
        return None
    return Answer(int(first.split()[1]), headers, rest[:length])
