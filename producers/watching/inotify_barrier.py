"""How to know that the inotify thread has read everything that was written before.

The kernel queues the events of one instance in their order: a file that is made now in a folder of our own is told of
after all that was written before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    Mask,
    WatchCallback,
    WatchDescriptor,
)

_CALLBACK_ID = CallbackId(0)


class InotifyMarks(WatchCallback):
    """A folder of our own, watched by the same instance. Without one (no space, no watch left) nothing is ever read."""

    def __init__(self, inotify: InotifyFD) -> None:
        self._changed = threading.Condition()
        self._made = self._seen = 0
        self._folder: Path | None = None
        try:
            folder = Path(tempfile.mkdtemp(prefix="recalld-watch-"))
            inotify.add_callback(os.fsencode(folder), Mask(InotifyConstants.IN_CREATE), self, _CALLBACK_ID)
            self._folder = folder
        except OSError:
            return

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the thread has told of everything before this call; False after the timeout."""
        if self._folder is None:
            return False
        with self._changed:
            self._made += 1
            mark = self._made
        file = self._folder / str(mark)
        try:
            file.touch()
        except OSError:
            return False
        try:
            with self._changed:
                return self._changed.wait_for(lambda: self._seen >= mark, timeout_seconds)
        finally:
            file.unlink(missing_ok=True)

    def on_event(self, event: InotifyEvent) -> None:
        """Called by the inotify thread."""
        name = os.fsdecode(event.name)
        if not name.isdigit():
            return
        with self._changed:
            self._seen = max(self._seen, int(name))
            self._changed.notify_all()

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """The folder was deleted: nobody can be told any more."""

    def on_queue_overflow(self) -> None:
        """Marks may be lost, too: whoever waits gives up."""

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
