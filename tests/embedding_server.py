"""A real HTTP server that speaks the embeddings APIs of `DIALECTS`, and misbehaves on request.

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
from urllib.parse import parse_qs, urlsplit

import numpy as np

from tests.stub_server import StubServer

#: Nothing is held for longer, however slow the machine is.
LONGEST_SECONDS = 120.0

#: Ways to answer that no HTTP library would: nothing; half an answer and no more; a byte of the body at a time; spaces
#: without end; fewer bytes than announced; gzip though it was not asked for; and taking the request a byte at a time.
Wire = Literal["silent", "half", "body trickles", "endless", "truncated", "compressed", "request trickles"]

#: Seconds between two bytes that trickle.
PACE_SECONDS = 0.02

_TOKEN = re.compile(r"[a-z0-9_]+|[\u3400-\u9fff]")


@dataclass(frozen=True)
class Failure:
    """Fault that one request meets instead of, or on top of, a good answer.

    With a `status` it is answered with that and an error body (`message`, `code`, or `body` as it is). Otherwise a
    good answer is spoilt: `drop` vectors are missing, the rows of `nan` are replaced, `dimensions` overrides the width.
    `delay` seconds pass first, or as many as it takes until `held_until` is set; `disconnect` closes the connection
    unanswered; `raw` is sent in place of the JSON; `changed` makes another answer of a good one; `wire` says how it is
    sent.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "scripted failure"
    code: str | None = None
    body: Any = None
    drop: int = 0
    nan: tuple[int, ...] = ()
    dimensions: int | None = None
    delay: float = 0.0
    held_until: threading.Event | None = None
    disconnect: bool = False
    raw: bytes | None = None
    changed: Callable[[dict[str, Any]], object] | None = None
    wire: Wire | None = None


