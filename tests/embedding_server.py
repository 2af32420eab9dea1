"""A real HTTP server that speaks OpenAI's embeddings API, and misbehaves on request.

with EmbeddingServer(dimensions=64) as server:
    server.fail_next(Failure(status=429, headers={"Retry-After": "1"}), times=2)
    ...  # give server.url as remote.base_url
    assert server.requests == 3
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import json
import random
import re
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from tests.stub_server import StubServer

#: Nothing is held for longer, however slow the machine is.
LONGEST_SECONDS = 120.0

#: Ways to answer that no HTTP library would: nothing; half an answer and no more; a byte at a time, from the first
#: header or in the body; spaces or headers without end; fewer bytes than announced; chunks without a length; gzip
#: though it was not asked for; and taking the request a byte at a time.
Wire = Literal[
    "silent",
    "half",
    "headers trickle",
    "body trickles",
    "endless",
    "endless headers",
    "truncated",
    "garbage chunks",
    "compressed",
    "request trickles",
]

#: Seconds between two bytes that trickle.
PACE_SECONDS = 0.02

_TOKEN = re.compile(r"[a-z0-9_]+|[\u3400-\u9fff]")


@dataclass(frozen=True)
class Failure:
    """What one request meets instead of, or on top of, a good answer.

    With a `status` it is answered with that and an error body (`message`, `code`, `type`, `param`, or `body` as it
    is). Otherwise a good answer is spoilt: `drop` vectors are missing, the rows of `nan` and `zero` are replaced,
    `dimensions` overrides the width. `delay` seconds pass first, or as many as it takes until `held_until` is set;
    `disconnect` closes the connection unanswered; `raw` is sent in place of the JSON; `changed` makes another answer of
    a good one; `wire` says how it is sent.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "scripted failure"
    code: str | None = None
    type: str | None = None
    param: str | None = None
    body: Any = None
    drop: int = 0
    nan: tuple[int, ...] = ()
    zero: tuple[int, ...] = ()
    dimensions: int | None = None
    delay: float = 0.0
    held_until: threading.Event | None = None
    disconnect: bool = False
    raw: bytes | None = None
    changed: Callable[[dict[str, Any]], object] | None = None
    wire: Wire | None = None


@dataclass(frozen=True)
class Request:
    """What was asked. `headers` have lower-case names."""

    inputs: tuple[str, ...]
    body: dict[str, Any]
    headers: dict[str, str]
    started: float
    path: str


def embed(text: str, dimensions: int) -> np.ndarray:
    """The server's vector of a text: hashed words and CJK characters, unit length."""
    vector = np.zeros(dimensions, dtype=np.float32)
    for token in _TOKEN.findall(text.lower()) or [""]:
        digest = hashlib.blake2b(token.encode(), digest_size=8).digest()
        vector[int.from_bytes(digest[:4], "little") % dimensions] += 1 if digest[4] & 1 else -1
    if not vector.any():
        vector[0] = 1
    return vector / np.linalg.norm(vector)


