"""One HTTP/1.1 exchange as bytes: the request to send, and the answer read from whatever pieces arrive. No I/O.

Both clients carry these bytes, so both read answers alike. Messages are those of RFC 9112.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import NamedTuple

#: Bytes of a line of the answer's head at most, and lines of one.
MAX_LINE_BYTES = 64 * 1024
MAX_HEADER_LINES = 200


class NotHttp(Exception):
    """What came is no HTTP answer."""


class Incomplete(Exception):
    """The connection ended before the answer did."""


class Response(NamedTuple):
    """An answer. `reusable`: the connection may carry another request. `location`: where a redirect leads."""

    status: int
    body: bytes
    reusable: bool
    location: str | None = None


def request_bytes(
    method: str, target: str, *, authority: str, token: str | None = None, content: bytes | None = None
) -> bytes:
    """A whole request. `target` is path and query, quoted; `content` is JSON."""
    lines = [
        f"{method} {target} HTTP/1.1",
        f"Host: {authority}",
        "Accept: application/json",
        "User-Agent: recalld-client",
    ]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if content is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (content or b"")


def reading(*, most_bytes: float = inf) -> Generator[None, bytes, Response]:
    """Read one answer: start it, then send it every piece that arrives, and b"" at the connection's end.

    Returns the answer as soon as it is whole.

    Raises:
        NotHttp: the bytes are no HTTP answer, or more than `most_bytes`.
        Incomplete: the end came too early.
    """
    incoming = _Incoming(most_bytes)
    version, status, headers = yield from _head(incoming)
    while 100 <= status < 200 and status != 101:
        version, status, headers = yield from _head(incoming)
    stays = "close" not in _tokens(headers, "connection") and (
        version == b"HTTP/1.1" or "keep-alive" in _tokens(headers, "connection")
    )
    codings = _tokens(headers, "transfer-encoding")
    lengths = set(headers.get("content-length", ()))
    if status in (101, 204, 304):
        body = b""
        stays = stays and status != 101
    elif codings:
        if codings != ["chunked"]:
            raise NotHttp("an unknown transfer coding")
        body = yield from _chunks(incoming)
    elif lengths:
        body = yield from incoming.exactly(_length(lengths))
    else:
        stays = False
        body = yield from incoming.everything()
    location = next(iter(headers.get("location", ())), None)
    # Bytes beyond the answer belong to nothing that was asked: such a connection cannot be trusted with the next one.
    return Response(status, body, stays and not incoming.held, location)


class _Incoming:
    """Bytes that arrived and were not read yet."""

    def __init__(self, most_bytes: float) -> None:
        self.held = bytearray()
        self._left = most_bytes

    def line(self) -> Generator[None, bytes, bytes]:
        searched = 0
        while True:
            end = self.held.find(b"\n", searched)
            if end > MAX_LINE_BYTES or (end < 0 and len(self.held) > MAX_LINE_BYTES):
                raise NotHttp("a line that does not end")
            if end >= 0:
                found = bytes(self.held[:end])
                del self.held[: end + 1]
                return found[:-1] if found.endswith(b"\r") else found
            searched = len(self.held)
            yield from self._more()

    def exactly(self, size: int) -> Generator[None, bytes, bytes]:
        while len(self.held) < size:
            yield from self._more()
        found = bytes(self.held[:size])
        del self.held[:size]
        return found

    def everything(self) -> Generator[None, bytes, bytes]:
        while data := (yield from self._received()):
            self.held += data
        found = bytes(self.held)
        self.held.clear()
        return found

    def _more(self) -> Generator[None, bytes, None]:
        data = yield from self._received()
        if not data:
            raise Incomplete
        self.held += data

    def _received(self) -> Generator[None, bytes, bytes]:
        data = yield
        self._left -= len(data)
        if self._left < 0:
            raise NotHttp("more than was asked for")
        return data


def _head(incoming: _Incoming) -> Generator[None, bytes, tuple[bytes, int, dict[str, list[str]]]]:
    version, _, rest = (yield from incoming.line()).partition(b" ")
    status = rest[:3]
    if not version.startswith(b"HTTP/1.") or not status.isdigit() or len(status) != 3 or rest[3:4] not in (b"", b" "):
        raise NotHttp("no status line")
    headers: dict[str, list[str]] = {}
    for _ in range(MAX_HEADER_LINES):
        line = yield from incoming.line()
        if not line:
            return version, int(status), headers
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or name != name.strip() or not name:
            raise NotHttp("a malformed header")
        headers.setdefault(name.lower(), []).append(value.strip(" \t"))
    raise NotHttp("too many headers")


def _chunks(incoming: _Incoming) -> Generator[None, bytes, bytes]:
    body = bytearray()
    while True:
        size = _hexadecimal((yield from incoming.line()).partition(b";")[0].strip(b" \t"))
        if not size:
            break
        body += yield from incoming.exactly(size)
        if (yield from incoming.line()):
            raise NotHttp("a chunk of another size than it said")
    for _ in range(MAX_HEADER_LINES):
        if not (yield from incoming.line()):
            return bytes(body)
    raise NotHttp("too many trailers")


def _hexadecimal(text: bytes) -> int:
    if not text or len(text) > 16 or text.strip(b"0123456789abcdefABCDEF"):
        raise NotHttp("a chunk without a size")
    return int(text, 16)


def _length(texts: set[str]) -> int:
    text = texts.pop()
    if texts or not (text.isascii() and text.isdigit()) or len(text) > 16:
        raise NotHttp("a malformed length")
    return int(text)


def _tokens(headers: dict[str, list[str]], name: str) -> list[str]:
    return [token.strip().lower() for value in headers.get(name, ()) for token in value.split(",") if token.strip()]
