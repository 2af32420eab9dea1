"""HTTP of uvicorn for clients that mean no good, or have hung: every wait for one ends, and so does what it may send.

uvicorn waits for a request's head and body, and for a client that does not read its answer, for ever; it takes heads of
any size and connections of any number. All of that is what each connection says here of itself (`Bounds`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import Any, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from memory.service.bounds import Bounds
from memory.service.security import ANSWER_HEADERS

#: What a connection waits for: a request's head or its body from its client, an answer from the application, or that
#: the client reads why it was refused.
_Phase = Literal["head", "body", "answer", "leaving"]


#: Bytes that are read between two looks at how many requests wait: so many requests more may wait as fit in there.
_PIECE_BYTES = 4096

#: Bytes of a body that a connection may hold without being looked at.
_SMALL_BODY_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `bounds` are those of its server."""

    bounds = Bounds()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._phase: _Phase = "head"
        self._deadline: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._untaken = 0
        #: Bytes that came in this phase, and those of a head as they were understood.
        self._came = 0
        self._head = 0
        self._refusal: tuple[int, str] | None = None
        #: Bytes that came and are read when fewer requests wait.
        self._unread = b""
        #: When the client began to be waited for, in the loop's time; None while it is answered.
        self.waited_since: float | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Take the connection, and somebody else's place if there is none."""
        super().connection_made(transport)
        self._enter("head", self.bounds.head_seconds)
        while len(self.connections) > self.bounds.connections:
            if not self._take_place():
                self._refuse(503, "too many connections are open here; try again in a moment")
                break

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._disarm()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client will send nothing more; what it sent is answered."""
        if self._phase == "leaving":
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read on, as far as the bounds go."""
        if self._phase == "leaving":
            # Thrown away, so that the client gets to reading why; not without end.
            self._came += len(data)
            if self._came > self.bounds.leaving_bytes:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        unread, self._unread = self._unread + data, b""
        for start in range(0, len(unread), _PIECE_BYTES):
            if len(self.pipeline) >= self.bounds.waiting_requests:
                self._unread = unread[start:]
                self.flow.pause_reading()
                return
            if not self._read(unread[start : start + _PIECE_BYTES]):
                return

    def _read(self, data: bytes) -> bool:
        """Parse a piece; False if what follows it is not to be read."""
        if self._phase == "head" and not self._came:
            self._enter("head", self.bounds.head_seconds)
        before = self._phase
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return False  # to something else than HTTP/1.1: answered as if it had not been asked for
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or (400, "this is not a valid HTTP request")))
            return False
        # What ends a request is not counted for the next one.
        if self._phase in {before, "body"}:
            self._came += len(data)
        if self._phase == "head" and self._came > self.bounds.head_bytes:
            self._refuse(*self._large_head())
        elif self._phase == "body" and self._came > self.bounds.body_bytes:
            self.transport.abort()
        elif self._phase == "body" and self._came > _SMALL_BODY_BYTES:
            self._bound_bodies()
        return self._phase != "leaving" and not self.transport.is_closing()

    # -- what the parser finds

    def on_url(self, url: bytes) -> None:
        """A part of the request line."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Those after a body are nobody's here."""
        if self._phase == "body":
            return
        super().on_header(name, value)
        self._count(len(name) + len(value))
        if len(self.headers) > self.bounds.headers:
            self._refusal = (431, f"a request has at most {self.bounds.headers} headers")
            raise ValueError(self._refusal)

    def on_headers_complete(self) -> None:
        """The head is there: the application starts, or answers the requests before it first."""
        self._enter("body", self.bounds.body_seconds)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The whole request is there."""
        super().on_message_complete()
        if self._answering:
            self._enter("answer")
        else:
            self._enter("head", self.bounds.head_seconds)

    def on_response_complete(self) -> None:
        """The answer was handed over; the client may not have read it."""
        super().on_response_complete()
        if self._phase == "answer" and not self._answering:
            self._enter("head", self.bounds.head_seconds)
        if self.transport.get_write_buffer_size() and self._taking is None:
            self._await_reading()
        if self._unread:
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._unread and not self.transport.is_closing():
            self.data_received(b"")

    # -- an answer that is not read

    def pause_writing(self) -> None:
        """The client reads more slowly than the answer is made."""
        super().pause_writing()
        if self._taking is None:
            self._await_reading()

    def resume_writing(self) -> None:
        """It has read nearly all of it."""
        super().resume_writing()
        self._end_reading()

    def _await_reading(self) -> None:
        self._untaken = self.transport.get_write_buffer_size()
        if self._phase == "answer":
            self.waited_since = self.loop.time()
        self._taking = self.loop.call_later(self.bounds.answer_seconds, self._look_at_reading)

    def _look_at_reading(self) -> None:
        self._taking = None
        left = self.transport.get_write_buffer_size()
        if left and self._untaken - left < self.bounds.answer_bytes:
            self.transport.abort()
        elif left:
            self._await_reading()

    def _end_reading(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        if self._phase == "answer":
            self.waited_since = None

    # -- waiting

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _enter(self, phase: _Phase, seconds: float | None = None) -> None:
        self._phase = phase
        self._came = self._head = 0
        self.waited_since = self.loop.time() if seconds is not None else None
        self._arm(seconds)

    def _arm(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._late, seconds) if seconds is not None else None

    def _late(self, seconds: float) -> None:
        if self._phase == "leaving":
            self.transport.abort()
        elif self.pipeline or (self._phase == "head" and self._answering):
            self._arm(seconds)  # it is this side that does not get on
        elif self._phase == "head" and not self._came:
            self.transport.close()  # once it has taken its answer
        else:
            self._refuse(408, f"the request's {self._phase} did not arrive within {seconds:g} seconds")

    def _disarm(self) -> None:
        self._arm(None)
        self._end_reading()

    # -- saying no

    def send_400_response(self, msg: str) -> None:
        """Say no in this service's way."""
        self._refuse(400, msg)

    def _take_place(self) -> bool:
        """Send away whoever has been waited for longest; False when nobody is waited for."""
        waited = [
            (other.waited_since, number, other)
            for number, other in enumerate(self.connections)
            if other is not self and isinstance(other, BoundedProtocol) and other.waited_since is not None
        ]
        if not waited:
            return False
        *_, longest = min(waited, key=lambda entry: entry[:2])
        # Now, not when it is gone: more may come before.
        self.connections.discard(longest)
        longest.transport.abort()
        return True

    def _bound_bodies(self) -> None:
        """Refuse whoever has been sending a large body for longest, if there is too much of them."""
        large = [
            other
            for other in self.connections
            if isinstance(other, BoundedProtocol) and other._phase == "body" and other._came > _SMALL_BODY_BYTES
        ]
        if sum(other._came for other in large) > self.bounds.bodies_bytes:
            longest = min(large, key=lambda other: other.waited_since or 0.0)
            longest._refuse(503, "too much is being sent at once; try again in a moment")

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self.bounds.head_bytes:
            self._refusal = self._large_head()
            raise ValueError(self._refusal)

    def _large_head(self) -> tuple[int, str]:
        return 431, f"a request's line and headers have at most {self.bounds.head_bytes} bytes"

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer, and let the client read it: closing at once would throw the answer away with what it still sends."""
        if self.transport.is_closing():
            return
        if self._answering:
            if self._phase != "body" or self.pipeline or self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"error": sentence}).encode()
        own = [("content-type", "application/json"), ("content-length", len(body)), ("connection", "close")]
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in (*own, *ANSWER_HEADERS.items())]
        self._enter("leaving", self.bounds.leaving_seconds)
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        with contextlib.suppress(OSError):  # the client is gone already
            self.transport.write_eof()