class EmbeddingServer(StubServer):
    """Serves `url` (ends in /v1) on a free loopback port while used as a context manager.

    Options: `floats` answers numbers although base64 was asked; `refuses_base64` answers 400 to encoding_format
    base64; `shuffled` answers out of order; `most_inputs` answers 413 to larger requests; `poison` answers 400
    to requests with a text that contains it; `breaking` answers 500 to them; `key` answers 401 to any other key;
    `latency` seconds a request; `senders` is how many requests the client sends at once at most;
    `share_429`, `share_500` of the requests fail so, 429 with a Retry-After of `retry_after` seconds, by a generator
    that starts with `seed`. `deaf` takes no connection and refuses none.
    Counters: `requests`, `inputs` (of good answers), `distinct` texts of good answers, `largest_tokens` (a
    quarter of the UTF-8 bytes, of the largest request), `most_in_flight`, `log` of all requests, `failures` by
    status, `in_cool_down` (requests that arrived though an earlier answer had asked to wait for longer, and that
    cannot have left before that answer: more than the `senders` that were not being answered at that moment).
    """

    def __init__(
        self,
        *,
        dimensions: int = 64,
        floats: bool = False,
        refuses_base64: bool = False,
        shuffled: bool = False,
        most_inputs: int = 2048,
        poison: str | None = None,
        breaking: str | None = None,
        key: str | None = None,
        latency: float = 0.0,
        senders: int = 1,
        share_429: float = 0.0,
        share_500: float = 0.0,
        retry_after: float = 1.0,
        seed: int = 1,
        deaf: bool = False,
    ) -> None:
        super().__init__(backlog=1 if deaf else 64)
        self.dimensions = dimensions
        self.floats = floats
        self.refuses_base64 = refuses_base64
        self.shuffled = shuffled
        self.most_inputs = most_inputs
        self.poison = poison
        self.breaking = breaking
        self.key = key
        self.latency = latency
        self.senders = senders
        self.share_429 = share_429
        self.share_500 = share_500
        self.retry_after = retry_after
        self.requests = 0
        self.failures: Counter[int] = Counter()
        self.in_cool_down = 0
        self._cool_until = 0.0
        self._on_their_way = 0
        self._random = random.Random(seed)
        self.inputs = 0
        self.largest_tokens = 0
        self.in_flight = 0
        #: Connections that are open now.
        self.connections = 0
        self.most_in_flight = 0
        self.log: list[Request] = []
        self.paid: Counter[str] = Counter()
        #: Cleared, it holds every answer back until it is set again.
        self.open = threading.Event()
        self.open.set()
        self._over = threading.Event()
        self._failures: deque[Failure | None] = deque()
        self._lock = threading.Lock()
        self._waiting = [socket.socket() for _ in range(4 if deaf else 0)]

    @property
    def url(self) -> str:
        """What to give as remote.base_url."""
        return f"{self.root}/v1"

    @property
    def distinct(self) -> int:
        """How many different texts were embedded."""
        return len(self.paid)

    @property
    def texts(self) -> set[str]:
        """The texts that were embedded."""
        return set(self.paid)

    @property
    def paid_twice(self) -> set[str]:
        """Texts that were embedded more than once."""
        return {text for text, times in self.paid.items() if times > 1}

    def fail_next(self, failure: Failure | None, *, times: int = 1) -> None:
        """Script the next requests, after those scripted already; None lets one pass."""
        with self._lock:
            self._failures.extend([failure] * times)

    def recover(self) -> None:
        """Forget what was scripted and is not used yet."""
        with self._lock:
            self._failures.clear()

    def __enter__(self) -> Self:
        if not self._waiting:
            super().__enter__()
        for one in self._waiting:
            one.setblocking(False)
            one.connect_ex(self._server.server_address)
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self._over.set()
        for one in self._waiting:
            one.close()
        super().__exit__()

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        with self._lock:
            slowly = any(one is not None and one.wire == "request trickles" for one in list(self._failures)[:1])
            if slowly:
                self._failures.popleft()
        if slowly:
            while handler.rfile.read(1) and not self._over.wait(PACE_SECONDS):
                pass
            handler.close_connection = True
            return
        content = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        # Other parts of the API are there to be hung upon.
        body = json.loads(content) if handler.path.endswith(("/embeddings", "/embed")) else {"input": []}
        inputs = [body["input"]] if isinstance(body["input"], str) else body["input"]
        tokens = sum(max(1, len(text.encode()) // 4) for text in inputs)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            self.requests += 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.largest_tokens = max(self.largest_tokens, tokens)
            now = time.monotonic()
            self.log.append(Request(tuple(inputs), body, headers, now, handler.path))
            if now < self._cool_until:
                self._on_their_way -= 1
                self.in_cool_down += self._on_their_way < 0
            failure = self._failures.popleft() if self._failures else None
            failure = failure or self._chance()
        try:
            self.open.wait(LONGEST_SECONDS)
            if failure.held_until is not None:
                failure.held_until.wait(LONGEST_SECONDS)
            if failure.delay or self.latency:
                threading.Event().wait(failure.delay or self.latency)
            if failure.disconnect:
                handler.close_connection = True
                handler.connection.close()
                return
            status, answer, extra = self._answer(handler.path, headers, body, inputs, failure)
            payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            lines = [f"HTTP/1.1 {status} scripted", "Content-Type: application/json", f"Content-Length: {len(payload)}"]
            lines += [f"{name}: {value}" for name, value in extra.items()]
            head = "\r\n".join([*lines, "", ""]).encode()
            if failure.wire is None:
                handler.wfile.write(head + payload)
            else:
                handler.close_connection = True
                with suppress(OSError):
                    self._misbehave(handler.connection, failure.wire, head, payload)
            self._note(status, failure)
        finally:
            with self._lock:
                self.in_flight -= 1

    def _misbehave(self, client: socket.socket, wire: Wire, head: bytes, payload: bytes) -> None:
        """Send an answer as no library would, until the client has gone or the server ends."""
        if wire == "half":
            client.sendall(head + payload[: len(payload) // 2])
        if wire in {"silent", "half"}:
            client.settimeout(0.05)
            while not self._over.is_set():
                with suppress(TimeoutError):
                    if not client.recv(1):
                        return
        elif wire in {"headers trickle", "body trickles"}:
            at_once = len(head) + 1 if wire == "body trickles" else 0
            client.sendall((head + payload)[:at_once])
            for byte in (head + payload)[at_once:]:
                client.sendall(bytes([byte]))
                if self._over.wait(PACE_SECONDS):
                    return
        elif wire in {"endless", "endless headers"}:
            start, more = (b"\r\n", b" " * 65_536) if wire == "endless" else (b"X-More: ", b"x" * 65_536)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + start)
            while not self._over.is_set():
                client.sendall(more)
        elif wire == "truncated":
            client.sendall(head + payload[:-7])
        elif wire == "garbage chunks":
            client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n" + payload)
        elif wire == "compressed":
            packed = gzip.compress(payload)
            client.sendall(
                f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
            )
            client.sendall(packed)

    def _chance(self) -> Failure:
        drawn = self._random.random()
        if drawn < self.share_429:
            return Failure(status=429, headers={"Retry-After": f"{self.retry_after:g}"}, message="slow down")
        return Failure(status=500) if drawn < self.share_429 + self.share_500 else Failure()

    def _note(self, status: int, failure: Failure) -> None:
        """Count a failure; after a 429 only requests that are on their way already may come."""
        with self._lock:
            if status >= 400:
                self.failures[status] += 1
            asked = failure.headers.get("Retry-After", "")
            if status == 429 and asked.replace(".", "").isdigit():
                now = time.monotonic()
                if now >= self._cool_until:
                    # This request's own sender is free again, and has heard.
                    self._on_their_way = self.senders - self.in_flight
                self._cool_until = max(self._cool_until, now + float(asked))

    def _connected(self, change: int) -> None:
        with self._lock:
            self.connections += change

    def _answer(
        self, path: str, headers: dict[str, str], body: dict[str, Any], inputs: list[str], failure: Failure
    ) -> tuple[int, Any, dict[str, str]]:
        def refused(status: int, message: str, **more: Any) -> tuple[int, Any, dict[str, str]]:
            return status, {"error": {"message": message, **more}}, {}

        if failure.status is not None:
            error = {"message": failure.message, "code": failure.code, "type": failure.type, "param": failure.param}
            return failure.status, failure.body if failure.body is not None else {"error": error}, failure.headers
        if failure.raw is not None:
            return 200, failure.raw, {}
        if not path.endswith("/embeddings"):
            return refused(404, f"no route {path}")
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return refused(401, f"Incorrect API key provided: {headers.get('authorization')}")
        if self.refuses_base64 and body.get("encoding_format") == "base64":
            return refused(400, "unknown value for encoding_format", param="encoding_format")
        if len(inputs) > self.most_inputs:
            return refused(413, f"at most {self.most_inputs} inputs")
        if any(not text.strip() for text in inputs):
            return refused(400, "'$.input' is invalid: empty string")
        if self.poison is not None and any(self.poison in text for text in inputs):
            return refused(400, "this input is too long for the model")
        if self.breaking is not None and any(self.breaking in text for text in inputs):
            return refused(500, "Traceback (most recent call last)")
        width = failure.dimensions or int(body.get("dimensions") or self.dimensions)
        rows = [embed(text, width) for text in inputs]
        for place in failure.nan:
            rows[place % len(rows)] = np.full(width, np.nan, dtype=np.float32)
        for place in failure.zero:
            rows[place % len(rows)] = np.zeros(width, dtype=np.float32)
        if failure.drop:
            rows = rows[: -failure.drop]
        else:
            with self._lock:
                self.inputs += len(inputs)
                self.paid.update(inputs)
        as_base64 = body.get("encoding_format") == "base64" and not self.floats
        data = [
            {
                "object": "embedding",
                "index": place,
                "embedding": base64.b64encode(row.tobytes()).decode() if as_base64 else row.tolist(),
            }
            for place, row in enumerate(rows)
        ]
        if self.shuffled:
            data.reverse()
        answer = {"object": "list", "data": data, "model": body.get("model"), "usage": {}}
        return 200, failure.changed(answer) if failure.changed is not None else answer, {}
