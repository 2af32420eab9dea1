"""Source of changes on Linux: one inotify instance for any number of workspaces.

watchdog's own Observer starts a thread per root and watches all below it, node_modules included. This source uses only
its reader (`InotifyFD`). The kernel watches inodes, not paths: a moved folder keeps its watch and reports under its old
name, and two paths of one inode share a watch, with a callback each.
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

from memory.documents.roots import may_be_document
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


class InotifySource(ChangeSource):
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
        self._watches: dict[str, _FolderWatch] = {}
        self._ids = itertools.count(1)
        self._closed = False
        #: Changes of the events that are read now.
        self.found = ChangeSet()

    def watch(self, folder: str, *, recursive: bool = False) -> bool:  # noqa: ARG002 - a watch is of one folder
        watch = _FolderWatch(self, folder, CallbackId(next(self._ids)))
        with self._lock:
            if self._closed:
                return True
            try:
                watch.descriptor = self._inotify.add_callback(os.fsencode(folder), _MASK, watch, watch.identity)
            except OSError as error:
                if error.errno in _LIMIT_ERRNOS:
                    raise WatchLimitReached(_limit_reason(error)) from error
                self._drop(self._watches.pop(folder, None))
                return True  # it is gone, or no folder any more
            known = self._watches.pop(folder, None)
            # watchdog swallows EACCES and books the callback under the descriptor -1.
            is_permitted = watch.descriptor != -1
            if is_permitted and known is not None and known.descriptor == watch.descriptor:
                known, watch = watch, known  # one callback is enough; a second one would double every event
            if is_permitted:
                self._watches[folder] = watch
            else:
                self._drop(watch)
            self._drop(known)  # of another folder that had this name
            return is_permitted

    def unwatch(self, folder: str) -> None:
        with self._lock:
            self._drop(self._watches.pop(folder, None))

    def changes(self) -> Iterator[ChangeSet]:
        while not self._closed:
            self.found = ChangeSet()
            for event in self._inotify.read_events():
                self._inotify.handle_event(event)
            yield self.found

    def close(self) -> None:
        self._closed = True
        self._inotify.close()

    def forget(self, watch: _FolderWatch) -> None:
        """Forget a watch that the kernel ended."""
        with self._lock:
            if self._watches.get(watch.folder) is watch:
                del self._watches[watch.folder]

    def _drop(self, watch: _FolderWatch | None) -> None:
        if watch is not None:
            self._inotify.remove_callbacks([(watch.descriptor, watch.identity)])


class _FolderWatch(WatchCallback):
    """Watch of one folder under one name. It puts its events into the changes of its source."""

    __slots__ = ("_source", "descriptor", "folder", "identity")

    def __init__(self, source: InotifySource, folder: str, identity: CallbackId) -> None:
        self._source = source
        self.folder = folder
        self.identity = identity
        self.descriptor = WatchDescriptor(-1)

    def on_event(self, event: InotifyEvent) -> None:
        mask, name, changes = event.mask, os.fsdecode(event.name), self._source.found
        path = os.path.join(self.folder, name)  # noqa: PTH118 - plain strings, many times
        if mask & (_SELF_GONE | InotifyConstants.IN_UNMOUNT):
            changes.folders[self.folder, ""] = None
        elif mask & InotifyConstants.IN_ISDIR:
            changes.folders[self.folder, name] = None
        elif may_be_document(name):
            changes.documents[self.folder, path] = None
        elif mask & _CAME and os.path.islink(path):  # noqa: PTH114 - as above
            changes.folders[self.folder, name] = None  # a root may be a link

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:  # noqa: ARG002 - the interface's signature
        self._source.forget(self)
        self._source.found.folders[self.folder, ""] = None

    def on_queue_overflow(self) -> None:
        self._source.found.overflowed = True


def _limit_reason(error: OSError) -> str:
    """Return one sentence about an exhausted system limit and what to set."""
    if error.errno not in _LIMITS:
        return f"the system grants no inotify watch ({os.strerror(error.errno or 0)}); free memory or file descriptors"
    what, name, least, otherwise = _LIMITS[error.errno]
    with suppress(OSError, ValueError):
        least = max(least, 2 * int(Path("/proc/sys/fs/inotify", name).read_text()))
    return f"the limit of {what} is reached; raise it with `sysctl -w fs.inotify.{name}={least}`{otherwise}"
