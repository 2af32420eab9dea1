"""`recalld up`: supervise broker, producers, workers and query service, and print their progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

from memory.http.server import listen
from memory.index.provider_fallback import provider_of
from memory.status.condition_texts import text_of
from memory.status.processes import Pulses, known_processes
from memory.status.run_files import read_hooks_state
from memory.status.vectors import no_prefixes, no_vectors
from memory.telemetry.server import TelemetryServer, readiness
from recalld.client.address import SERVICE_FILE, Address, RunningService, running_service
from recalld.invocation import Invocation
from recalld.logs import configure_logs
from recalld.settings.load import check_workspace
from recalld.up.lifecycle import announce_ready, last_act, stop_event, watchdog
from recalld.up.lock import only_daemon
from recalld.up.progress import Progress, say
from recalld.up.settings_age import SettingsAge
from recalld.up.supervisor import STOP_SECONDS, Child, Supervisor, own_command
from recalld.wiring import BrokerSide, generations_of, open_broker
from schemas.conditions import Condition, ConditionCode
from schemas.errors import RecalldError, UserError
from schemas.settings import Settings
from workers.health.heartbeat import Heartbeat
from workers.queue.connection import IMPATIENT_SECONDS
from workers.queue.private_server import BrokerServer

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
        # Before anything is started: the query service could not tell it in a sentence.
        service = settings.service
        listen(
            service.host, service.port, key="service.host", advice="choose another with --port, 0 picks a free one"
        ).close()
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
                if not stop.is_set():
                    _run(invocation, broker, age, stop)
            finally:
                broker.stop()
                if stop.is_set():
                    say("stopped")
    return 0


def _close_to_others(home: Path) -> None:
    """Close to other users what an earlier version left open. Other files in the same folder stay as they are."""
    for name in ("agents.json", "broker", "cache", "id", "imports", "indexes", "log", "namespace", "run", "spool"):
        path = home / name
        with suppress(OSError):
            path.chmod(0o700 if path.is_dir() else 0o600, follow_symlinks=False)


def _run(invocation: Invocation, broker: BrokerServer, age: SettingsAge, stop: threading.Event) -> None:
    settings = invocation.settings
    supervisor = Supervisor(_children(invocation))
    pulses = Pulses(stalled_after_seconds=settings.workers.stalled_after_seconds)
    life = Heartbeat(settings, "up", pulses, outdated=age)
    with open_broker(settings, answer_seconds=IMPATIENT_SECONDS) as side:

        def hanging() -> list[str]:
            """Return what only a restart of all ends: stalled processes of ours."""
            ours = {child.pid for child in supervisor.children}
            states = known_processes(side.board)
            return [*pulses.problems(), *(state.problem for state in states if state.pid in ours and state.problem)]

        with last_act(supervisor.kill), watchdog(hanging):
            health = _health(settings, side, lambda: [*supervisor.missed().values(), *hanging()])
            try:
                life.start()
                _supervise(invocation, supervisor, broker, side, pulses, stop)
            finally:
                if stop.is_set():
                    say("stopping: what is being indexed is finished first (again stops at once)")
                if health is not None:
                    health.stop()
                pulses.close()
                supervisor.stop()
                life.stop()


def _children(invocation: Invocation) -> list[Child]:
    settings = invocation.settings
    shared = ["--home", str(settings.home)]
    for flag, value in (("--config", invocation.config), ("--agent", invocation.agent)):
        if value is not None:
            shared += [flag, value]
    here = ["--workspace", str(settings.agent(invocation.agent or "main").workspace)] if invocation.workspace else []
    first, workers = settings.workers.port, range(settings.workers.processes)
    flags = {
        "watch": [],
        **{f"work-{number + 1}": ["--port", str(first + number)] if first else [] for number in workers},
        "serve": ["--host", settings.service.host, "--port", str(settings.service.port)],
    }
    return [
        Child(
            name,
            own_command("recalld", *shared, name.partition("-")[0], *here, *own, "--supervised"),
            log_folder=settings.home / "log",
        )
        for name, own in flags.items()
    ]


def _supervise(
    invocation: Invocation,
    supervisor: Supervisor,
    broker: BrokerServer,
    side: BrokerSide,
    pulses: Pulses,
    stop: threading.Event,
) -> None:
    """Keep broker and children alive until the user stops them.

    Raises:
        UserError: a child does not start.
    """
    progress, pulse = Progress(invocation.settings, side), pulses.of("supervising")
    missing: list[Condition] | None = None  # of an earlier run
    asked_at, deadline, is_up = 0.0, time.monotonic() + _READY_SECONDS, False
    while not stop.wait(_LOOK_SECONDS if is_up else _LOOK_SECONDS / 4):
        pulse.busy("looks after the processes")
        ended = supervisor.look()
        for said in ended:
            say(said)
        if not is_up and _all_ready(supervisor, deadline):
            is_up = True
            _keep_port(invocation.settings, supervisor)
            _greet(invocation, supervisor)
            announce_ready(supervised=False)
        # A process may have ended because the broker did.
        if not ended and time.monotonic() - asked_at < _ASK_SECONDS:
            continue
        asked_at = time.monotonic()
        try:
            if not broker.answers():
                broker.ensure()
                say("the broker was gone; it is started again")
        except RecalldError as error:
            say(str(error))
        missed = supervisor.missed().items()
        found = [Condition(ConditionCode.PROCESS_MISSING, name, params={"reason": why}) for name, why in missed]
        if found != missing:
            side.board.replace((ConditionCode.PROCESS_MISSING,), found, agent="*")
            missing = found
        if is_up:
            progress.look()


def _all_ready(supervisor: Supervisor, deadline: float) -> bool:
    waiting = [child for child in supervisor.children if not child.ready]
    for child in waiting:
        # Wrong settings do not become right by starting again; a broker that died meanwhile does.
        if child.failures >= _START_ATTEMPTS:
            raise UserError(f"{child.name} does not start: {child.last_words() or 'it ended'} (log: {child.log})")
    if waiting and time.monotonic() > deadline:
        slow = ", ".join(child.name for child in waiting)
        logs = waiting[0].log.parent
        raise UserError(f"{slow} did not come up within {_READY_SECONDS:.0f} s; the logs are in {logs}")
    return not waiting


def _keep_port(settings: Settings, supervisor: Supervisor) -> None:
    """Let a restarted query service listen on the port of the first one, also when that port was picked."""
    service = _own_service(settings, supervisor)
    serve = supervisor.children[-1]
    if service is not None:
        serve.command[serve.command.index("--port") + 1] = str(service.port)


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


def _health(settings: Settings, side: BrokerSide, problems: Callable[[], Sequence[str]]) -> TelemetryServer | None:
    """Start the server of `/readyz` for all processes of this daemon, where a port is set."""
    if settings.up.port is None:
        return None
    limit, board = settings.workers.stalled_after_seconds, side.board
    route = readiness(board.broker, board.stalled_seconds, stalled_after_seconds=limit, problems=problems)
    server = TelemetryServer(settings.up.host, settings.up.port, routes={"/readyz": route}, section="up")
    server.start()
    return server
