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
from memory.service.listening import QuietServer, check_tokens, listen
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


def serve(
    settings: Settings,
    pending: PendingReader | None,
    *,
    inbox: EventInbox | None = None,
    coordinate: Coordinate = alone,
    on_ready: Callable[[], None] | None = None,
    stop: threading.Event | None = None,
    pulses: Pulses | None = None,
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
            asyncio.run(_run(settings, app, listener, on_ready, ending, pulses or Pulses()))
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
) -> None:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = QuietServer(config)
    host, port = settings.service.host, listener.getsockname()[1]
    pulse = pulses.of("answering", limit_seconds=ANSWERING_LIMIT_SECONDS)
    watcher = asyncio.create_task(_watch(server, stop, pulse, lambda: _announce(settings.home, host, port, on_ready)))
    try:
        await server.serve(sockets=[listener])
    finally:
        pulses.close()
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        _withdraw(settings.home)
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


def _announce(home: Path, host: str, port: int, on_ready: Callable[[], None] | None) -> None:
    path = home / SERVICE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    _log.info("service_listening", host=host, port=port)
    if _somebody_elses(path):
        # The one that `up` keeps running stays the one that commands ask.
        _log.warning("service_not_registered", reason="another service of this home runs and stays the registered one")
    else:
        _register(path, host, port)
    if on_ready is not None:
        on_ready()


def _somebody_elses(path: Path) -> bool:
    """Whether a service that is alive and is not this process is registered."""
    try:
        pid = int(json.loads(path.read_bytes())["pid"])
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return pid != os.getpid()


def _register(path: Path, host: str, port: int) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}), encoding="utf-8")
    draft.replace(path)


def _withdraw(home: Path) -> None:
    """Remove the file, unless it is another process's by now."""
    path = home / SERVICE_FILE
    try:
        if json.loads(path.read_bytes()).get("pid") == os.getpid():
            path.unlink()
    except (OSError, ValueError, AttributeError):
        return
