"""Watcher for systems other than Linux (macOS: FSEvents), through watchdog's Observer.

A changed document is reported by its path. A changed directory makes its agent uncertain, which leads to a refresh and
a comparison: these systems do not reliably report what was below it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from watchdog.events import (
    FileClosedNoWriteEvent,
    FileOpenedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from producers.watching.watcher import (
    Role,
    WatchedFiles,
    Watcher,
    WatchLimitReached,
    WatchListener,
    WatchMode,
    WatchState,
    wanted_directories,
)


@dataclass(slots=True)
class _Observed:
    files: WatchedFiles
    handler: FileSystemEventHandler
    watches: dict[tuple[str, Role], ObservedWatch] = field(default_factory=dict)


class _Handler(FileSystemEventHandler):
    """Handler that runs under the observer's lock: it must not wait for a thread that uses the observer."""

    def __init__(self, agent: str, listener: WatchListener) -> None:
        self._agent = agent
        self._listener = listener

    def on_any_event(self, event: FileSystemEvent) -> None:
        # These come from our own reading.
        if isinstance(event, FileOpenedEvent | FileClosedNoWriteEvent):
            return
        if event.is_directory:
            # A modified directory only repeats the events of its entries.
            if event.event_type != "modified":
                self._listener.on_uncertain(self._agent)
            return
        for path in (event.src_path, event.dest_path):
            if path:
                self._listener.on_change(self._agent, os.fsdecode(path))


class ObserverWatcher(Watcher):
    """Watcher through watchdog's Observer, which starts one thread per root with FSEvents."""

    def __init__(self, listener: WatchListener) -> None:
        self._listener = listener
        self._lock = threading.RLock()
        self._agents: dict[str, _Observed] = {}
        self._observer: BaseObserver = Observer()
        self._observer.start()

    def add_root(self, agent: str, files: WatchedFiles) -> None:
        with self._lock:
            self.remove_root(agent)
            self._agents[agent] = _Observed(files, _Handler(agent, self._listener))
            self.refresh(agent)

    def remove_root(self, agent: str) -> None:
        with self._lock:
            observed = self._agents.pop(agent, None)
            if observed is not None:
                self._drop(observed, set(observed.watches))

    def refresh(self, agent: str) -> None:
        with self._lock:
            observed = self._agents.get(agent)
            if observed is None:
                return
            wanted = set(wanted_directories(observed.files.watch_roots()).items())
            self._drop(observed, set(observed.watches) - wanted)
            for path, role in wanted - set(observed.watches):
                try:
                    watch = self._observer.schedule(observed.handler, path, recursive=role is Role.TREE)
                except FileNotFoundError:
                    continue  # gone again; the comparison of files and index reports it
                except (OSError, RecursionError) as error:
                    # watchdog lists folders in folders by recursion.
                    self.remove_root(agent)
                    raise WatchLimitReached(f"{path} cannot be watched: {error}") from error
                observed.watches[path, role] = watch

    def state(self, agent: str) -> WatchState:
        with self._lock:
            return WatchState(WatchMode.EVENTS if agent in self._agents else WatchMode.OFF)

    def problem(self) -> str | None:
        return None if self._observer.is_alive() else "the thread that watched has ended"

    def close(self) -> None:
        self._observer.stop()
        self._observer.join()

    def _drop(self, observed: _Observed, gone: set[tuple[str, Role]]) -> None:
        for key in gone:
            watch = observed.watches.pop(key)
            shared = any(watch in other.watches.values() for other in self._agents.values())
            if shared:
                self._observer.remove_handler_for_watch(observed.handler, watch)
            else:
                self._observer.unschedule(watch)
