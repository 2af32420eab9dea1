"""Bounds of one request to an embedding endpoint: its seconds, the bytes of its answer, and the shape of that.

An endpoint may be broken or hostile: it may send a byte a second, or spaces without end.
`memory.embedding.providers.transport` applies these bounds to every byte, under every provider's SDK.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from schemas.errors import Transient

#: Dimensions of an answer as long as a model's are not known; 4,096 is the most of models in wide use.
_MOST_DIMENSIONS = 4096

#: Bytes of an answer besides its vectors, of one vector besides its numbers, and of a number written out in JSON.
_ENVELOPE_BYTES = 1_000_000
_ENTRY_BYTES = 512
_NUMBER_BYTES = 32

#: Objects and lists of an answer besides its vectors, and of one vector. An empty list of 3 bytes takes 64 in memory.
_ENVELOPE_NODES = 1000
_ENTRY_NODES = 8


class Oversized(Transient):
    """The endpoint sent more than an answer to the request can hold."""


class Exchange:
    """One request and its answer. Not thread-safe.

    `endpoint` names the endpoint in messages. The whole request, from the connection to the last byte of the answer,
    may take `seconds`, and a second more for every `bytes_per_second` that moved, if that is given. Time outside of
    `running` does not count. The answer may have `answer_bytes`, headers included, and `nodes` JSON objects and lists.
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
    ) -> None:
        self.endpoint = endpoint
        self.may_move = may_move
        self._seconds = seconds
        self._answer_bytes = answer_bytes
        self._nodes = nodes
        self._seconds_per_byte = 1 / bytes_per_second if bytes_per_second else 0.0
        self._since = 0.0
        self._bytes_read = 0
        self._nodes_read = 0

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
        """Return what to raise when the seconds are used up."""
        return Transient(f"{self.endpoint} did not answer in time")

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
        if self._bytes_read > self._answer_bytes:
            raise Oversized(
                f"{self.endpoint} sent more than the {self._answer_bytes:,} bytes that an answer can have: "
                "see that remote.base_url is an address of its API"
            )
        if self._nodes is not None:
            self._nodes_read += data.count(b"[") + data.count(b"{")
            if self._nodes_read > self._nodes:
                raise Oversized(
                    f"{self.endpoint} sent more than the {self._nodes:,} JSON values that an answer can have: "
                    "see that remote.base_url is an address of its API"
                )


_current: ContextVar[Exchange] = ContextVar("exchange")


def current() -> Exchange:
    """Return the thread's exchange; a request outside of one is a mistake (LookupError)."""
    return _current.get()


def answer_bytes(inputs: int, dimensions: int | None) -> int:
    """Return the most bytes that an answer with so many vectors can have; `dimensions` is None if not known."""
    return _ENVELOPE_BYTES + inputs * (_ENTRY_BYTES + _NUMBER_BYTES * (dimensions or _MOST_DIMENSIONS))


def answer_nodes(inputs: int) -> int:
    """Return the most JSON objects and lists that an answer with so many vectors can have."""
    return _ENVELOPE_NODES + _ENTRY_NODES * inputs
