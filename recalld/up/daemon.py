"""`recalld up`: supervise broker, producers, workers and query service, and print their progress."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
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
from recalld.up.lifecycle import SettingsAge, announce_ready, last_act, running_broker, stop_event, watchdog
from recalld.up.lock import only_daemon
from recalld.up.progress import Progress, say
from recalld.up.supervisor import STOP_SECONDS, Child, kill_all, own_command, stop_all
from recalld.wiring import BrokerSide, generations_of, open_broker
from schemas.conditions import Condition, ConditionCode
from schemas.errors import RecalldError, UserError
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
        with running_broker(settings) as broker:
            if not stop.is_set():
                with open_broker(settings, answer_seconds=IMPATIENT_SECONDS) as side:
                    _Daemon(invocation, broker, side, stop).run(age)
        if stop.is_set():
            say("stopped")
    return 0


def _close_to_others(home: Path) -> None:
    """Close to other users what an earlier version left open. Other files in the same folder stay as they are."""
    for name in ("agents.json", "broker", "cache", "id", "imports", "indexes", "log", "namespace", "run", "spool"):
        path = home / name
        with suppress(OSError):
            path.chmod(0o700 if path.is_dir() else 0o600, follow_symlinks=False)


class _Daemon:
    """Processes of one home, from their start to their end."""

    def __init__(self, invocation: Invocation, broker: BrokerServer, side: BrokerSide, stop: threading.Event) -> None:
        self._invocation = invocation
        self._settings = invocation.settings
        self._broker = broker
        self._side = side
        self._stop = stop
        self._pulses = Pulses(stalled_after_seconds=self._settings.workers.stalled_after_seconds)
        self._children = self._made_children()

    def _made_children(self) -> list[Child]:
        settings, invocation = self._settings, self._invocation
        shared = ["--home", str(settings.home)]
        for flag, value in (("--config", invocation.config), ("--agent", invocation.agent)):
            if value is not None:
                shared += [flag, value]
        workspace = settings.agent(invocation.agent or "main").workspace if invocation.workspace else None
        here = ["--workspace", str(workspace)] if workspace is not None else []
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

    def run(self, age: SettingsAge) -> None:
        """Supervise until the user stops it; then stop all in order."""
        life = Heartbeat(self._settings, "up", self._pulses, outdated=age)
        with last_act(partial(kill_all, self._children)), watchdog(self._hanging), ExitStack() as ending:
            ending.callback(life.stop)
            ending.callback(stop_all, self._children)
            ending.callback(self._pulses.close)
            ending.callback(self._say_stopping)
            self._serve_health(ending)
            life.start()
            self._supervise()

    def _say_stopping(self) -> None:
        if self._stop.is_set():
            say("stopping: what is being indexed is finished first (again stops at once)")

    def _missed(self) -> list[tuple[str, str]]:
        return [(child.name, why) for child in self._children if (why := child.missed())]

    def _hanging(self) -> list[str]:
        """Return what only a restart of all ends: stalled processes of ours."""
        ours = {child.pid for child in self._children}
        states = known_processes(self._side.board)
        return [*self._pulses.problems(), *(state.problem for state in states if state.pid in ours and state.problem)]

    def _serve_health(self, ending: ExitStack) -> None:
        """Serve `/readyz` for all processes of this daemon, where a port is set."""
        up, board = self._settings.up, self._side.board
        if up.port is not None:
            route = readiness(
                board.broker,
                board.stalled_seconds,
                stalled_after_seconds=self._settings.workers.stalled_after_seconds,
                problems=lambda: [*(why for _, why in self._missed()), *self._hanging()],
            )
            server = TelemetryServer(up.host, up.port, routes={"/readyz": route}, section="up")
            server.start()
            ending.callback(server.stop)

    def _supervise(self) -> None:
        """Keep broker and children alive until the user stops them.

        Raises:
            UserError: a child does not start.
        """
        progress, pulse = Progress(self._settings, self._side), self._pulses.of("supervising")
        missing: list[Condition] | None = None  # of an earlier run
        asked_at, deadline, is_up = 0.0, time.monotonic() + _READY_SECONDS, False
        while not self._stop.wait(_LOOK_SECONDS if is_up else _LOOK_SECONDS / 4):
            pulse.busy("looks after the processes")
            ended = [said for child in self._children if (said := child.look())]
            for said in ended:
                say(said)
            if not is_up and self._all_ready(deadline):
                is_up = True
                self._greet()
                announce_ready(supervised=False)
            # A process may have ended because the broker did.
            if not ended and time.monotonic() - asked_at < _ASK_SECONDS:
                continue
            asked_at = time.monotonic()
            try:
                if not self._broker.answers():
                    self._broker.ensure()
                    say("the broker was gone; it is started again")
            except RecalldError as error:
                say(str(error))
            found = [
                Condition(ConditionCode.PROCESS_MISSING, name, params={"reason": why}) for name, why in self._missed()
            ]
            if found != missing:
                self._side.board.replace((ConditionCode.PROCESS_MISSING,), found, agent="*")
                missing = found
            if is_up:
                progress.look()

    def _all_ready(self, deadline: float) -> bool:
        waiting = [child for child in self._children if not child.ready]
        for child in waiting:
            # Wrong settings do not become right by starting again; a broker that died meanwhile does.
            if child.failures >= _START_ATTEMPTS:
                raise UserError(f"{child.name} does not start: {child.last_words() or 'it ended'} (log: {child.log})")
        if waiting and time.monotonic() > deadline:
            slow = ", ".join(child.name for child in waiting)
            logs = waiting[0].log.parent
            raise UserError(f"{slow} did not come up within {_READY_SECONDS:.0f} s; the logs are in {logs}")
        return not waiting

    def _own_service(self) -> RunningService | None:
        """Return the entry of this daemon's query service; None if another service of the home made the entry."""
        service, serve = running_service(self._settings.home), self._children[-1]
        if service is None or service.pid != serve.pid:
            return None
        # A restarted one listens on the port of the first one, also when that port was picked.
        serve.command[serve.command.index("--port") + 1] = str(service.port)
        return service

    def _greet(self) -> None:
        settings, invocation = self._settings, self._invocation
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
        service = self._own_service()
        if service is not None:
            say(f"  search at {Address(service.host, service.port).url}/ or in another shell:")
            first, words = settings.agents[0].id if len(settings.agents) > 1 else None, 'search "what you look for"'
            say(f"  {invocation.command(words, agent=first)}")
        hooks = read_hooks_state(settings.home)
        if hooks is not None:
            say(f"  hooks at {hooks}PROGRAM")
        say("  Ctrl-C stops everything")
