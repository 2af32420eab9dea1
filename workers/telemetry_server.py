"""A small listener of a worker process: `/metrics`, `/healthz`, and what is mounted beside them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import structlog
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from memory.service.listening import listen
from memory.service.security import is_loopback

log = structlog.get_logger(__name__)

#: Seconds that a client gets for its whole request, and for taking the answer.
_PATIENCE_SECONDS = 5.0

#: Clients served at a time. Who comes then takes the place of the one whose request has been waited for longest;
#: when all are being answered, it is sent away.
_MOST_CLIENTS = 8

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
_BUSY += b'{"error": "too many clients are being answered here; try again in a moment"}'


@dataclass(frozen=True, slots=True)
class Page:
    """What a route answers."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"

    @classmethod
    def of(cls, answer: Mapping[str, object], *, status: int = 200) -> Page:
        """A JSON object."""
        return cls(json.dumps(answer).encode(), status)


#: Answers one path. Called in a thread of its own; what it raises is a 500 and in the log.
Route = Callable[[], Page]


class TelemetryServer:
    """Listens from the moment it is made, and answers between `start` and `stop`.

    There is nothing of anybody's memory here, and no token: beyond loopback, keep the port inside your own network.

    Args:
        host: where to listen; on loopback, only loopback names are answered to.
        port: 0 takes a free one.
        metrics: the process's metrics in Prometheus text format; without, there is no `/metrics`.
        routes: further paths, each with what answers it.
        section: of the settings, for what is said when the port cannot be had.

    Raises, when made:
        UserError: the port is taken, or the address is not this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], bytes] | None = None,
        routes: Mapping[str, Route] | None = None,
        section: str = "workers",
    ) -> None:
        listener = listen(host, port, key=f"{section}.host", advice=f"choose another with {section}.port")
        listener.setblocking(True)  # noqa: FBT003 - the socket's own signature
        self.port: int = listener.getsockname()[1]
        self._server = _Server(
            listener,
            loopback_only=is_loopback(host),
            routes={
                "/healthz": lambda: Page.of({"status": "ok"}),
                **({"/metrics": lambda: Page(metrics(), content_type=CONTENT_TYPE_LATEST)} if metrics else {}),
                **(routes or {}),
            },
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="telemetry", daemon=True)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()
        log.info("telemetry_listening", port=self.port)

    def stop(self) -> None:
        """Stop answering and close the port; whoever is being answered is not waited for."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


@dataclass(slots=True)
class _Client:
    """Who is connected, and since when it is waited for; `since` is None while its answer is made."""

    connection: socket.socket
    since: float | None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, *, loopback_only: bool, routes: Mapping[str, Route]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.loopback_only = loopback_only
        self.routes = routes
        #: The one that came first comes first.
        self._clients: dict[socket.socket, _Client] = {}
        self._lock = threading.Lock()

    def wait_for(self, connection: socket.socket, *, client: bool) -> None:
        """From now on the client is waited for, or waits."""
        with self._lock:
            if connection in self._clients:
                self._clients[connection].since = time.monotonic() if client else None

    def service_actions(self) -> None:
        """Called between two looks for new clients: break off those whose time is up.

        A handler's own timeout begins anew with every byte that comes.
        """
        late = time.monotonic() - _PATIENCE_SECONDS
        with self._lock:
            for client in list(self._clients.values()):
                if client.since is not None and client.since < late:
                    self._break_off(client)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override] # typeshed's unions
        with self._lock:
            if len(self._clients) >= _MOST_CLIENTS:
                waited = next((client for client in self._clients.values() if client.since is not None), None)
                if waited is not None:
                    self._break_off(waited)
            room = len(self._clients) < _MOST_CLIENTS
            if room:
                self._clients[request] = _Client(request, time.monotonic())
        if not room:
            with contextlib.suppress(OSError):
                request.send(_BUSY, socket.MSG_DONTWAIT)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._clients.pop(request, None)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - the library's signature
        # A client that went away, or was too slow: its own business.
        log.debug("telemetry_client_lost")

    def _break_off(self, client: _Client) -> None:
        """End whatever its thread waits for, which then closes it."""
        self._clients.pop(client.connection, None)
        with contextlib.suppress(OSError):  # it is gone already
            client.connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE_SECONDS

    def do_GET(self) -> None:
        self.server.wait_for(self.connection, client=False)
        host = _host(self.headers.get("Host", ""))
        if self.server.loopback_only and not is_loopback(host):
            self._send(Page.of({"error": "this port answers to loopback names only"}, status=403))
            return
        route = self.server.routes.get(urlsplit(self.path).path)
        if route is None:
            known = ", ".join(sorted(self.server.routes))
            self._send(Page.of({"error": f"there is only {known} here"}, status=404))
            return
        try:
            page = route()
        except Exception:
            log.exception("telemetry_failed")
            page = Page.of({"error": "the request failed; the log says why"}, status=500)
        self._send(page)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - as in http.server
        """Say no as everywhere here: http.server would send a page, and to a request that is none not even a status."""
        self.request_version = "HTTP/1.0"
        self._send(Page.of({"error": message or HTTPStatus(code).phrase}, status=code))

    def _send(self, page: Page) -> None:
        self.server.wait_for(self.connection, client=True)
        self.send_response(HTTPStatus(page.status))
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, *_: object) -> None:
        """Nothing: a scrape is no event."""

    def version_string(self) -> str:
        return "recalld"


def _host(header: str) -> str:
    """The name in a Host header, "" when it is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
