"""Whether the working threads of this process get on with what they do.

A thread says when it begins something, when it gets on with it, and when it rests. One that has been at the same thing
for longer than that may take is stuck: somebody who only looks at whether the process lives would never notice.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds from which on it is told what a thread is at.
LONG_SECONDS = 10.0


class Pulse:
    """One working thread. Saying something costs less than a microsecond; no lock, each word is one assignment."""

    __slots__ = ("_clock", "_doing", "_thread", "limit_seconds", "name")

    def __init__(self, name: str, *, limit_seconds: float, clock: Callable[[], float]) -> None:
        self.name = name
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._doing: tuple[float, str] | None = None
        self._thread: threading.Thread | None = None

    def busy(self, doing: str) -> None:
        """The thread begins something, or gets on with it: from now on it has `limit_seconds` again."""
        self._doing = self._clock(), doing

    def idle(self) -> None:
        """The thread waits for work; it may do so for ever."""
        self._doing = None

    @contextmanager
    def at(self, doing: str) -> Iterator[None]:
        """Busy for as long as the block runs."""
        self.busy(doing)
        try:
            yield
        finally:
            self.idle()

    def belongs_to(self, thread: threading.Thread) -> None:
        """This thread must not end before `Pulses.close`: one that ended is no better than one that is stuck."""
        self._thread = thread

    def problem(self) -> str | None:
        """What is wrong, in words; None when all is well."""
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
        """What the thread has been at for `LONG_SECONDS` and more, in words: no problem yet. None otherwise."""
        doing = self._doing
        seconds = self._clock() - doing[0] if doing is not None else 0.0
        return f"{doing[1]} for {seconds:.0f} s" if doing is not None and seconds >= LONG_SECONDS else None

    def forgive(self, seconds: float) -> None:
        """The whole process stood still for so long; that is not the thread's fault."""
        doing = self._doing
        if doing is not None:
            self._doing = doing[0] + seconds, doing[1]


class Pulses:
    """All working threads of a process. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._pulses: dict[tuple[str, int | None], Pulse] = {}
        self._closed = False

    def of(self, name: str, *, limit_seconds: float, thread: int | None = None) -> Pulse:
        """The pulse of that name, made when first asked for; with `thread` one of several threads of the same name."""
        with self._lock:
            pulse = self._pulses.get((name, thread))
            if pulse is None:
                pulse = Pulse(name, limit_seconds=limit_seconds, clock=self._clock)
                self._pulses[(name, thread)] = pulse
            return pulse

    def problems(self) -> list[str]:
        """What is wrong with whom, in words."""
        with self._lock:
            pulses = [] if self._closed else list(self._pulses.values())
        return [problem for pulse in pulses if (problem := pulse.problem()) is not None]

    def long_steps(self) -> list[str]:
        """What takes long, in words, long before it is a problem."""
        with self._lock:
            pulses = [] if self._closed else list(self._pulses.values())
        return [step for pulse in pulses if (step := pulse.long_step()) is not None]

    def forgive(self, seconds: float) -> None:
        """The process stood still for so long (a laptop slept): what its threads do takes that much longer."""
        with self._lock:
            for pulse in self._pulses.values():
                pulse.forgive(seconds)

    def close(self) -> None:
        """The threads are asked to end: nothing is wrong with those that do."""
        with self._lock:
            self._closed = True


def unwatched() -> Pulse:
    """A pulse that nobody looks at."""
    return Pulse("unwatched", limit_seconds=math.inf, clock=time.monotonic)
