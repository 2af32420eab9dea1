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
from contextlib import contextmanager, suppress
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
from producers.change_source import ChangeSet, ChangeSource, WatchLimitReached

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
        with _limits():
            self._inotify = InotifyFD()
        self._lock = threading.Lock()
        self._watches: dict[str, _FolderWatch] = {}
        self._ids = itertools.count(1)
        self._closed = False
        #: Changes of the events that are read now.
        self.change_set = ChangeSet()

    def watch(self, folder: str, *, recursive: bool = False) -> None:  # noqa: ARG002 - a watch is of one folder
        watch = _FolderWatch(self, folder, CallbackId(next(self._ids)))
        with self._lock:
            if self._closed:
                return
            current = self._watches.get(folder)
            try:
                with _limits():
                    watch.descriptor = self._inotify.add_callback(os.fsencode(folder), _MASK, watch, watch.identity)
            except OSError:
                self._watches.pop(folder, None)  # it is gone, or no folder any more
            else:
                if current is not None and current.descriptor == watch.descriptor:
                    current, watch = watch, current  # one callback is enough; a second one would double every event
                self._watches[folder] = watch
            self._drop(current)  # of another folder that had this name

    def unwatch(self, folder: str) -> None:
        with self._lock:
            self._drop(self._watches.pop(folder, None))

    def changes(self) -> Iterator[ChangeSet]:
        while not self._closed:
            self.change_set = ChangeSet()
            for event in self._inotify.read_events():
                self._inotify.handle_event(event)
            yield self.change_set

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
        mask, name, changes = event.mask, os.fsdecode(event.name), self._source.change_set
        if mask & (_SELF_GONE | InotifyConstants.IN_UNMOUNT):
            changes.folders[self.folder, ""] = None
        elif may_be_document(name) and not mask & InotifyConstants.IN_ISDIR:
            changes.documents[self.folder, name] = None
        # A root may be a link.
        elif mask & InotifyConstants.IN_ISDIR or (mask & _CAME and os.path.islink(f"{self.folder}/{name}")):  # noqa: PTH114 - a plain string
            changes.folders[self.folder, name] = None

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:  # noqa: ARG002 - the interface's signature
        self._source.forget(self)
        self._source.change_set.folders[self.folder, ""] = None

    def on_queue_overflow(self) -> None:
        self._source.change_set.overflowed = True


@contextmanager
def _limits() -> Iterator[None]:
    """Raise `WatchLimitReached`, which names the setting, for an exhausted limit of the system."""
    try:
        yield
    except OSError as error:
        if error.errno not in _LIMIT_ERRNOS:
            raise
        reason = f"the system grants no inotify watch ({os.strerror(error.errno)}); free memory or file descriptors"
        if error.errno in _LIMITS:
            limit, name, least, otherwise = _LIMITS[error.errno]
            with suppress(OSError, ValueError):
                least = max(least, 2 * int(Path("/proc/sys/fs/inotify", name).read_text()))
            reason = f"the limit of {limit} is reached; raise it with `sysctl -w fs.inotify.{name}={least}`{otherwise}"
        raise WatchLimitReached(reason) from error
