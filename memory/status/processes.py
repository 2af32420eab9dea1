"""Processes that should run: the pulses of their threads, and the conditions of those that are not well."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from memory.status.condition_texts import text_of
from schemas.conditions import Condition, ConditionCode, Param
from schemas.ports import PendingReader
from schemas.status import ProcessState
from schemas.version import recalld_version

#: Seconds from which a step is long enough to be shown.
LONG_SECONDS = 10.0

#: Seconds after which a step is stuck, unless the settings say otherwise (`workers.stalled_after_seconds`).
STALLED_SECONDS = 120.0


class Pulse:
    """Pulse of one working thread. A report costs less than a microsecond: one assignment, no lock."""

    __slots__ = ("_clock", "doing", "name", "thread")

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        #: The current step and its begin; None while the thread waits for work.
        self.doing: tuple[float, str] | None = None
        self.thread: threading.Thread | None = None

    def busy(self, doing: str) -> None:
        """Report the begin or the progress of a step."""
        self.doing = self._clock(), doing

    def idle(self) -> None:
        """Report that the thread waits for work, for as long as it likes."""
        self.doing = None

    @contextmanager
    def at(self, doing: str) -> Iterator[None]:
        """Be busy for as long as the block runs."""
        self.busy(doing)
        try:
            yield
        finally:
            self.idle()

    def belongs_to(self, thread: threading.Thread) -> None:
        """Set the thread, which must not end before `Pulses.close`: its end is a problem, too."""
        self.thread = thread


class Pulses:
    """Pulses of all working threads of a process. Thread-safe."""

    def __init__(
        self, *, stalled_after_seconds: float = STALLED_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stalled_after_seconds = stalled_after_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._pulses: dict[tuple[str, int | None], Pulse] = {}
        self._closed = False

    def of(self, name: str, *, thread: int | None = None) -> Pulse:
        """Return the pulse of that name, made at first use; `thread` tells threads of the same name apart."""
        with self._lock:
            return self._pulses.setdefault((name, thread), Pulse(name, clock=self._clock))

    def problems(self) -> list[str]:
        """Return the stuck and the ended threads, in words."""
        ended_threads = [
            f"its {pulse.name} thread has ended"
            for pulse in self._open()
            if pulse.thread is not None and pulse.thread.ident is not None and not pulse.thread.is_alive()
        ]
        return ended_threads + [
            f"its {name} thread has been at the same step ({step}) for {seconds:.0f} s"
            for name, step, seconds in self._steps(longer_than=self._stalled_after_seconds)
        ]

    def long_steps(self) -> list[str]:
        """Return the steps that have taken `LONG_SECONDS` and more, in words: no problem yet."""
        return [f"{step} for {seconds:.0f} s" for _, step, seconds in self._steps(longer_than=LONG_SECONDS)]

    def close(self) -> None:
        """Report that the threads are asked to end: their ends are no problem from now on."""
        with self._lock:
            self._closed = True

    def _open(self) -> list[Pulse]:
        with self._lock:
            return [] if self._closed else list(self._pulses.values())

    def _steps(self, *, longer_than: float) -> list[tuple[str, str, float]]:
        now = self._clock()
        doing = [(pulse.name, pulse.doing) for pulse in self._open()]
        return [(name, at[1], now - at[0]) for name, at in doing if at is not None and now - at[0] > longer_than]


#: Seconds after which every process has sent another heartbeat.
_NEXT_BEAT_SECONDS = 4.0

#: The workers of a command that ends by itself: they are not missed.
_PASSING = "index"


def known_processes(
    reader: PendingReader, *, wait: Callable[[float], object] | None = time.sleep
) -> Sequence[ProcessState]:
    """Return the state of every process that should run.

    When all are silent, the machine may have slept until now: they are looked at once more after a wait. A process that
    cannot `wait` knows nothing for that moment.
    """
    states = reader.processes()
    if states and all(state.condition == "silent" for state in states):
        if wait is None:
            return ()
        wait(_NEXT_BEAT_SECONDS)
        states = reader.processes()
    return states


def not_watched(states: Sequence[ProcessState]) -> Condition | None:
    """Return the condition for which no process notices changed files; None if a process does."""
    watching = [state for state in states if state.role == "watch"]
    if any(state.code is None for state in watching):
        return None
    return next(process_conditions(watching), None)


def process_conditions(states: Sequence[ProcessState]) -> Iterator[Condition]:
    """Yield a condition for each process that is not well."""
    for state in states:
        if state.code is not None:
            params: dict[str, Param] = {"pid": state.pid}
            if state.host != socket.gethostname():
                params["host"] = state.host
            if state.stuck:
                params["threads"] = "; ".join(state.stuck)
            yield Condition(ConditionCode(state.code), state.role, state.heard_at, params)


def shared_conditions(states: Sequence[ProcessState], *, now: float) -> Iterator[Condition]:
    """Yield a condition for each process that is not well, and for older settings and other versions."""
    yield from process_conditions(states)
    yield from outdated_conditions(states, version=recalld_version(), now=now)


def with_problem(state: ProcessState) -> ProcessState:
    """Return the state with its condition in words."""
    problem = next(map(text_of, process_conditions([state])), None)
    return state if problem is None else state.model_copy(update={"problem": problem})


def outdated_conditions(states: Sequence[ProcessState], *, version: str, now: float) -> Iterator[Condition]:
    """Yield a condition for each settings file that changed since processes read it, and for each other version."""
    staying = [state for state in states if state.role != _PASSING]
    changed = [(state, state.outdated) for state in staying if state.outdated is not None]
    for file in dict.fromkeys(outdated.file for _, outdated in changed):
        readers = [(state, outdated) for state, outdated in changed if outdated.file == file]
        newest = max((outdated for _, outdated in readers), key=lambda outdated: outdated.changed_at)
        code = ConditionCode.SETTINGS_INVALID if newest.invalid else ConditionCode.SETTINGS_CHANGED
        params: dict[str, Param] = {
            "changed_at": newest.changed_at,
            "read_at": min(outdated.read_at for _, outdated in readers),
            "commands": _commands([state for state, _ in readers]),
        }
        yield Condition(code, file, min(newest.changed_at, now), params)
    for other_version in dict.fromkeys(state.version for state in staying if state.version not in (None, version)):
        of_other = [state for state in staying if state.version == other_version]
        since = min(state.started_at for state in of_other)
        params = {"version": version, "commands": _commands(of_other)}
        yield Condition(ConditionCode.VERSION_DIFFERS, str(other_version), since, params)


def _commands(states: Sequence[ProcessState]) -> str:
    roles = list(dict.fromkeys(state.role for state in states))
    # It starts the others.
    named_roles = ["up"] if "up" in roles else roles
    return " and ".join(f"`recalld {role}`" for role in named_roles)
