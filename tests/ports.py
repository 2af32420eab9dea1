"""Ports for servers that do not choose one themselves."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

#: Ports that this process was given: their servers may not listen yet.
_GIVEN: set[int] = set()


def free_port() -> int:
    """Return a free port below those that the system chooses from, so that no connection has it a moment later."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port
