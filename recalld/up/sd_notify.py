"""Notifications to systemd of a process that it runs: ready, alive, stopping (sd_notify(3)).

Without systemd's variables nothing is sent.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from recalld.settings.load import asked_by_systemd


def notify(word: str) -> None:
    """Send one word, as "READY=1". Never raises: a service manager has its own timeouts."""
    address = asked_by_systemd().get("NOTIFY_SOCKET", "")
    if address[:1] not in {"/", "@"}:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        # A leading @ is a name in the abstract namespace.
        sender.sendto(word.encode(), os.fsencode(address.replace("@", "\0", 1) if address[0] == "@" else address))


@contextmanager
def watchdog(problems: Callable[[], Sequence[str]]) -> Iterator[None]:
    """During the block, send a sign of life twice in the asked interval, unless the process has `problems`."""
    seconds = _asked_seconds()
    if seconds is None:
        yield
        return
    over = threading.Event()

    def run() -> None:
        while True:
            if not problems():
                notify("WATCHDOG=1")
            if over.wait(seconds / 2):
                return

    threading.Thread(target=run, name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _asked_seconds() -> float | None:
    """Return the longest interval between two signs of life; None if systemd asks for none."""
    asked = asked_by_systemd()
    micros, pid = asked.get("WATCHDOG_USEC", ""), asked.get("WATCHDOG_PID")
    if not micros.isdigit() or not int(micros) or (pid is not None and pid != str(os.getpid())):
        return None
    return int(micros) / 1e6
