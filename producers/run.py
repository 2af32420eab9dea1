"""Producers of one machine: a constant number of threads, however many agents.

watch-events / watch-polling   events of the files                       -> hand-over
hand-over                       debounce, looks at transcripts, the queue
inbox                           events of clients                         -> hand-over, schedule
hooks                           hooks by HTTP, if `hooks.port` is set      -> hand-over, schedule
the caller's thread             comparisons of files and index, spool, state for status
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from memory.status.pulses import Pulse, Pulses
from memory.store.reader import StoreReader
from producers.event_router import EventRouter
from schemas.ports import ConditionReporter, Event, EventInbox, ProducerQueue
from schemas.settings import AgentSettings, Settings

if TYPE_CHECKING:
    from producers.hook_server import HookServer

log = structlog.get_logger(__name__)

#: Seconds that one look into the inbox waits; stopping takes about as long.
TAKE_SECONDS = 1.0


def run_producers(
    settings: Settings,
    queue: ProducerQueue,
    inbox: EventInbox,
    reporter: ConditionReporter,
    stop: threading.Event,
    *,
    indexed: Callable[[AgentSettings], StoreReader | None],
    answering: Callable[[AgentSettings], StoreReader | None],
    building: Callable[[AgentSettings], bool],
    on_ready: Callable[[], None] | None = None,
    poll_interval_seconds: float = 5.0,
    pulses: Pulses | None = None,
) -> None:
    """Watch, compare and queue until `stop` is set.

    `indexed`, `answering` and `building` are those of
    `reconciler.reconcile`. `on_ready` is called once, after every agent is watched and its first comparison was tried.
    At the end, documents that wait for their quiet time are handed over. The threads report to `pulses`.

    Raises:
        UserError: the port for hooks cannot be opened.
    """
    pulses = pulses or Pulses()
    router = EventRouter(
        settings,
        queue,
        reporter,
        indexed=indexed,
        answering=answering,
        building=building,
        poll_interval_seconds=poll_interval_seconds,
        pulses=pulses,
    )
    hooks = _hook_server(settings, router, reporter)
    reader = InboxReader(inbox, router.handle, pulse=pulses.of("inbox"))
    try:
        router.start(stop)
        reader.start()
        if hooks is not None:
            hooks.start()
        if on_ready is not None and not stop.is_set():
            on_ready()
        router.loop(stop)
    finally:
        pulses.close()
        if hooks is not None:
            hooks.stop()
        reader.stop()
        router.close()


def _hook_server(settings: Settings, router: EventRouter, reporter: ConditionReporter) -> HookServer | None:
    if settings.hooks.port is None:
        return None
    # Imported here: without a port, starting does not wait for a web server's import.
    from producers.hook_server import HookServer

    return HookServer(settings, settings.hooks.port, router.handle, reporter)


class InboxReader:
    """Thread that calls `handle` with every event. It survives an absent broker and unreadable events."""

    def __init__(self, inbox: EventInbox, handle: Callable[[Event], None], *, pulse: Pulse | None = None) -> None:
        self._pulse = pulse or Pulse("inbox")
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
