"""A server that records what it is sent, and answers with what a test makes of it."""

from __future__ import annotations

import email.parser
import email.policy
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Headers of every HTTP request, and those that an SDK adds about itself.
_USUAL = ("accept", "connection", "content-length", "host", "user-agent", "x-stainless-")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request: its path has the query, `headers` are lower-case names, `body` is parsed JSON, a form or text."""

    method: str
    path: str
    headers: tuple[str, ...]
    body: Any


class Recording(Protocol):
    """A server that records; `root` is its address without a path."""

    root: str
    log: list[Recorded]


Answer = Callable[[str, Any], Any]


@contextmanager
def recording(answer: Answer) -> Iterator[Recording]:
    """Serve on a free port, with the JSON that `answer` makes of a path and a body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            server.log.append(recorded(self.command, self.path, self.headers, content))
            payload = json.dumps(answer(self.path, server.log[-1].body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST  # noqa: N815 - the base class's name

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server = _Recording(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


@dataclass
class _Recording:
    root: str
    log: list[Recorded] = field(default_factory=list)


def recorded(method: str, path: str, headers: Any, content: bytes) -> Recorded:
    """Return what is kept of a request."""
    names = sorted({name.lower() for name in headers})
    kind = str(headers.get("content-type"))
    try:
        body: Any = json.loads(content) if content else None
    except ValueError:
        body = content.decode("utf-8", "replace")
    if kind.startswith("multipart/"):
        body = {name: part.decode("utf-8", "replace") for name, part in form(kind, content).items()}
    return Recorded(method, path, tuple(name for name in names if not name.startswith(_USUAL)), body)


def form(content_type: str, content: bytes) -> dict[str, bytes]:
    """Return the parts of a form by their names."""
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + content)
    return {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)  # type: ignore[misc]
        for part in message.iter_parts()  # type: ignore[attr-defined]
    }
