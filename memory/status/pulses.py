"""Watchdog of the working threads of this process.

A thread reports the begin of a step, its progress, and its rest. A thread is stuck when a step takes longer than its
limit. A look at the process alone would not find a stuck thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds from which a step is long enough to be shown.
LONG_SECONDS = 10.0


class Pulse:
    """Pulse of one working thread. A report costs less than a microsecond: one assignment, no lock."""

    __slots__ = ("_clock", "_doing", "_thread", "limit_seconds", "name")

    def __init__(self, name: str, *, limit_seconds: float, clock: Callable[[], float]) -> None:
        self.name = name
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._doing: tuple[float, str] | None = None
        self._thread: threading.Thread | None = None

    def busy(self, doing: str) -> None:
        """Report the begin or the progress of a step: from now on the thread has `limit_seconds` again."""
        self._doing = self._clock(), doing

    def idle(self) -> None:
        """Report that the thread waits for work, for as long as it likes."""
        self._doing = None

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
        self._thread = thread

    def problem(self) -> str | None:
        """Return the problem in words; None without one."""
        thread = self._thread
        if thread is not None and thread.ident is not None and not thread.is_alive():
            return f"its {self.name} thread has ended"
        doing = self._doing
        if doing is None:
            return None
        seconds = self._clock() - doing[0]
        if seconds <= self.limit_seconds:
            return None
        return f"its {self.name} thread has been at the same step ({doing[1]}) for {seconds:.0f} s"

    def long_step(self) -> str | None:
        """Return a step that takes `LONG_SECONDS` and more, in words: no problem yet. None otherwise."""
        doing = self._doing
        seconds = self._clock() - doing[0] if doing is not None else 0.0
        return f"{doing[1]} for {seconds:.0f} s" if doing is not None and seconds >= LONG_SECONDS else None

    def forgive(self, seconds: float) -> None:
        """Leave out a time in which the whole process stood still."""
        doing = self._doing
        if doing is not None:
            self._doing = doing[0] + seconds, doing[1]


class Pulses:
    """Pulses of all working threads of a process. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pulses: dict[tuple[str, int | None], Pulse] = {}
        self._closed = False

    def of(self, name: str, *, limit_seconds: float, thread: int | None = None) -> Pulse:
        """Return the pulse of that name, made at first use; `thread` tells threads of the same name apart."""
        with self._lock:
            pulse = self._pulses.get((name, thread))
            if pulse is None:
                pulse = Pulse(name, limit_seconds=limit_seconds, clock=self._clock)
                self._pulses[(name, thread)] = pulse
            return pulse

    def problems(self) -> list[str]:
        """Return the problems of all threads, in words."""
        with self._lock:
            pulses = [] if self._closed else list(self._pulses.values())
        return [problem for pulse in pulses if (problem := pulse.problem()) is not None]

    def long_steps(self) -> list[str]:
        """Return the long steps of all threads, in words."""
        with self._lock:
            pulses = [] if self._closed else list(self._pulses.values())
        return [step for pulse in pulses if (step := pulse.long_step()) is not None]

    def forgive(self, seconds: float) -> None:
        """Leave out a time in which the process stood still (a laptop slept)."""
        with self._lock:
            for pulse in self._pulses.values():
                pulse.forgive(seconds)

    def close(self) -> None:
        """Report that the threads are asked to end: their ends are no problem from now on."""
        with self._lock:
            self._closed = True


def unwatched() -> Pulse:
    """Return a pulse without a watchdog."""
    return Pulse("unwatched", limit_seconds=math.inf, clock=time.monotonic)