@dataclass(frozen=True)
class Request:
    """Request to the server. `path` has the query, `headers` lower-case names; `body` is parsed JSON, or None."""

    inputs: tuple[str, ...]
    body: Any
    headers: dict[str, str]
    started: float
    path: str
    method: str
    content: bytes

    @property
    def route(self) -> str:
        """The path without its query."""
        return urlsplit(self.path).path

    @property
    def query(self) -> dict[str, str]:
        """The query's values."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}


@dataclass(frozen=True)
class Dialect:
    """An API: the end of its path, and how its bodies spell texts, width, vectors, counts of tokens and errors.

    `tokens` are counted for every text. Other `fields` than these are refused, if any are named.
    """

    path: str
    texts: Callable[[Any], list[str]]
    answer: Callable[[Any, list[Any], int], Any]
    error: Callable[[dict[str, Any]], Any] = lambda facts: {"error": facts}
    width: tuple[str, ...] = ("dimensions",)
    tokens: int = 7
    fields: frozenset[str] | None = None


def _input(body: Any) -> list[str]:
    return [body["input"]] if isinstance(body["input"], str) else body["input"]


def _listed(body: Any, rows: list[Any], tokens: int) -> Any:
    data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
    usage = {"total_tokens": tokens} if tokens else {}
    return {"object": "list", "data": data, "model": body.get("model"), "usage": usage}


def gemini_text(request: Any) -> str:
    """Return the text of a Gemini request, without the words that gemini-embedding-2 has for a task."""
    [part] = request["content"]["parts"]
    return str(part["text"]).removeprefix("title: none | text: ").removeprefix("task: search result | query: ")


def _of_bedrock(body: Any, rows: list[Any], tokens: int) -> Any:
    return {"embedding": rows[0]} if "inputText" in body else {"embeddings": {"float": rows}}


_VOYAGE = ("input", "model", "input_type", "truncation", "output_dimension", "output_dtype", "encoding_format")

DIALECTS = {
    "openai": Dialect("/embeddings", _input, _listed, tokens=0, width=("dimensions", "output_dimension")),
    "voyage": Dialect(
        "/embeddings",
        _input,
        _listed,
        lambda facts: {"detail": facts["message"]},
        ("output_dimension",),
        fields=frozenset(_VOYAGE),
    ),
    # As its `server/routes.go`.
    "ollama": Dialect(
        "/api/embed",
        _input,
        lambda body, rows, tokens: {"model": body["model"], "embeddings": rows, "prompt_eval_count": tokens},
        lambda facts: {"error": facts["message"]},
    ),
    "gemini": Dialect(
        ":batchEmbedContents",
        lambda body: [gemini_text(one) for one in body["requests"]],
        lambda body, rows, tokens: {
            "embeddings": [{"values": row} for row in rows],
            "usageMetadata": {"promptTokenCount": tokens},
        },
    ),
    "bedrock": Dialect(
        "/invoke",
        lambda body: [body["inputText"]] if "inputText" in body else body["texts"],
        _of_bedrock,
        lambda facts: {"message": facts["message"]},
        ("dimensions", "output_dimension"),
    ),
}


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

    Options: `api` is the dialect of `/embeddings`, the others have paths of their own. `floats` answers numbers
    although base64 was asked; `refuses_base64` answers 400 to encoding_format base64; `shuffled` answers out of order;
    `most_inputs` answers 413 to larger requests; `poison` answers 400 to requests with a text that contains it; `key`
    answers 401 to any other key; `answers` makes every answer of path and body instead; `latency` seconds a request;
    `senders` is how many requests the client sends at once at most; `share_429`, `share_500` of the requests fail so,
    429 with a Retry-After of `retry_after` seconds, by a generator that starts with `seed`; `a_minute` requests are
    answered in a minute of `minute_seconds`, which begins with its first request, and the others 429 with its end;
    `deaf` takes no connection and refuses none.
    Counters: `requests`, `inputs` (of good answers), `distinct` texts of good answers, `most_in_flight`, `log` of all
    requests, `failures` by status, `in_cool_down` (requests that arrived though an earlier answer had asked to wait for
    longer, and that cannot have left before that answer: more than the `senders` that were not being answered then).
    """

    def __init__(
        self,
        *,
        api: str = "openai",
        dimensions: int = 64,
        floats: bool = False,
        refuses_base64: bool = False,
        shuffled: bool = False,
        most_inputs: int = 2048,
        poison: str | None = None,
        key: str | None = None,
        answers: Callable[[str, Any], Any] | None = None,
        latency: float = 0.0,
        senders: int = 1,
        share_429: float = 0.0,
        share_500: float = 0.0,
        retry_after: float = 1.0,
        a_minute: int | None = None,
        minute_seconds: float = 60.0,
        seed: int = 1,
        deaf: bool = False,
    ) -> None:
        super().__init__(backlog=1 if deaf else 64)
        own_path = [name for name, dialect in DIALECTS.items() if dialect.path != "/embeddings"]
        self._dialects = [DIALECTS[name] for name in (api, *own_path)]
        self.dimensions = dimensions
        self.floats = floats
        self.refuses_base64 = refuses_base64
        self.shuffled = shuffled
        self.most_inputs = most_inputs
        self.poison = poison
        self.key = key
        self.answers = answers
        self.latency = latency
        self.senders = senders
        self.share_429 = share_429
        self.share_500 = share_500
        self.retry_after = retry_after
        self.a_minute, self.minute_seconds = a_minute, minute_seconds
        #: Minutes that began; end of the present one (monotonic seconds), and the requests in it.
        self.minutes, self._minute_end, self._in_minute = 0, 0.0, 0
        self.requests = 0
        self.failures: Counter[int] = Counter()
        self.in_cool_down = 0
        self._cool_until = 0.0
        self._on_their_way = 0
        self._random = random.Random(seed)
        #: Tokens that an answer counts for every text, where not as its dialect does.
        self.tokens = 0
        self.inputs = 0
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
        self._lock = threading.RLock()
        self._waiting = [socket.socket() for _ in range(4 if deaf else 0)]

    @property
    def url(self) -> str:
        """Return the value of remote.base_url."""
        return f"{self.root}/v1"

    @property
    def distinct(self) -> int:
        """Return the number of different texts that were embedded."""
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
        if handler.command == "GET" and "/" not in handler.path.strip(
            "/"
        ):  # a look if it answers, which embeds nothing
            handler.send_error(404)
            return
        with self._lock:
            slowly = any(one is not None and one.wire == "request trickles" for one in list(self._failures)[:1])
            if slowly:
                self._failures.popleft()
        if slowly:
            while handler.rfile.read(1) and not self._over.wait(PACE_SECONDS):
                pass
            handler.close_connection = True
            return
        request = self._read(handler)
        with self._lock:
            self.requests += 1
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.log.append(request)
            if request.started < self._cool_until:
                self._on_their_way -= 1
                self.in_cool_down += self._on_their_way < 0
            failure = self._failure_of(request)
        try:
            self._hold(failure)
            if failure.disconnect:
                handler.close_connection = True
                handler.connection.close()
                return
            status, answer, extra = self._answer(request, failure)
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

    def _read(self, handler: http.server.BaseHTTPRequestHandler) -> Request:
        content = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        try:
            body = json.loads(content) if content else None
        except ValueError:
            body = None
        dialect = self._dialect(urlsplit(handler.path).path)
        inputs = tuple(dialect.texts(body)) if dialect is not None and body else ()
        headers = {name.lower(): value for name, value in handler.headers.items()}
        return Request(inputs, body, headers, time.monotonic(), handler.path, handler.command, content)

    def _dialect(self, route: str) -> Dialect | None:
        return next((one for one in self._dialects if route.endswith(one.path)), None)

    def _failure_of(self, request: Request) -> Failure:
        """Choose the answer of a request, with the lock held."""
        if self._failures and (scripted := self._failures.popleft()) is not None:
            return scripted
        if self.a_minute is not None:
            if request.started >= self._minute_end:
                self.minutes, self._in_minute = self.minutes + 1, 0
                self._minute_end = request.started + self.minute_seconds
            self._in_minute += 1
            if self._in_minute > self.a_minute:
                seconds = f"{self._minute_end - request.started:.3f}"
                return Failure(status=429, headers={"Retry-After": seconds}, message="slow down")
        return self._chance()

    def _hold(self, failure: Failure) -> None:
        """Wait until an answer may leave."""
        self.open.wait(LONGEST_SECONDS)
        if failure.held_until is not None:
            failure.held_until.wait(LONGEST_SECONDS)
        if failure.delay or self.latency:
            threading.Event().wait(failure.delay or self.latency)

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
        elif wire == "body trickles":
            client.sendall(head)
            for byte in payload:
                client.sendall(bytes([byte]))
                if self._over.wait(PACE_SECONDS):
                    return
        elif wire == "endless":
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
            while not self._over.is_set():
                client.sendall(b" " * 65_536)
        elif wire == "truncated":
            client.sendall(head + payload[:-7])
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

    def _answer(self, request: Request, failure: Failure) -> tuple[int, Any, dict[str, str]]:
        dialect = self._dialect(request.route)
        spelled = dialect or self._dialects[0]
        body, texts = request.body, list(request.inputs)

        def refused(status: int, message: str) -> tuple[int, Any, dict[str, str]]:
            return status, spelled.error({"message": message}), {}

        if failure.status is not None:
            facts = {"message": failure.message, "code": failure.code}
            return failure.status, spelled.error(facts) if failure.body is None else failure.body, failure.headers
        if failure.raw is not None:
            return 200, failure.raw, {}
        if self.answers is not None:
            return 200, self.answers(request.path, body), {}
        if dialect is None:
            return refused(404, f"no route {request.path}")
        authorization = request.headers.get("authorization")
        for status, message, applies in (
            (401, f"Incorrect API key provided: {authorization}", self.key and authorization != f"Bearer {self.key}"),
            (400, "unknown value for encoding_format", self.refuses_base64 and body.get("encoding_format") == "base64"),
            (400, "an argument is not supported by our API", dialect.fields and set(body) - dialect.fields),
            (413, f"at most {self.most_inputs} inputs", len(texts) > self.most_inputs),
            (400, "'$.input' is invalid: empty string", any(not text.strip() for text in texts)),
            (400, "this input is too long for the model", self.poison and any(self.poison in text for text in texts)),
        ):
            if applies:
                return refused(status, message)
        asked = next((body[name] for name in dialect.width if body.get(name)), None)
        asked = asked or body.get("requests", [{}])[0].get("outputDimensionality") or self.dimensions
        width = failure.dimensions or int(asked)
        rows = [embed(text, width) for text in texts]
        for place in failure.nan:
            rows[place % len(rows)] = np.full(width, np.nan, dtype=np.float32)
        with self._lock:
            if not failure.drop:
                self.inputs += len(texts)
                self._pay(texts)
        spoken = [self._spoken(row, body) for row in rows[: len(rows) - failure.drop]]
        answer = dialect.answer(body, spoken, (self.tokens or dialect.tokens) * len(texts))
        if self.shuffled:
            answer["data"].reverse()
        headers = {"x-amzn-bedrock-input-token-count": str(dialect.tokens * len(texts))}
        return 200, failure.changed(answer) if failure.changed is not None else answer, headers

    def _pay(self, texts: list[str]) -> None:
        self.paid.update(texts)

    def _spoken(self, row: np.ndarray, body: Any) -> object:
        """A vector as it is written in an answer to a request with this body."""
        if body.get("encoding_format") == "base64" and not self.floats:
            return base64.b64encode(row.astype("<f4").tobytes()).decode()
        return row.tolist()
