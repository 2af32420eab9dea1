"""Lifecycle of a long-running command: it ends at a signal, or when the supervisor that started it is gone."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import structlog

from recalld.invocation import Invocation
from recalld.settings.load import files_of_variables, find_config
from recalld.up.sd_notify import sd_notify
from schemas.errors import Transient, UserError
from schemas.status import OutdatedState

if TYPE_CHECKING:
    from schemas.settings import Settings
    from workers.queue.private_server import BrokerServer

log = structlog.get_logger(__name__)

#: Seconds between two looks for a store that is away; microseconds that systemd waits for the next one.
_STORE_SECONDS, _STORE_EXTENDS = 1.0, 60_000_000

#: Seconds that a process has for its orderly end: workers drain for 20, and a supervisor waits for 30.
OVERDUE_SECONDS = 27.0

#: In place of a signal's number: the supervisor is gone.
_PARENT_GONE = 0

#: Parameters of glibc's malloc by their numbers in its malloc.h: the most heaps, of which each thread has one by
#: default, and the bytes of a block from which on it is in no heap (`M_ARENA_MAX`, `M_MMAP_THRESHOLD`).
_MALLOC = {-8: 2, -3: 64 * 1024}

#: Acts of a process before an immediate exit: they end its children and its broker.
_last_acts: list[Callable[[], None]] = []

_leaving = threading.Event()

#: Hidden flag of commands that `recalld up` starts.
supervised_option = click.option("--supervised", is_flag=True, hidden=True)


@contextmanager
def last_act(act: Callable[[], None]) -> Iterator[None]:
    """During the block, let a second signal call `act` before the process leaves; the latest act comes first."""
    _last_acts.append(act)
    try:
        yield
    finally:
        if _leaving.is_set():
            threading.Event().wait()  # `_leave` has the exit code
        _last_acts.remove(act)


def stop_event(*, supervised: bool, overdue_seconds: float = OVERDUE_SECONDS) -> threading.Event:
    """Return an event that is set by SIGTERM, SIGINT, SIGHUP and, for a supervised process, when standard input ends.

    The supervisor holds the other end of that pipe and never writes to it: however it dies, the pipe ends. At a signal
    after that, and `overdue_seconds` after the first one, the process leaves at once, after its last acts (`last_act`).
    Other processes take up its work, as after a crash.

    A thread hears the signals. A handler could not set an event safely: it may interrupt the holder of the event's
    lock, and it waits for a main thread that is deep in a library.
    """
    stop = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before >= 0:
        os.close(before)  # of an earlier command in this process; its thread ends with it
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup keeps a command alive without its terminal
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    terminals = [number for number in (0, 1, 2) if os.isatty(number)]
    threading.Thread(target=_hear, args=(reader, stop, terminals, overdue_seconds), name="signals", daemon=True).start()
    if supervised:
        threading.Thread(target=_watch_parent, args=(writer,), name="parent", daemon=True).start()
    return stop


def _watch_parent(writer: int) -> None:
    while os.read(0, 1024):
        pass
    os.write(writer, bytes([_PARENT_GONE]))


def _hear(reader: int, stop: threading.Event, terminals: Sequence[int], overdue_seconds: float) -> None:
    """Set the event at the first signal, leave at the second or when the end takes too long."""
    timeout_seconds: float | None = None
    while select.select([reader], [], [], timeout_seconds)[0]:
        numbers = os.read(reader, 64)
        if not numbers:
            os.close(reader)
            return
        for number in numbers:
            if number == signal.SIGHUP:
                # Printing to a terminal that is gone must not fail.
                for terminal in terminals:
                    os.dup2(os.open(os.devnull, os.O_RDWR), terminal)
            elif stop.is_set() and number != _PARENT_GONE:
                _leave(128 + number)
            if not stop.is_set():
                stop.set()
                timeout_seconds = overdue_seconds
                sd_notify("STOPPING=1")
    with suppress(OSError, ValueError):
        click.echo(f"recalld: did not end within {overdue_seconds:.0f} s and leaves as it is", err=True)
    _leave(1)


def _leave(code: int) -> NoReturn:
    """End the process now, after the last acts."""
    _leaving.set()
    for act in reversed(_last_acts):
        with suppress(Exception):
            act()
    os._exit(code)


@contextmanager
def running_broker(settings: Settings, *, supervised: bool = False) -> Iterator[BrokerServer]:
    """Run a broker during the block, unless one answers already.

    A supervised process leaves the broker to its supervisor. Raises UserError: a fleet has no private broker.
    """
    from workers.queue.private_server import BrokerServer

    if settings.store.url is not None and settings.broker.url is None:
        raise UserError("with store.url all processes share one queue: set broker.url (or REDIS_URL), too")

    server = BrokerServer(settings)
    if supervised:
        yield server
        return
    with last_act(server.stop):
        try:
            server.ensure()
            yield server
        finally:
            server.stop()


def await_store(settings: Settings, stop: threading.Event, *, host: str, port: int | None) -> None:
    """Wait until the store of a fleet answers, or until `stop`. Meanwhile the port answers `/healthz` and `/readyz`.

    Raises:
        StoreRefuses, StoreUnreadable: no waiting mends that.
        UserError: the port cannot be opened.
    """
    if settings.store.url is None:
        return
    from starlette.responses import JSONResponse

    from memory.store.errors import StoreRefuses
    from memory.store.postgres.connection import Database
    from memory.telemetry.server import TelemetryServer

    reason = ""

    def not_ready() -> JSONResponse:
        return JSONResponse({"status": "not ready", "error": reason}, 503)

    with ExitStack() as stand_in:
        while not stop.is_set():
            try:
                Database.of(settings.store).check()
            except StoreRefuses:
                raise
            except Transient as error:
                if not reason:
                    log.warning("waiting_for_store", reason=str(error))
                    if port:
                        stand_in.enter_context(TelemetryServer(host, port, routes={"/readyz": not_ready}))
                reason = str(error)
            else:
                if reason:
                    log.info("store_answers")
                return
            sd_notify(f"EXTEND_TIMEOUT_USEC={_STORE_EXTENDS}")
            stop.wait(_STORE_SECONDS)


@contextmanager
def traced(settings: Settings, part: str) -> Iterator[None]:
    """Send spans by OTLP over HTTP if the settings say so; the last ones are sent at the end.

    The variables of OpenTelemetry (OTEL_EXPORTER_OTLP_ENDPOINT) say where to. `part` is `serve`, `work` or `watch`.

    Raises:
        UserError: tracing is on and OpenTelemetry's SDK is not installed.
    """
    if not settings.tracing.enabled:
        yield
        return
    from schemas.version import install_command, recalld_version

    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        advice = f"{install_command('otel')}, or leave tracing off"
        raise UserError(f"tracing.enabled needs OpenTelemetry: {advice}", exit_code=2) from None
    resource = Resource.create({"service.name": f"recalld-{part}", "service.version": recalld_version()})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def keep_heaps_small() -> None:
    """Let glibc give free memory back to the system; without glibc, do nothing.

    By default each thread has a heap, which keeps the memory of its busiest moment, and each large block that is freed
    lets later ones of up to 32 MiB into the heaps, where they leave holes
    (https://man7.org/linux/man-pages/man3/mallopt.3.html).
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            libc = ctypes.CDLL(None)
            for parameter, value in _MALLOC.items():
                libc.mallopt(parameter, value)


class SettingsAge:
    """Check for changed settings, made before they are first read. A call looks only at the times of a few files."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._seen = self._look()
        self._read_at = time.time()
        self._settings = invocation.settings
        self._changed: Settings | None = None
        self._outdated: OutdatedState | None = None

    def __call__(self) -> OutdatedState | None:
        """Return the change of settings that this process has not read, None without one. Never raises."""
        look = self._look()
        if look != self._seen:
            self._seen, self._changed, invalid = look, None, False
            try:
                self._changed = self._invocation.read_again().settings
            except UserError:
                invalid = True
            changed = self._changed != self._settings
            at, file = max(((at, str(file)) for file, (at, _) in look.items()), default=(time.time(), "a gone file"))
            self._outdated = OutdatedState(file, at, self._read_at, invalid=invalid) if changed else None
        return self._outdated

    def only_agents_changed(self) -> bool:
        """Return True if agents came or went since the settings were read, and nothing else changed.

        A change of anything else may cost money, a new model say: it waits until the user restarts the process.
        """
        if self() is None or self._changed is None:
            return False
        before, after = ({agent.id: agent for agent in read.agents} for read in (self._settings, self._changed))
        alike = self._changed.model_copy(update={"agents": self._settings.agents}) == self._settings
        return alike and all(after[agent] == before[agent] for agent in {*before} & {*after})

    def _look(self) -> dict[Path, tuple[float, int]]:
        """Return time and size of each file that the settings come from."""
        home = self._invocation.home_path
        files = [home / "agents.json", *files_of_variables()]
        # A file that was named and is gone is found by reading again.
        with suppress(UserError):
            files += filter(None, [find_config(self._invocation.config, home=home)])
        return {file: ((stat := file.stat()).st_mtime, stat.st_size) for file in files if file.exists()}
