"""`recalld up`: supervise broker, producers, workers and query service, and print their progress."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

from memory.index.provider_fallback import provider_of
from memory.status.answering import no_prefixes, no_vectors
from memory.status.condition_texts import text_of
from memory.status.processes import known_processes
from memory.status.pulses import Pulses
from memory.status.run_files import read_hooks_state
from memory.telemetry.server import TelemetryServer
from recalld.client.address import SERVICE_FILE, Address, RunningService, running_service
from recalld.invocation import Invocation
from recalld.logs import configure_logs
from recalld.settings.load import check_workspace
from recalld.up.lifecycle import announce_ready, last_act, stop_event, watchdog
from recalld.up.lock import only_daemon
from recalld.up.progress import Progress, say
from recalld.up.settings_age import SettingsAge
from recalld.up.supervisor import STOP_SECONDS, Child, Supervisor
from recalld.wiring import BrokerSide, generations_of, open_broker
from schemas.conditions import Condition, ConditionCode
from schemas.errors import RecalldError, UserError
from schemas.settings import Settings
from workers.health.heartbeat import Heartbeat
from workers.health.stall_detector import StallDetector
from workers.queue.connection import IMPATIENT_SECONDS
from workers.queue.private_server import BrokerServer
from workers.readiness import readiness

#: Seconds between two looks at the children.
_LOOK_SECONDS = 0.2

#: Seconds between two requests for the progress, while there is some.
_ASK_SECONDS = 1.0

#: Seconds that an orderly end may take in all: three kinds of processes one after the other, and the broker.
OVERDUE_SECONDS = 3 * STOP_SECONDS + 15.0

#: Times that a process may fail to start: the broker may die as it does.
_START_ATTEMPTS = 2

#: Seconds that the processes get to come up.
_READY_SECONDS = 60.0


def run_daemon(invocation: Invocation) -> int:
    """Run until Ctrl-C. Return the exit code."""
    # The terminal is for what `up` says; its parts write logs of their own.
    configure_logs(level=logging.WARNING, process="up")
    age = SettingsAge(invocation)
    settings = invocation.settings
    if not settings.agents:
        raise UserError(
            "no workspace is known yet; give one with --workspace DIR, or see with `recalld discover` what is on this "
            "machine",
            exit_code=2,
        )
    for agent in settings.agents:
        check_workspace(agent)
    with only_daemon(settings.home):
        _check_port(settings)
        _close_to_others(settings.home)
        # Of an earlier run: its process id and port may be another program's by now. A running service writes it again.
        with suppress(OSError):
            (settings.home / SERVICE_FILE).unlink()
        invocation.remember()
        # Before anything is started that a signal would leave behind.
        stop = stop_event(supervised=False, overdue_seconds=OVERDUE_SECONDS)
        broker = BrokerServer(settings)
        with last_act(broker.stop):
            try:
                broker.ensure()
                return 0 if stop.is_set() else _run(invocation, broker, age, stop)
            finally:
                broker.stop()
                if stop.is_set():
                    say("stopped")


def _close_to_others(home: Path) -> None:
    """Close to other users what an earlier version left open. Other files in the same folder stay as they are."""
    for name in ("agents.json", "broker", "cache", "id", "imports", "indexes", "log", "namespace", "run", "spool"):
        path = home / name
        with suppress(OSError):
            path.chmod(0o700 if path.is_dir() else 0o600, follow_symlinks=False)


def _run(invocation: Invocation, broker: BrokerServer, age: SettingsAge, stop: threading.Event) -> int:
    settings = invocation.settings
    supervisor = Supervisor(_children(invocation), say=say)
    pulses = Pulses(stalled_after_seconds=settings.workers.stalled_after_seconds)
    life = Heartbeat(settings, "up", pulses, outdated=age)
    with (
        open_broker(settings, answer_seconds=IMPATIENT_SECONDS) as side,
        last_act(supervisor.kill),
        watchdog(_what_hangs(side, supervisor, pulses)),
    ):
        health = _health(settings, side, supervisor, pulses)
        try:
            life.start()
            supervisor.start()
            if _wait_ready(supervisor, broker, stop):
                _keep_port(settings, supervisor)
                _greet(invocation, supervisor)
                announce_ready(supervised=False)
                _watch_over(settings, supervisor, broker, side, pulses, stop)
        finally:
            if stop.is_set():
                say("stopping: what is being indexed is finished first (again stops at once)")
            if health is not None:
                health.stop()
            pulses.close()
            supervisor.stop()
            life.stop()
    return 0 if stop.is_set() else 1


def _children(invocation: Invocation) -> list[Child]:
    settings = invocation.settings
    shared = ["--home", str(settings.home)]
    for flag, value in (("--config", invocation.config), ("--agent", invocation.agent)):
        if value is not None:
            shared += [flag, value]
    here = ["--workspace", str(settings.agent(invocation.agent or "main").workspace)] if invocation.workspace else []
    logs = settings.home / "log"
    port = ["--host", settings.service.host, "--port", str(settings.service.port)]
    return [
        Child("watch", [*shared, "watch", *here], log_folder=logs),
        *(
            Child(f"work-{number}", [*shared, "work", *here, *_worker_port(settings, number)], log_folder=logs)
            for number in range(1, settings.workers.processes + 1)
        ),
        Child("serve", [*shared, "serve", *here, *port], log_folder=logs),
    ]


def _worker_port(settings: Settings, number: int) -> list[str]:
    """Return the flags for the port on which one worker process serves its metrics."""
    first = settings.workers.port
    return ["--port", str(first + number - 1)] if first else []


def _check_port(settings: Settings) -> None:
    """Check, before anything is started, that the query service could listen."""
    host, port = settings.service.host, settings.service.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                raise UserError(
                    f"port {port} on {host} cannot be used ({error.strerror}); "
                    "choose another with --port, 0 picks a free one"
                ) from None
            raise UserError(
                f"{host} is no address of this machine ({error.strerror}); correct --host or service.host",
                exit_code=2,
            ) from None


def _wait_ready(supervisor: Supervisor, broker: BrokerServer, stop: threading.Event) -> bool:
    """Wait for the children. Return False if the user gave up.

    Raises:
        UserError: a child does not start.
    """
    deadline = time.monotonic() + _READY_SECONDS
    failures = Counter[str]()
    while not stop.wait(_LOOK_SECONDS / 4):
        if supervisor.all_ready():
            return True
        for child in supervisor.children:
            code = child.ended_with()
            if not code:
                continue
            failures[child.name] += code > 0  # a killed process did nothing wrong
            # Wrong settings do not become right by starting again; a broker that died meanwhile does.
            if failures[child.name] >= _START_ATTEMPTS:
                raise UserError(
                    f"{child.name} does not start: {child.last_words() or f'exit code {code}'} (log: {child.log})"
                )
            if not broker.answers():
                broker.ensure()
        supervisor.look()
        if time.monotonic() > deadline:
            slow = ", ".join(child.name for child in supervisor.children if not child.ready.is_set())
            logs = supervisor.children[0].log.parent
            raise UserError(f"{slow} did not come up within {_READY_SECONDS:.0f} s; the logs are in {logs}")
    return False


def _keep_port(settings: Settings, supervisor: Supervisor) -> None:
    """Let a restarted query service listen on the port of the first one, also when that port was picked."""
    service = _own_service(settings, supervisor)
    serve = supervisor.children[-1]
    if service is not None and "--port" in serve.arguments:
        serve.arguments[serve.arguments.index("--port") + 1] = str(service.port)


def _own_service(settings: Settings, supervisor: Supervisor) -> RunningService | None:
    """Return the entry of this daemon's query service; None if another service of the home made the entry."""
    service = running_service(settings.home)
    return service if service is not None and service.pid == supervisor.children[-1].pid else None


