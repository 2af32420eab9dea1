"""What systemd is told of a process that it runs: that it is ready, that it gets on, that it ends (sd_notify(3)).

Where nobody asks to be told, nothing happens.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from recalld.settings.load import asked_by_systemd


def notify(word: str) -> None:
    """Send one word, as "READY=1". Never raises: whoever manages services notices by itself what it was not told."""
    address = asked_by_systemd().get("NOTIFY_SOCKET", "")
    if address[:1] not in {"/", "@"}:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        # A leading @ is a name in the abstract namespace.
        sender.sendto(word.encode(), os.fsencode(address.replace("@", "\0", 1) if address[0] == "@" else address))


@contextmanager
def watchdog(problems: Callable[[], Sequence[str]]) -> Iterator[None]:
    """While the block runs, say twice as often as is asked for that this process gets on, unless it has `problems`."""
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
    """How often a sign is asked for at least; None where nobody asks this process."""
    asked = asked_by_systemd()
    micros, pid = asked.get("WATCHDOG_USEC", ""), asked.get("WATCHDOG_PID")
    if not micros.isdigit() or not int(micros) or (pid is not None and pid != str(os.getpid())):
        return None
    return int(micros) / 1e6
