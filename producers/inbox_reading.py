"""The thread that takes events from the inbox."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from memory.status.pulses import Pulse, unwatched
from schemas.ports import Event, EventInbox

log = structlog.get_logger(__name__)

#: Seconds that one look into the inbox waits, and therefore about the longest that stopping takes.
TAKE_SECONDS = 1.0


class InboxReader:
    """Calls `handle` with every event. An absent broker or an unreadable event ends nothing."""

    def __init__(self, inbox: EventInbox, handle: Callable[[Event], None], *, pulse: Pulse | None = None) -> None:
        self._pulse = pulse or unwatched()
        self._inbox = inbox
        self._handle = handle
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._pulse.belongs_to(self._thread)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                event = self._inbox.take(TAKE_SECONDS)
                if event is not None:
                    try:
                        with self._pulse.at(event.kind):
                            self._handle(event)
                    finally:
                        self._inbox.answer(event)
                    continue
            except Exception:
                log.exception("event_unreadable")
            # An absent broker answers at once: do not ask it in a tight loop.
            self._stop.wait(TAKE_SECONDS - (time.monotonic() - began))
