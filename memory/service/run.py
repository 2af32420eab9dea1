"""Run the query service until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI

from memory.embedding.coordination import Coordinate, alone
from memory.pulses import Pulse, Pulses
from memory.service.app import create_app
from memory.service.bounds import Bounds
from memory.service.listening import bounded_server, check_tokens, listen
from memory.service.security import needs_tokens
from schemas.ports import EventInbox, PendingReader
from schemas.settings import Settings

_log = structlog.get_logger(__name__)

#: Relative to the home folder: {"host", "port", "pid"} of the service that listens.
SERVICE_FILE = Path("run") / "service.json"

#: Seconds that requests get to finish after a stop.
GRACE_SECONDS = 5

#: Seconds for which the loop that answers may be held up.
ANSWERING_LIMIT_SECONDS = 15.0

_STOP_POLL_SECONDS = 0.1

#: Seconds between two looks at whether commands still find a service, and what one look may take.
_REGISTRATION_SECONDS = 1.0
_LOOK_SECONDS = 0.2


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

    Args:
        settings: `service.host` and `service.port` say where (port 0: a free one).
        pending: how to ask how far the index is behind.
        inbox: where a request to compare files and index is left.
        coordinate: what queries share with others who use their embedding provider.
        on_ready: called once searches are answered; `<home>/run/service.json` says where.
        stop: ends the service when set; signals are then the caller's business.
        pulses: are told whether the service gets on.
        bounds: of clients; by default those that fit this process.

    Raises:
        UserError: the port is taken, the address is not this machine's, or tokens are needed and missing.
    """
    if needs_tokens(settings, host=settings.service.host):
        check_tokens(settings, host=settings.service.host, key="service.host")
    listener = listen(
        settings.service.host, settings.service.port, key="service.host", advice="choose another with --port"
    )
    try:
        app = create_app(settings, pending, inbox=inbox, coordinate=coordinate)
        with _stopping(stop) as ending:
            asyncio.run(_run(settings, app, listener, on_ready, ending, pulses or Pulses(), bounds))
    finally:
        listener.close()


@contextlib.contextmanager
def _stopping(stop: threading.Event | None) -> Iterator[threading.Event]:
    """The event to wait for: the caller's, else one that SIGTERM and SIGINT set."""
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stop or threading.Event()
        return
    ending = threading.Event()
    before = {number: signal.signal(number, lambda *_: ending.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _run(
    settings: Settings,
    app: FastAPI,
    listener: socket.socket,
    on_ready: Callable[[], None] | None,
    stop: threading.Event,
    pulses: Pulses,
    bounds: Bounds | None,
) -> None:
    server = bounded_server(app, grace_seconds=GRACE_SECONDS, bounds=bounds)
    host, port = settings.service.host, listener.getsockname()[1]
    path = settings.home / SERVICE_FILE
    pulse = pulses.of("answering", limit_seconds=ANSWERING_LIMIT_SECONDS)
    watcher = asyncio.create_task(_watch(server, stop, pulse, lambda: _announce(path, host, port, on_ready)))
    keeper = asyncio.create_task(_keep_registered(server, path, host, port))
    try:
        await server.serve(sockets=[listener])
    finally:
        pulses.close()
        for task in (watcher, keeper):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        _withdraw(path)
        _log.info("service_stopped", port=port)


async def _watch(server: uvicorn.Server, stop: threading.Event, pulse: Pulse, announce: Callable[[], None]) -> None:
    announced = False
    while True:
        pulse.busy("answers requests")
        if server.started and not announced:
            announced = True
            announce()
        if stop.is_set():
            server.should_exit = True
        await asyncio.sleep(_STOP_POLL_SECONDS if announced else 0.01)


async def _keep_registered(server: uvicorn.Server, path: Path, host: str, port: int) -> None:
    """Take the place of the registered service when that one is gone, as the one of a killed `up` is soon."""
    while True:
        await asyncio.sleep(_REGISTRATION_SECONDS)
        if server.started and not server.should_exit and await asyncio.to_thread(_registered, path) is None:
            with contextlib.suppress(OSError):  # a full disk, say; the next look tries again
                _register(path, host, port)


def _announce(path: Path, host: str, port: int, on_ready: Callable[[], None] | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _log.info("service_listening", host=host, port=port)
    if _registered(path) not in {None, os.getpid()}:
        # The one that `up` keeps running stays the one that commands ask.
        _log.warning("service_not_registered", reason="another service of this home runs and stays the registered one")
    else:
        _register(path, host, port)
    if on_ready is not None:
        on_ready()


def _registered(path: Path) -> int | None:
    """The process of the registered service: this one, or another one that listens; None when there is none alive.

    A process of that number may be anybody, after the machine was started again.
    """
    try:
        service = json.loads(path.read_bytes())
        pid, address = int(service["pid"]), (str(service["host"]), int(service["port"]))
        if pid == os.getpid():
            return pid
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)
        socket.create_connection(address, timeout=_LOOK_SECONDS).close()
    except (OSError, OverflowError, ValueError, KeyError, TypeError):
        return None
    return pid


def _register(path: Path, host: str, port: int) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}), encoding="utf-8")
    draft.replace(path)


def _withdraw(path: Path) -> None:
    """Remove the file, unless it is another process's by now."""
    try:
        if json.loads(path.read_bytes()).get("pid") == os.getpid():
            path.unlink()
    except (OSError, ValueError, AttributeError):
        return
