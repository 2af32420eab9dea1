"""Process of the query service: its port, its entry in the home, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hmac
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from memory.embedding.coordination import Coordinate, alone
from memory.http.authorization import check_tokens, ensure_owner_token
from memory.http.private_folders import check_private
from memory.http.server import BoundedServer, Bounds, listen
from memory.service.agents import ServedAgents
from memory.service.app import create_app
from memory.status.processes import Pulses
from memory.status.run_files import read_derived, write_derived
from schemas.ports import EventInbox, PendingReader
from schemas.settings import Settings

_log = structlog.get_logger(__name__)

#: Relative to the home folder: {"host", "port", "pid", "secret"} of the service that commands use.
SERVICE_FILE = Path("run") / "service.json"

#: Relative to the home folder: held (flock) by that service, and so free again after any end of it.
LOCK_FILE = Path("run") / "service.lock"

#: Seconds that requests get to finish after a stop.
GRACE_SECONDS = 5

#: Seconds between two looks for a stop.
_POLL_SECONDS = 0.1

#: Seconds between two checks that commands still find a service.
_REGISTRATION_SECONDS = 1.0


def serve(
    settings: Settings,
    pending: PendingReader | None,
    *,
    inbox: EventInbox | None = None,
    coordinate: Coordinate = alone,
    on_ready: Callable[[], None] | None = None,
    stop: threading.Event | None = None,
    pulses: Pulses | None = None,
    bounds: Bounds | None = None,
) -> None:
    """Listen and answer until SIGTERM, SIGINT or `stop`; then let running requests finish and return.

    `service.host` and `service.port` (0: a free one) say where. `on_ready` is called once searches are answered;
    `<home>/run/service.json` has the address then. `bounds` are by default those that fit this process.

    Raises:
        UserError: the port is taken, the address is not this machine's, tokens are needed and missing, or other users
            may write where the service's secret lies.
    """
    check_private(settings.home / SERVICE_FILE.parent, home=settings.home)
    check_tokens(settings, host=settings.service.host, key="service.host")
    ensure_owner_token(settings.home)
    listener = listen(
        settings.service.host, settings.service.port, key="service.host", advice="choose another with --port"
    )
    registration = Registration(settings, listener.getsockname()[1])
    try:
        agents = ServedAgents(settings, pending=pending, inbox=inbox, coordinate=coordinate)
        app = create_app(agents, proof=registration.proof)
        server = BoundedServer(app, grace_seconds=GRACE_SECONDS, bounds=bounds)
        asyncio.run(_run(server, listener, registration, on_ready, stop, pulses or Pulses()))
    finally:
        listener.close()


class Registration:
    """Entry of one service in `run/service.json`, by which the commands of its home find it.

    The entry holds a secret made at each start. The service proves that it is the one of the entry by answering a nonce
    with its HMAC: a program that got the port of a service that died cannot.
    """

    def __init__(self, settings: Settings, port: int) -> None:
        self.host = settings.service.host
        self.port = port
        self._path = settings.home / SERVICE_FILE
        self._lock_path = settings.home / LOCK_FILE
        self._secret = secrets.token_hex(32)
        self._entry: dict[str, object] = {"host": self.host, "port": port, "pid": os.getpid(), "secret": self._secret}
        if any(agent.context.injection.enabled for agent in settings.agents):
            self._entry["givesContext"] = True  # hooks of programs ask for it
        self._lock: int | None = None

    def proof(self, nonce: str) -> str:
        """Return the HMAC-SHA256 (RFC 2104) of a nonce, in hex."""
        return hmac.new(self._secret.encode(), nonce.encode(), "sha256").hexdigest()

    def keep(self) -> str | None:
        """Register this service unless another one is; return the reason if it is not the registered one."""
        try:
            if self._lock is None:
                self._take()
            if read_derived(self._path) != self._entry:
                write_derived(self._path, self._entry)
        except BlockingIOError:
            # Commands keep using the service of `up`.
            return "another service of this home runs and stays the registered one"
        except OSError as error:  # a full disk, say; the next look tries again
            return str(error)
        return None

    def withdraw(self) -> None:
        """Remove the entry if it is this service's."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            if read_derived(self._path) == self._entry:
                self._path.unlink()
        os.close(self._lock)
        self._lock = None

    def _take(self) -> None:
        self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor


async def _run(
    server: BoundedServer,
    listener: socket.socket,
    registration: Registration,
    on_ready: Callable[[], None] | None,
    stop: threading.Event | None,
    pulses: Pulses,
) -> None:
    ending = stop or threading.Event()
    if stop is None and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
    pulse = pulses.of("answering")
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    announced, look_at = False, 0.0
    try:
        while not serving.done():
            pulse.busy("answers requests")
            if ending.is_set():
                server.should_exit = True
            elif server.started and time.monotonic() >= look_at:
                # Again and again: the registered service may go, for example the one of a killed `up`.
                look_at = time.monotonic() + _REGISTRATION_SECONDS
                reason = registration.keep()
                if not announced:
                    _log.info("service_listening", host=registration.host, port=registration.port)
                    if reason is not None:
                        _log.warning("service_not_registered", reason=reason)
                    if on_ready is not None:
                        on_ready()
                announced = True
            await asyncio.wait((serving,), timeout=_POLL_SECONDS if announced else 0.01)
        await serving
    finally:
        pulses.close()
        registration.withdraw()
        _log.info("service_stopped", port=registration.port)
