"""The life of a long-running command: until a signal, or until the supervisor that started it is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

#: Printed to a supervisor when the process does its work.
READY = "ready"


#: What is still done when a process leaves at once: it ends what must not outlive it.
_last_acts: list[Callable[[], None]] = []


@contextmanager
def last_act(act: Callable[[], None]) -> Iterator[None]:
    """While the block runs, let a second signal do this before the process leaves; the latest act comes first."""
    _last_acts.append(act)
    try:
        yield
    finally:
        _last_acts.remove(act)


def stop_event(*, supervised: bool) -> threading.Event:
    """Return an event that is set by SIGTERM or SIGINT and, for a supervised process, when standard input ends.

    The supervisor holds the other end of that pipe and never writes to it: however it dies, the pipe ends. At a signal
    after that the process leaves at once, and takes with it what must not outlive it (`last_act`). What it was doing is
    found by others, as after any crash.
    """
    stop = threading.Event()

    def end(number: int, _frame: object) -> None:
        if stop.is_set():
            for act in reversed(_last_acts):
                with suppress(Exception):
                    act()
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if supervised:

        def watch_parent() -> None:
            while os.read(0, 1024):
                pass
            stop.set()

        threading.Thread(target=watch_parent, name="parent", daemon=True).start()
    return stop


def announce_ready(*, supervised: bool) -> None:
    """Tell the supervisor that this process does its work."""
    if supervised:
        sys.stdout.write(READY + "\n")
        sys.stdout.flush()


#: Hidden flag of commands that `recalld up` starts.
supervised_option = click.option("--supervised", is_flag=True, hidden=True)
