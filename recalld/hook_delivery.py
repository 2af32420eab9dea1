"""Leave an event where the producers find it, quickly: in the broker's inbox, else in the spool."""

from __future__ import annotations

import threading

from memory.private_broker import socket_path
from producers.spool import write_event
from schemas.errors import RecalldError
from schemas.ports import Event
from schemas.settings import Settings

#: Seconds that the broker gets to take the event; whoever sends a hook is waiting.
BROKER_SECONDS = 0.2


def deliver(settings: Settings, event: Event) -> None:
    """Leave one event. Takes little more than `BROKER_SECONDS` whatever the broker does.

    A broker that takes it too late makes it arrive twice, which is harmless: an event is a hint.

    Raises:
        OSError: no broker took it and it could not be spooled.
    """
    if not _put(settings, event):
        write_event(settings.home, event)


def _put(settings: Settings, event: Event) -> bool:
    try:
        if settings.broker.url is None and not socket_path(settings.home).exists():
            return False
    except (RecalldError, OSError):
        return False
    # Only these: the rest of what a command needs of the broker takes longer to import than all of this.
    from workers.connection import connect, namespace
    from workers.inbox import BrokerInbox
    from workers.names import Keys

    taken = threading.Event()

    def put() -> None:
        try:
            with connect(settings, answer_seconds=BROKER_SECONDS) as client:
                BrokerInbox(client, Keys(namespace(settings))).put(event)
        except (RecalldError, OSError):
            return  # nobody there, or no place for the namespace: the spool is for that
        taken.set()

    # In a thread of its own: looking up the name of a host has no time limit.
    thread = threading.Thread(target=put, name="inbox", daemon=True)
    thread.start()
    thread.join(BROKER_SECONDS)
    return taken.is_set()
