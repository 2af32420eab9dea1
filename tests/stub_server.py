"""Base of the tests' HTTP servers: a free port, a thread, and a handler that logs nothing."""

from __future__ import annotations

import http.server
import threading
from typing import Self


class StubServer:
    """Serves on a free loopback port while used as a context manager; `_serve` answers every request."""

    def __init__(self, *, backlog: int = 64) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else headers and body are 40 ms apart
            timeout = 30

            def setup(self) -> None:
                super().setup()
                outer._connected(1)

            def finish(self) -> None:
                outer._connected(-1)
                super().finish()

            def _handle(self) -> None:
                outer._serve(self)

            do_GET = do_HEAD = do_POST = do_DELETE = _handle  # noqa: N815 - the base class's names

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = backlog

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # clients that hang up are part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def root(self) -> str:
        """Address of the server, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        if self._thread.is_alive():
            self._thread.join(60)

    def _connected(self, change: int) -> None:
        """Take note of a connection that came or went."""

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        raise NotImplementedError
