"""Watchdog of the working threads of this process.

A thread reports the begin of a step, its progress, and its rest. One rule holds for all threads: a step that takes
longer than `stalled_after_seconds` is stuck. A look at the process alone would not find a stuck thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
        ended = [
            f"its {pulse.name} thread has ended"
            for pulse in self._open()
            if pulse.thread is not None and pulse.thread.ident is not None and not pulse.thread.is_alive()
        ]
        return ended + [
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
