"""The broker's server for the time of one command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from recalld.child import last_act
from schemas.settings import Settings
from workers.queue.private_server import BrokerServer


@contextmanager
def running_broker(settings: Settings, *, supervised: bool = False) -> Iterator[BrokerServer]:
    """See to it that a broker answers; stop it afterwards if it was started here.

    A supervised process leaves the server to its supervisor.
    """
    server = BrokerServer(settings)
    if supervised:
        yield server
        return
    server.ensure()
    try:
        with last_act(server.stop):
            yield server
    finally:
        server.stop()
