"""Table of the directories that one inotify instance watches, with their agents and documents.

The kernel watches inodes, not paths: a moved directory keeps its watch and reports under its old name, and two paths of
one inode share a watch. The table maps paths to watches.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyFD,
    Mask,
    WatchCallback,
    WatchDescriptor,
)

from producers.watching.watcher import Role, WatchLimitReached

#: Writes, moves, creations, deletions, and changes of permissions and times. recalld's own reading causes events of
#: opening and of closing after reading, so they are left out.
EVENT_MASK = (
    InotifyConstants.IN_MODIFY
    | InotifyConstants.IN_CLOSE_WRITE
    | InotifyConstants.IN_ATTRIB
    | InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVED_FROM
    | InotifyConstants.IN_MOVED_TO
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_MOVE_SELF
    | InotifyConstants.IN_ONLYDIR
    | InotifyConstants.IN_EXCL_UNLINK
)

#: Errors of the kernel at a limit (inotify_init(2), inotify_add_watch(2)).
LIMIT_ERRNOS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_LIMITS = Path("/proc/sys/fs/inotify")


@dataclass(slots=True)
class Directory:
    """One watched directory. `documents`: names of the notes and transcripts seen right inside."""

    path: str
    wd: WatchDescriptor
    owners: dict[str, Role] = field(default_factory=dict)
    documents: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Watch:
    callback_id: CallbackId
    paths: set[str] = field(default_factory=set)


class WatchedDirectories:
    """Table of one inotify instance. The caller's lock protects it."""

    def __init__(self, inotify: InotifyFD, callback: WatchCallback) -> None:
        self._inotify = inotify
        self._callback = callback
        self._by_path: dict[str, Directory] = {}
        self._by_wd: dict[int, _Watch] = {}
        self._callback_ids = itertools.count(1)
        #: Directories that the kernel refused to watch for lack of permission, and their agents.
        self.refused: dict[str, set[str]] = {}
        #: Watched directories that cannot be listed since their permissions changed.
        self.locked: set[str] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._by_path

    def paths(self) -> list[str]:
        """Return all watched directories."""
        return list(self._by_path)

    def paths_of(self, agent: str) -> list[str]:
        """Return the directories watched for one agent."""
        return [path for path, directory in self._by_path.items() if agent in directory.owners]

    def of_watch(self, wd: int) -> list[Directory]:
        """Return the directories of a watch: several if several paths lead to one inode."""
        watch = self._by_wd.get(wd)
        return [self._by_path[path] for path in watch.paths] if watch else []

    def ensure(self, path: str, agent: str, role: Role, *, follow: bool = False) -> tuple[Directory | None, bool]:
        """Watch the directory at this path for this agent, too.

        `follow`: the path itself may be a symbolic link, as only roots may. Return the directory (None if it is gone or
        cannot be watched), and True if it is new to the agent. A directory that replaced another one is new and
        inherits the names seen in the old one.

        Raises:
            WatchLimitReached: the system grants no further watch.
        """
        wd = self._add_watch(path, agent, follow=follow)
        known = self._by_path.get(path)
        if known is not None and known.wd != wd:
            self.drop(path)
        if wd is None:
            return None, False
        directory = self._by_path.get(path)
        if directory is None:
            directory = Directory(path, wd, documents=known.documents if known else set())
            if known is not None:
                directory.owners.update(dict.fromkeys(known.owners, Role.FLAT))
                directory.owners.pop(agent, None)
            self._by_path[path] = directory
            self._by_wd[wd].paths.add(path)
        before = directory.owners.get(agent)
        if before is not Role.TREE:
            directory.owners[agent] = role
        return directory, directory.owners[agent] is not before

    def drop(self, path: str) -> Directory | None:
        """Stop watching this one directory, for all agents."""
        self.locked.discard(path)
        directory = self._by_path.pop(path, None)
        if directory is None:
            return None
        watch = self._by_wd.get(directory.wd)
        if watch is not None:
            watch.paths.discard(path)
            if not watch.paths:
                del self._by_wd[directory.wd]
                self._inotify.remove_callbacks([(directory.wd, watch.callback_id)])
        return directory

    def drop_below(self, path: str) -> list[Directory]:
        """Stop watching this directory and all below it. Return them, with the names seen in them."""
        below = path.rstrip(os.sep) + os.sep
        gone = [known for known in self._by_path if known == path or known.startswith(below)]
        return [directory for known in gone if (directory := self.drop(known)) is not None]

    def drop_watch(self, wd: int) -> list[Directory]:
        """Forget a watch that the kernel removed: its directory was deleted or unmounted."""
        watch = self._by_wd.pop(wd, None)
        self.locked.difference_update(watch.paths if watch else ())
        return [self._by_path.pop(path) for path in watch.paths] if watch else []

    def release(self, agent: str, paths: Iterable[str]) -> None:
        """Remove an agent from these directories. Directories without an agent lose their watch."""
        for path in paths:
            directory = self._by_path.get(path)
            if directory is None:
                continue
            directory.owners.pop(agent, None)
            if not directory.owners:
                self.drop(path)

    def forget_refusals(self, agent: str) -> None:
        """Forget the directories that the kernel refused to watch for the agent."""
        for path in [path for path, agents in self.refused.items() if agent in agents]:
            self.refused[path].discard(agent)
            if not self.refused[path]:
                del self.refused[path]

    def access_changed(self, path: str) -> bool:
        """Return True if a change of attributes took or gave the permission to list a directory."""
        if os.access(path, os.R_OK | os.X_OK):
            was_locked = path in self.locked or path in self.refused
            self.locked.discard(path)
            return was_locked
        if path in self._by_path:
            self.locked.add(path)
        return True

    def _add_watch(self, path: str, agent: str, *, follow: bool) -> WatchDescriptor | None:
        mask = EVENT_MASK if follow else EVENT_MASK | InotifyConstants.IN_DONT_FOLLOW
        callback_id = CallbackId(next(self._callback_ids))
        try:
            wd = self._inotify.add_callback(os.fsencode(path), Mask(mask), self._callback, callback_id)
        except OSError as error:
            if error.errno in LIMIT_ERRNOS:
                raise WatchLimitReached(limit_reason(error)) from error
            return None  # it went away meanwhile, or is no directory (any more)
        if wd == -1:
            # watchdog swallows EACCES and books the callback under the descriptor -1.
            self._inotify.remove_callbacks([(wd, callback_id)])
            self.refused.setdefault(path, set()).add(agent)
            return None
        if wd in self._by_wd:
            # One callback a watch is enough; a second one would double every event.
            self._inotify.remove_callbacks([(wd, callback_id)])
        else:
            self._by_wd[wd] = _Watch(callback_id)
        return wd


def limit_reason(error: OSError) -> str:
    """Return one sentence about an exhausted system limit and what to set."""
    if error.errno == errno.ENOSPC:
        advice = _advice("max_user_watches", at_least=524_288)
        return f"the limit of inotify watches is reached; {advice}"
    if error.errno == errno.EMFILE:
        advice = _advice("max_user_instances", at_least=1024)
        return f"the limit of inotify instances or open files is reached; {advice}, or raise `ulimit -n`"
    return f"the system grants no inotify watch ({os.strerror(error.errno or 0)}); free memory or file descriptors"


def _advice(name: str, *, at_least: int) -> str:
    try:
        now = int((_LIMITS / name).read_text())
    except (OSError, ValueError):
        return f"raise it with `sysctl -w fs.inotify.{name}={at_least}`"
    return f"it is {now}; raise it with `sysctl -w fs.inotify.{name}={max(at_least, 2 * now)}`"
