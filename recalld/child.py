"""The life of a long-running command: until a signal, or until the supervisor that started it is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading

import click

#: Printed to a supervisor when the process does its work.
READY = "ready"


def stop_event(*, supervised: bool) -> threading.Event:
    """Return an event that is set by SIGTERM or SIGINT and, for a supervised process, when standard input ends.

    The supervisor holds the other end of that pipe and never writes to it: however it dies, the pipe ends.
    """
    stop = threading.Event()

    def end(_signal: int, _frame: object) -> None:
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
