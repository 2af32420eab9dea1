"""Bounds of one request to an endpoint.

An endpoint may be broken or hostile: it may send a byte a second, or spaces without end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from schemas.errors import Transient, Unusable


class Oversized(Unusable):
    """The endpoint sent more than an answer to the request can hold."""


class Exchange:
    """One request and its answer. Not thread-safe.

    `endpoint` names the endpoint in messages. The whole request, from the connection to the last byte of the answer,
    may take `seconds`, and a second more for every `bytes_per_second` that moved, if that is given. Time outside of
    `running` does not count. The answer may have `answer_bytes`, headers included, and `nodes` JSON objects and lists.
    `setting` names the one to raise when `seconds` are too few.
    `may_move` lets the endpoint name another address for a file, which is fetched from there without any header.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        seconds: float,
        answer_bytes: int,
        nodes: int | None = None,
        bytes_per_second: float | None = None,
        may_move: bool = False,
        setting: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.may_move = may_move
        self._seconds = seconds
        self._remedy = f" ({seconds:g} s): raise {setting} if it needs longer" if setting else ""
        self._answer_bytes = answer_bytes
        self._nodes = nodes
        self._seconds_per_byte = 1 / bytes_per_second if bytes_per_second else 0.0
        self._since = 0.0
        self._bytes_read = 0
        self._nodes_read = 0
        #: True once the endpoint began an answer of success: it is billed even if it breaks off.
        self.accepted = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the exchange of the thread for as long as the block runs."""
        self._since = time.monotonic()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._seconds -= time.monotonic() - self._since

    def seconds_left(self) -> float:
        """Seconds that are left to the request.

        Raises:
            Transient: none are.
        """
        left = self._seconds - (time.monotonic() - self._since)
        if left <= 0:
            raise self.overdue()
        return left

    def overdue(self) -> Transient:
        """Return the error for a request whose seconds are used up."""
        return Transient(f"{self.endpoint} did not answer in time{self._remedy}")

    def sent(self, count: int) -> None:
        """Count bytes of the request."""
        self._seconds += count * self._seconds_per_byte

    def received(self, data: bytes) -> None:
        """Count a part of the answer.

        Raises:
            Oversized: it is more than the answer may have.
        """
        self._seconds += len(data) * self._seconds_per_byte
        self._bytes_read += len(data)
        if self._nodes is not None:
            self._nodes_read += data.count(b"[") + data.count(b"{")
        for count, most, unit in (
            (self._bytes_read, self._answer_bytes, "bytes"),
            (self._nodes_read, self._nodes or 0, "JSON values"),
        ):
            if count > most:
                raise Oversized(
                    f"{self.endpoint} sent more than the {most:,} {unit} that an answer can have: "
                    "see that remote.base_url is an address of its API"
                )


_current: ContextVar[Exchange] = ContextVar("exchange")


def current() -> Exchange:
    """Return the thread's exchange; a request outside of one is a mistake (LookupError)."""
    return _current.get()
