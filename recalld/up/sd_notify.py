"""Notifications of a process: ready to its supervisor, and sd_notify(3) to systemd, its watchdog included."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import click

from recalld.settings.load import systemd_variables

#: Printed to a supervisor when the process does its work.
READY = "ready"


def announce_ready(*, supervised: bool) -> None:
    """Report to the supervisor, or else to systemd, that this process is ready."""
    if supervised:
        click.echo(READY)
    else:
        sd_notify("READY=1")


def sd_notify(word: str) -> None:
    """Send systemd one word, as "READY=1" (sd_notify(3)); nothing without its variables. Never raises."""
    address = systemd_variables().get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        # A leading @ is a name in the abstract namespace.
        sender.sendto(word.encode(), os.fsencode(address.replace("@", "\0", 1) if address[0] == "@" else address))


@contextmanager
def watchdog(problems: Callable[[], Sequence[str]]) -> Iterator[None]:
    """During the block, send systemd a heartbeat twice in its interval, unless the process has `problems`."""
    variables, finished = systemd_variables(), threading.Event()
    micros, pid = variables.get("WATCHDOG_USEC", ""), variables.get("WATCHDOG_PID", str(os.getpid()))

    def run() -> None:
        while not finished.is_set():
            if not problems():
                sd_notify("WATCHDOG=1")
            finished.wait(int(micros) / 2e6)

    if micros.isdigit() and int(micros) and pid == str(os.getpid()):
        threading.Thread(target=run, name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        finished.set()
