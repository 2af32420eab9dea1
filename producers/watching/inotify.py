"""Source of changes on Linux: one inotify instance for any number of workspaces.

watchdog's own Observer starts a thread per root and watches all below it, node_modules included. This source uses only
its reader (`InotifyFD`). The kernel watches inodes, not paths: a moved folder keeps its watch and reports under its old
name, and two paths of one inode share a watch. The tables map paths to watches.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
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

from memory.documents.agent_files import may_be_document
from producers.watching.watcher import ChangeSet, ChangeSource, WatchLimitReached

_GONE = InotifyConstants.IN_DELETE | InotifyConstants.IN_MOVED_FROM

_CAME = InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVED_TO

_SELF_GONE = InotifyConstants.IN_DELETE_SELF | InotifyConstants.IN_MOVE_SELF

#: Writes, moves, creations, deletions, and changes of permissions and times. recalld's own reading causes events of
#: opening and of closing after reading, so they are left out.
_MASK = Mask(
    InotifyConstants.IN_MODIFY
    | InotifyConstants.IN_CLOSE_WRITE
    | InotifyConstants.IN_ATTRIB
    | _GONE
    | _CAME
    | _SELF_GONE
    | InotifyConstants.IN_ONLYDIR
    | InotifyConstants.IN_EXCL_UNLINK
)

#: Errors of the kernel at a limit (inotify_init(2), inotify_add_watch(2)).
_LIMIT_ERRNOS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

#: Error -> the limit in words, its name, a value that is enough, and the other cure.
_LIMITS = {
    errno.ENOSPC: ("inotify watches", "max_user_watches", 524_288, ""),
    errno.EMFILE: ("inotify instances or open files", "max_user_instances", 1024, ", or raise `ulimit -n`"),
}


class InotifySource(ChangeSource, WatchCallback):
    """Changes of one inotify instance."""

    recursive = False

    def __init__(self) -> None:
        try:
            self._inotify = InotifyFD()
        except OSError as error:
            if error.errno in _LIMIT_ERRNOS:
                raise WatchLimitReached(_limit_reason(error)) from error
            raise
        self._lock = threading.Lock()
        self._watches: dict[str, WatchDescriptor] = {}
        self._paths: dict[WatchDescriptor, tuple[CallbackId, set[str]]] = {}
        self._ids = itertools.count(1)
        self._changes = ChangeSet()
        self._closed = False

    def watch(self, folder: str, *, recursive: bool = False) -> bool:  # noqa: ARG002 - a watch is of one folder
        with self._lock:
            identity = CallbackId(next(self._ids))
            try:
                descriptor = self._inotify.add_callback(os.fsencode(folder), _MASK, self, identity)
            except OSError as error:
                if error.errno in _LIMIT_ERRNOS:
                    raise WatchLimitReached(_limit_reason(error)) from error
                self._drop(folder)
                return True  # it is gone, or no folder any more
            if descriptor == -1:
                # watchdog swallows EACCES and books the callback under the descriptor -1.
                self._inotify.remove_callbacks([(descriptor, identity)])
                self._drop(folder)
                return False
            if descriptor in self._paths:
                # One callback a watch is enough; a second one would double every event.
                self._inotify.remove_callbacks([(descriptor, identity)])
            else:
                self._paths[descriptor] = identity, set()
            if self._watches.get(folder, descriptor) != descriptor:
                self._drop(folder)  # another folder took its place
            self._watches[folder] = descriptor
            self._paths[descriptor][1].add(folder)
            return True

    def unwatch(self, folder: str) -> None:
        with self._lock:
            self._drop(folder)

    def changes(self) -> Iterator[ChangeSet]:
        while not self._closed:
            self._changes = ChangeSet()
            for event in self._inotify.read_events():
                self._inotify.handle_event(event)
            yield self._changes

    def close(self) -> None:
        self._closed = True
        self._inotify.close()

    # Called by `handle_event`

    def on_event(self, event: InotifyEvent) -> None:
        """Record an event below a watched folder."""
        mask, name = event.mask, os.fsdecode(event.name)
        with self._lock:
            folders = [*self._paths[event.wd][1]] if event.wd in self._paths else []
        for folder in folders:
            path = os.path.join(folder, name)  # noqa: PTH118 - plain strings, many times
            if mask & (_SELF_GONE | InotifyConstants.IN_UNMOUNT):
                self._changes.folders[folder, ""] = None
            elif mask & InotifyConstants.IN_ISDIR:
                self._changes.folders[folder, name] = None
            elif may_be_document(name):
                self._changes.documents[folder, path] = None
            elif mask & _CAME and os.path.islink(path):  # noqa: PTH114 - as above
                self._changes.folders[folder, name] = None  # a root may be a link

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """Record the end of a watch: its folder was deleted or unmounted."""
        with self._lock:
            _, folders = self._paths.pop(wd, (None, set()))
            for folder in folders:
                del self._watches[folder]
                self._changes.folders[folder, ""] = None

    def on_queue_overflow(self) -> None:
        """Record that the kernel dropped events."""
        self._changes.overflowed = True

    def _drop(self, folder: str) -> None:
        descriptor = self._watches.pop(folder, None)
        if descriptor is None:
            return
        identity, folders = self._paths[descriptor]
        folders.discard(folder)
        if not folders:
            del self._paths[descriptor]
            self._inotify.remove_callbacks([(descriptor, identity)])


def _limit_reason(error: OSError) -> str:
    """Return one sentence about an exhausted system limit and what to set."""
    if error.errno not in _LIMITS:
        return f"the system grants no inotify watch ({os.strerror(error.errno or 0)}); free memory or file descriptors"
    what, name, least, otherwise = _LIMITS[error.errno]
    with suppress(OSError, ValueError):
        least = max(least, 2 * int(Path("/proc/sys/fs/inotify", name).read_text()))
    return f"the limit of {what} is reached; raise it with `sysctl -w fs.inotify.{name}={least}`{otherwise}"
