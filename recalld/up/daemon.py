"""`recalld up`: supervise broker, producers, workers and query service, and print their progress."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from memory.backends.registry import absence_of
from memory.http.private_folders import check_private
from memory.http.server import listen
from memory.index.generations import Generations
from memory.status.condition_texts import part_of, text_of
from memory.status.processes import Pulses, known_processes, process_conditions
from memory.status.run_files import read_hooks_state
from memory.status.vectors import no_vectors
from memory.store.errors import StoreUnreadable
from memory.telemetry.server import TelemetryServer, readiness
from recalld.client.address import Address, running_service
from recalld.invocation import Invocation, to_type
from recalld.logs import configure_logs
from recalld.settings.load import check_workspace, systemd_variables
from recalld.terminal_text import printable_name
from recalld.up.detached import UP_LOG
from recalld.up.lifecycle import SettingsAge, last_act, running_broker, stop_event
from recalld.up.lock import daemon_lock
from recalld.up.progress import Progress, is_unread, say
from recalld.up.sd_notify import sd_notify, watchdog
from recalld.up.supervisor import UP_OVERDUE_SECONDS, Child, bound_log, own_command, stop_all
from recalld.wiring import AgentIndex, BrokerSide, EndpointProbes, closed, open_broker
from schemas.conditions import Condition, ConditionCode
from schemas.errors import RecalldError, UserError
from schemas.status import IndexCounts
from schemas.version import recalld_version
from workers.health.heartbeat import Heartbeat
from workers.queue.connection import IMPATIENT_SECONDS
from workers.queue.private_server import SERVER_LOG, BrokerServer

#: Seconds between two looks at the children, and between two at broker and progress.
_LOOK_SECONDS, _ASK_SECONDS = 0.2, 1.0

#: Times that a process may fail to start: the broker may die as it does.
_START_ATTEMPTS = 2


def run_daemon(invocation: Invocation, *, on_ready: Callable[[], object] = lambda: sd_notify("READY=1")) -> int:
    """Run until a signal. Return the exit code. `on_ready` is called when everything is ready."""
    # The terminal is for what `up` says; its parts write logs of their own.
    configure_logs(level=logging.INFO if is_unread() else logging.WARNING, process="up")
    age = SettingsAge(invocation)
    settings = invocation.settings
    for remark in invocation.loaded.remarks:
        say(printable_name(remark))
    if not settings.agents:
        advice = "give one with --workspace DIR, or see with `recalld discover` what is on this machine"
        raise UserError(f"no workspace is known yet; {advice}", exit_code=2)
    for agent in settings.agents:
        check_workspace(agent)
    with daemon_lock(settings.home):
        service, advice = settings.service, "choose another with --port, 0 picks a free one"
        # The query service could not say it in a sentence, and listens on the same port when it is started again.
        with listen(service.host, service.port, key="service.host", advice=advice) as free:
            address = Address(service.host, free.getsockname()[1])
        check_private(settings.home / "run", home=settings.home)
        invocation.remember()
        for agent in settings.agents:
            try:
                with closed(Generations.of(settings, agent.id).open_reader()):
                    pass
            except StoreUnreadable as error:
                say(to_type(str(error)))
            except RecalldError:
                pass  # workers meet it, too, and report it
        # Before anything is started that a signal would leave behind.
        stop = stop_event(supervised=False, overdue_seconds=UP_OVERDUE_SECONDS)
        with running_broker(settings) as broker, open_broker(settings, answer_seconds=IMPATIENT_SECONDS) as side:
            while not _Daemon(invocation, address, broker, side, stop).run(age, on_ready):
                invocation.reload()
                age, on_ready = SettingsAge(invocation), lambda: None
        say("stopped")
    return 0


class _Daemon:
    """Processes of one home, from their start to their end."""

    def __init__(
        self,
        invocation: Invocation,
        address: Address,
        broker: BrokerServer,
        side: BrokerSide,
        stop: threading.Event,
    ) -> None:
        self._invocation = invocation
        self._settings = settings = invocation.settings
        self._address = address
        self._broker = broker
        self._health = side.health
        self._stop = stop
        self._stalled_after = settings.workers.stalled_after_seconds
        self._pulses = Pulses(stalled_after_seconds=self._stalled_after)
        options = {"--home": str(settings.home), "--config": invocation.config, "--agent": invocation.agent}
        if invocation.loaded.workspace is not None:
            options["--workspace"] = str(settings.agent(invocation.loaded.workspace.agent).workspace)
        shared = [word for flag, value in options.items() if value is not None for word in (flag, value)]
        first, workers = settings.workers.port, range(settings.workers.processes)
        kinds = {
            "watch": [],
            **{f"work-{number + 1}": ["--port", str(first + number)] if first else [] for number in workers},
            "serve": ["--host", address.host, "--port", str(address.port)],
        }
        self._children = [
            Child(
                name,
                own_command(name.partition("-")[0], *shared, *arguments, "--supervised"),
                log_folder=settings.home / "log",
            )
            for name, arguments in kinds.items()
        ]

    def run(self, age: SettingsAge, on_ready: Callable[[], object]) -> bool:
        """Supervise until the user stops it, or agents came or went; then stop all in order. Return False for those."""
        with last_act(self._kill_all), watchdog(self._hanging), ExitStack() as ending:
            ending.enter_context(Heartbeat(self._settings, "up", self._pulses, outdated=age))
            ending.callback(stop_all, self._children)
            ending.callback(self._pulses.close)
            if (port := self._settings.up.port) is not None:
                route = readiness(
                    self._health.broker,
                    self._health.stalled_seconds,
                    stalled_after_seconds=self._stalled_after,
                    problems=lambda: [*self._missed().values(), *self._hanging()],
                )
                ending.enter_context(
                    TelemetryServer(self._settings.up.host, port, routes={"/readyz": route}, section="up")
                )
            self._supervise(age, on_ready)
            if not self._stop.is_set():
                say("agents were added or removed in the settings: everything is started again with them")
                return False
            say("stopping: what is being indexed is finished first (again stops at once)")
        return True

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill()

    def _missed(self) -> dict[str, str]:
        return {child.name: why for child in self._children if (why := child.missed())}

    def _hanging(self) -> list[str]:
        """Return the condition that only a restart of all ends: stalled processes of ours."""
        ours = {child.pid for child in self._children}
        states = [state for state in known_processes(self._health) if state.pid in ours]
        return [*self._pulses.problems(), *map(text_of, process_conditions(states))]

    def _supervise(self, age: SettingsAge, on_ready: Callable[[], object]) -> None:
        """Keep broker and children alive until the end; greet when all are ready, then print the progress.

        Raises:
            UserError: a child does not start.
        """
        probes = EndpointProbes(self._settings, self._settings.agents)
        progress, pulse = Progress(self._settings, self._health), self._pulses.of("supervising")
        is_up, ask_at, reported = False, 0.0, None
        while not self._stop.wait(_LOOK_SECONDS):
            pulse.busy("looks after the processes")
            messages = [message for child in self._children if (message := child.look())]
            unreachable = probes.unreachable(waits=False)
            for message in [*messages, *(f"{part_of(each)}: {to_type(text_of(each))}" for each in unreachable)]:
                say(message)
            if not is_up and self._all_ready():
                is_up = True
                on_ready()
            # A process may have ended because the broker did.
            if not messages and time.monotonic() < ask_at:
                continue
            ask_at = time.monotonic() + _ASK_SECONDS
            for log in (UP_LOG, Path("broker") / SERVER_LOG):
                bound_log(self._settings.home / log)
            try:
                if not self._broker.answers():
                    self._broker.ensure()
                    say("the broker was gone; it is started again")
            except RecalldError as error:
                say(str(error))
            if (missed := self._missed()) != reported:
                code, reported = ConditionCode.PROCESS_MISSING, missed
                conditions = [Condition(code, name, params={"reason": why}) for name, why in missed.items()]
                self._health.replace((code,), conditions, agent="*")
            if is_up:
                progress.look()
                if age.only_agents_changed() and self._has_workspaces():
                    return

    def _has_workspaces(self) -> bool:
        """Return True if the workspaces of the changed settings are there. If not, a restart by the user says so."""
        try:
            for agent in self._invocation.read_again().settings.agents:
                check_workspace(agent)
        except UserError:
            return False
        return True

    def _all_ready(self) -> bool:
        for child in self._children:
            # Wrong settings do not become right by starting again; a broker that died meanwhile does.
            if not child.ready and child.failures >= _START_ATTEMPTS:
                raise UserError(f"{child.name} does not start: {child.last_words() or 'it ended'} (log: {child.log})")
        if not all(child.ready for child in self._children):
            return False
        self._greet()
        return True

    def _greet(self) -> None:
        settings, invocation = self._settings, self._invocation
        say(f"recalld {recalld_version()} is up (home: {settings.home})")
        for agent in settings.agents:
            say(f"  agent {agent.id}: {agent.workspace}")
            choice = AgentIndex(settings, agent).choice
            if (lack := no_vectors(agent.id, choice.lacking, IndexCounts())) is not None:
                say(f"    {text_of(lack)}")
            elif choice.missing is not None:
                say(f"    {choice.reason}")
            if (absence := absence_of(agent)) is not None:
                say(f"    {absence}; recalld's own index answers until then")
        service = running_service(settings.home) or self._address
        say(f"  search at {Address(service.host, service.port).url}/ or in another shell:")
        first, words = settings.agents[0].id if len(settings.agents) > 1 else None, 'search "what you look for"'
        say(f"  {invocation.command(words, agent=first)}")
        hooks = read_hooks_state(settings.home)
        if hooks is not None:
            say(f"  hooks at {hooks}PROGRAM")
        if not is_unread() and not systemd_variables():
            stay = "`recalld up --detach` runs it without this terminal, `recalld service install` also after a reboot"
            say(to_type(f"  Ctrl-C stops everything; {stay}"))
        else:
            reboot = "" if systemd_variables() else "; `recalld service install` starts it again after a reboot"
            say(to_type(f"  `recalld stop` stops everything{reboot}"))
