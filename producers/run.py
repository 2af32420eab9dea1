"""The producers of one machine: a constant number of threads, however many agents.

watch-inotify / watch-polling   events of the files                       -> hand-over
hand-over                       debounce, then the queue
inbox                           events from outside                       -> hand-over, schedule
the caller's thread             comparisons of files and index, spool, state for status
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from memory.store.reader import StoreReader
from producers.falling_back import open_watcher
from producers.inbox_reading import InboxReader
from producers.producing import Producers
from schemas.ports import EventInbox, JobQueue, TroubleReporter
from schemas.settings import AgentSettings, Settings


def run_producers(
    settings: Settings,
    queue: JobQueue,
    inbox: EventInbox,
    troubles: TroubleReporter,
    stop: threading.Event,
    *,
    indexed: Callable[[AgentSettings], StoreReader | None],
    building: Callable[[AgentSettings], bool],
    on_ready: Callable[[], None] | None = None,
    poll_interval_seconds: float = 5.0,
) -> None:
    """Watch, compare and queue until `stop` is set.

    `indexed` opens the generation of an agent that its files must agree with (None when there is none) and
    `building` says whether one is under construction; both as for `reconciling.reconcile`. `on_ready` is called
    once, when every agent is watched and was compared for the first time (or that failed and is tried again).
    At the end, what waits for its quiet time is handed over.
    """
    producers = Producers(settings, queue, troubles, indexed=indexed, building=building)
    watcher = open_watcher(producers, poll_interval_seconds=poll_interval_seconds)
    reader = InboxReader(inbox, producers.handle)
    producers.hand_over.start()
    try:
        producers.start(watcher, stop)
        reader.start()
        if on_ready is not None and not stop.is_set():
            on_ready()
        producers.loop(stop)
    finally:
        reader.stop()
        watcher.close()
        producers.close()
