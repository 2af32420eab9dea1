"""Source of changes on systems other than Linux (macOS: FSEvents), through watchdog's Observer."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

from watchdog.events import FileClosedNoWriteEvent, FileOpenedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from producers.change_source import ChangeSet, ChangeSource, WatchLimitReached


class ObserverSource(ChangeSource, FileSystemEventHandler):
    """Changes through watchdog's Observer, which starts one thread per root with FSEvents."""

    recursive = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str, ObservedWatch] = {}
        self._events: queue.SimpleQueue[FileSystemEvent | None] = queue.SimpleQueue()
        self._observer: BaseObserver = Observer()
        self._observer.start()

    def watch(self, folder: str, *, recursive: bool = False) -> None:
        with self._lock:
            current = self._watches.get(folder)
            if current is not None and (current.is_recursive or not recursive):
                return
            if current is not None:
                self._observer.unschedule(self._watches.pop(folder))
            try:
                with suppress(FileNotFoundError):
                    self._watches[folder] = self._observer.schedule(self, folder, recursive=recursive)
            except (OSError, RecursionError) as error:
                # watchdog lists folders in folders by recursion.
                raise WatchLimitReached(f"{folder} cannot be watched: {error}") from error

    def unwatch(self, folder: str) -> None:
        with self._lock:
            watch = self._watches.pop(folder, None)
            if watch is not None:
                self._observer.unschedule(watch)

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Keep an event for `changes`, but not those of recalld's own reading."""
        if not isinstance(event, FileOpenedEvent | FileClosedNoWriteEvent):
            self._events.put(event)

    def changes(self) -> Iterator[ChangeSet]:
        while (event := self._events.get()) is not None:
            changes = ChangeSet()
            for path in (event.src_path, event.dest_path):
                folder, name = os.path.split(os.fsdecode(path))
                # A modified folder only repeats the events of its entries.
                if name and not event.is_directory:
                    changes.documents[folder, name] = None
                elif name and event.event_type != "modified":
                    changes.folders[folder, name] = None
            yield changes

    def close(self) -> None:
        self._observer.stop()
        self._observer.join()
        self._events.put(None)