def _greet(invocation: Invocation, supervisor: Supervisor) -> None:
    settings = invocation.settings
    say(f"recalld {version('recalld')} is up (home: {settings.home})")
    for agent in settings.agents:
        say(f"  agent {agent.id}: {agent.workspace}")
        choice = provider_of(settings, agent)
        told = no_vectors(agent.id, choice)
        if choice.rebuilt is not None and (reader := generations_of(settings, agent).open_reader()) is not None:
            with closing(reader):
                told = no_prefixes(agent.id, agent, choice, chunks=reader.counts().chunks)
        if told is not None:
            say(f"    {text_of(told)}")
    service = _own_service(settings, supervisor)
    if service is not None:
        say(f"  search at {Address(service.host, service.port).url}/ or in another shell:")
        search = 'search "what you look for"'
        first = settings.agents[0].id if len(settings.agents) > 1 else None
        say(f"  {invocation.command(search, agent=first)}")
    hooks = read_hooks_state(settings.home)
    if hooks is not None:
        say(f"  hooks at {hooks}PROGRAM")
    say("  Ctrl-C stops everything")


def _watch_over(
    settings: Settings,
    supervisor: Supervisor,
    broker: BrokerServer,
    side: BrokerSide,
    pulses: Pulses,
    stop: threading.Event,
) -> None:
    progress = Progress(settings, side)
    told: list[Condition] | None = None  # of an earlier run
    pulse = pulses.of("supervising")
    asked_at = 0.0
    while not stop.wait(_LOOK_SECONDS):
        pulse.busy("looks after the processes")
        supervisor.look()
        if time.monotonic() - asked_at < _ASK_SECONDS:
            continue
        asked_at = time.monotonic()
        if not broker.answers():
            try:
                broker.ensure()
                say("the broker was gone; it is started again")
            except RecalldError as error:
                say(str(error))
        missing = _missing(supervisor)
        if missing != told:
            side.board.replace((ConditionCode.PROCESS_MISSING,), missing, agent="*")
            told = missing
        progress.look()


def _health(settings: Settings, side: BrokerSide, supervisor: Supervisor, pulses: Pulses) -> TelemetryServer | None:
    """Start the server of `/readyz` for all processes of this daemon, where a port is set."""
    if settings.up.port is None:
        return None

    def problems() -> list[str]:
        missed = [why for why in supervisor.missed().values() if why is not None]
        unwell = [f"{state.role}: {state.problem}" for state in known_processes(side.board) if state.problem]
        return [*missed, *unwell, *pulses.problems()]

    route = readiness(
        StallDetector(side.client, side.keys),
        stalled_after_seconds=settings.workers.stalled_after_seconds,
        problems=problems,
    )
    server = TelemetryServer(settings.up.host, settings.up.port, routes={"/readyz": route}, section="up")
    server.start()
    return server


def _what_hangs(side: BrokerSide, supervisor: Supervisor, pulses: Pulses) -> Callable[[], Sequence[str]]:
    """Return a function that lists what only a restart of all ends: stalled processes of ours."""

    def problems() -> list[str]:
        ours = {child.pid for child in supervisor.children}
        states = known_processes(side.board)
        return [*pulses.problems(), *(state.problem for state in states if state.pid in ours and state.problem)]

    return problems


def _missing(supervisor: Supervisor) -> list[Condition]:
    """Return a condition for each process that does not come up."""
    missed = supervisor.missed().items()
    return [Condition(ConditionCode.PROCESS_MISSING, name, params={"reason": why}) for name, why in missed if why]
