"""Watcher for Linux: one thread and one inotify instance for any number of workspaces.

watchdog's own Observer starts a thread per root and watches everything below it, node_modules included. This watcher
uses only its reading thread (`InotifyFD`) and chooses the directories itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog
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
from producers.watching.inotify_directories import LIMIT_ERRNOS, Directory, WatchedDirectories, limit_reason
from producers.watching.watcher import (
    NativeListener,
    Role,
    WatchedFiles,
    Watcher,
    WatchLimitReached,
    WatchMode,
    WatchState,
    wanted_directories,
)

log = structlog.get_logger(__name__)

_CALLBACK_ID = CallbackId(0)

_SELF_GONE = InotifyConstants.IN_DELETE_SELF | InotifyConstants.IN_MOVE_SELF | InotifyConstants.IN_UNMOUNT

_GONE = InotifyConstants.IN_DELETE | InotifyConstants.IN_MOVED_FROM

_CAME = InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVED_TO

#: Roots that come and go while they are being added are looked at again this many times.
_SETTLE_ROUNDS = 5


class InotifyBarrier(WatchCallback):
    """Barrier for the inotify thread: a private folder that the same instance watches.

    The kernel queues the events of one instance in order, so a file created now in the folder is reported after all
    earlier writes. Without a folder (no space, no watch left), every wait fails.
    """

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
        """Wait until the thread has reported everything before this call. Return False after the timeout."""
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
        """Record the marker file of a waiting thread."""
        name = os.fsdecode(event.name)
        if not name.isdigit():
            return
        with self._changed:
            self._seen = max(self._seen, int(name))
            self._changed.notify_all()

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """Ignore the deletion of the folder: every wait times out from then on."""

    def on_queue_overflow(self) -> None:
        """Ignore an overflow: waits whose marker was lost time out."""

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(slots=True)
class _Agent:
    files: WatchedFiles
    wanted: dict[str, Role] = field(default_factory=dict)


@dataclass(slots=True)
class _News:
    """Changes to report to the listener after the lock is released."""

    changes: list[tuple[str, str]] = field(default_factory=list)
    uncertain: set[str] = field(default_factory=set)
    limits: list[tuple[str, str]] = field(default_factory=list)

    def changed(self, owners: Iterable[str], path: str) -> None:
        self.changes.extend((owner, path) for owner in owners)


class InotifyWatcher(Watcher, WatchCallback):
    """Watcher over one inotify instance. The constructor starts the thread.

    Raises:
        WatchLimitReached: the system grants no inotify instance.
    """

    def __init__(self, listener: NativeListener) -> None:
        self._listener = listener
        self._lock = threading.RLock()
        self._agents: dict[str, _Agent] = {}
        self._closed = False
        try:
            self._inotify = InotifyFD()
        except OSError as error:
            if error.errno in LIMIT_ERRNOS:
                raise WatchLimitReached(limit_reason(error)) from error
            raise
        self._inotify.name = "watch-inotify"
        self._directories = WatchedDirectories(self._inotify, self)
        self._marks = InotifyBarrier(self._inotify)
        self._inotify.start()

    # The Watcher

    def add_root(self, agent: str, files: WatchedFiles) -> None:
        with self._lock:
            self._forget(agent)
            self._agents[agent] = _Agent(files)
            self._look_again(agent, _News())

    def remove_root(self, agent: str) -> None:
        with self._lock:
            self._forget(agent)

    def refresh(self, agent: str) -> None:
        with self._lock:
            if agent not in self._agents:
                return
            if not self._inotify.is_alive():
                self._forget(agent)
                raise WatchLimitReached("the thread that watched has ended")
            self._directories.forget_refusals(agent)
            self._look_again(agent, _News(), verify=True)

    def state(self, agent: str) -> WatchState:
        with self._lock:
            if agent not in self._agents:
                return WatchState(WatchMode.OFF)
            refused = sorted(path for path, agents in self._directories.refused.items() if agent in agents)
        if not refused:
            return WatchState(WatchMode.EVENTS)
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        return WatchState(WatchMode.EVENTS, f"{refused[0]}{more} cannot be watched: permission denied")

    def problem(self) -> str | None:
        return None if self._closed or self._inotify.is_alive() else "the thread that watched has ended"

    def settle(self, agent: str, timeout_seconds: float) -> bool:
        with self._lock:
            if self._closed or agent not in self._agents or not self._inotify.is_alive():
                return False
        return self._marks.wait(timeout_seconds)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._marks.close()
        self._inotify.stop()
        if self._inotify is not threading.current_thread():
            self._inotify.join()

    def watched_directories(self) -> list[str]:
        """Return every directory that has a watch."""
        with self._lock:
            return self._directories.paths()

    # Called by the inotify thread

    def on_event(self, event: InotifyEvent) -> None:
        with self._digesting() as news:
            for directory in self._directories.of_watch(event.wd):
                self._digest(directory, event, news)

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        with self._digesting() as news:
            self._lost(self._directories.drop_watch(wd), news)

    def on_queue_overflow(self) -> None:
        if not self._closed:
            self._listener.on_overflow()

    @contextlib.contextmanager
    def _digesting(self) -> Iterator[_News]:
        """Digest under the lock, report without it. After an unexpected error, all agents are reported as dropped."""
        news = _News()
        with self._lock:
            if self._closed:
                yield _News()
                return
            try:
                yield news
            except Exception as error:
                log.exception("watching_failed")
                news.limits.extend((agent, f"the watcher failed: {error!r}") for agent in self._agents)
                for agent in list(self._agents):
                    self._forget(agent)
        self._tell(news)

    def _tell(self, news: _News) -> None:
        try:
            for agent, path in news.changes:
                self._listener.on_change(agent, path)
            for agent, reason in news.limits:
                self._listener.on_limit(agent, reason)
            for agent in news.uncertain:
                self._listener.on_uncertain(agent)
        except Exception:
            # A listener must not raise. If it does, the events of the other agents go on.
            log.exception("listener_failed")

    # Under the lock

    def _digest(self, directory: Directory, event: InotifyEvent, news: _News) -> None:
        mask = event.mask
        if mask & _SELF_GONE:
            # Everything below went with it.
            gone = self._directories.drop_below(directory.path)
            if mask & InotifyConstants.IN_UNMOUNT:
                for owner in {owner for lost in gone for owner in lost.owners}:
                    news.uncertain.add(owner)
                    self._try_to_look_again(owner, news)
            else:
                self._lost(gone, news)
            return
        name = os.fsdecode(event.name)
        path = str(Path(directory.path) / name)
        if mask & InotifyConstants.IN_ISDIR:
            self._digest_directory(directory, path, mask, news)
        elif may_be_document(name):
            if mask & _GONE:
                directory.documents.discard(name)
            else:
                directory.documents.add(name)
            news.changed(directory.owners, path)
        elif mask & _CAME and _is_link(path):
            # A root that is a symbolic link comes without IN_ISDIR.
            for owner in self._flat_owners(directory):
                self._try_to_look_again(owner, news)

    def _digest_directory(self, directory: Directory, path: str, mask: int, news: _News) -> None:
        if mask & InotifyConstants.IN_ATTRIB:
            if self._directories.access_changed(path):
                news.uncertain.update(directory.owners)
            return
        if mask & InotifyConstants.IN_DELETE:
            dropped = self._directories.drop(path)
            self._lost([dropped] if dropped else [], news)
        elif mask & InotifyConstants.IN_MOVED_FROM:
            # The watches go on at the new place. They are dropped here and made again when IN_MOVED_TO names a place
            # that counts.
            self._lost(self._directories.drop_below(path), news)
        elif mask & _CAME:
            for owner, role in list(directory.owners.items()):
                if role is Role.TREE:
                    self._try_to_cover(owner, path, news)
        for owner in self._flat_owners(directory):
            self._try_to_look_again(owner, news)

    @staticmethod
    def _flat_owners(directory: Directory) -> list[str]:
        return [owner for owner, role in directory.owners.items() if role is Role.FLAT]

    def _lost(self, directories: list[Directory], news: _News) -> None:
        """Report the documents of lost directories. For a lost root, request a comparison instead.

        A root also vanishes with its disk. Its documents are not deleted then: only the comparison, which looks at the
        root first, can decide that.
        """
        for owner in {owner for directory in directories for owner in directory.owners}:
            agent = self._agents.get(owner)
            if agent is None:
                continue
            roots = [directory.path for directory in directories if directory.path in agent.wanted]
            for directory in directories:
                if owner in directory.owners and not any(_is_within(directory.path, root) for root in roots):
                    for name in directory.documents:
                        news.changed([owner], str(Path(directory.path) / name))
            if roots:
                news.uncertain.add(owner)
                self._try_to_look_again(owner, news)

    def _try_to_look_again(self, agent: str, news: _News) -> None:
        if agent in self._agents:
            try:
                self._look_again(agent, news)
            except WatchLimitReached as limit:
                news.limits.append((agent, str(limit)))

    def _try_to_cover(self, agent: str, path: str, news: _News) -> None:
        if agent in self._agents and self._agents[agent].files.owns_directory(Path(path)):
            try:
                self._cover(agent, path, Role.TREE, news)
            except WatchLimitReached as limit:
                self._forget(agent)
                news.limits.append((agent, str(limit)))

    def _look_again(self, agent: str, news: _News, *, verify: bool = False) -> None:
        """Watch the agent's present roots and report new documents. With `verify`, list every directory again."""
        state = self._agents[agent]
        visited: set[str] = set()
        try:
            for _ in range(_SETTLE_ROUNDS):
                wanted = wanted_directories(state.files.watch_roots())
                if wanted != state.wanted:
                    news.uncertain.add(agent)
                    self._directories.release(agent, self._unwanted(agent, wanted))
                state.wanted = wanted
                for path, role in wanted.items():
                    visited |= self._cover(agent, path, role, news, root=True, verify=verify)
                # A root that appeared before its parent got its watch causes no event.
                if wanted_directories(state.files.watch_roots()) == wanted:
                    break
        except WatchLimitReached:
            self._forget(agent)
            raise
        if verify:
            self._directories.release(
                agent, [path for path in self._directories.paths_of(agent) if path not in visited]
            )

    def _unwanted(self, agent: str, wanted: dict[str, Role]) -> list[str]:
        trees = [path.rstrip(os.sep) + os.sep for path, role in wanted.items() if role is Role.TREE]
        return [
            path
            for path in self._directories.paths_of(agent)
            if path not in wanted and not any(path.startswith(tree) for tree in trees)
        ]

    def _cover(
        self, agent: str, top: str, role: Role, news: _News, *, root: bool = False, verify: bool = False
    ) -> set[str]:
        """Watch a directory and, for a tree, the directories below it. Return the directories that were visited.

        Each directory is listed after it got its watch: older entries are seen here, later ones are events.
        """
        files = self._agents[agent].files
        visited: set[str] = set()
        waiting = [top]
        while waiting:
            path = waiting.pop()
            directory, fresh = self._directories.ensure(path, agent, role, follow=root and path == top)
            if directory is None:
                continue
            visited.add(path)
            if not fresh and not verify:
                continue
            for entry in _entries(path):
                if entry.is_dir(follow_symlinks=False):
                    if role is Role.TREE and files.owns_directory(Path(entry.path)):
                        waiting.append(entry.path)
                elif may_be_document(entry.name):
                    directory.documents.add(entry.name)
            if fresh:
                for name in directory.documents:
                    news.changed([agent], str(Path(path) / name))
        return visited

    def _forget(self, agent: str) -> None:
        if self._agents.pop(agent, None) is not None:
            self._directories.release(agent, self._directories.paths_of(agent))
            self._directories.forget_refusals(agent)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []  # gone again, or not readable: the comparison of files and index reports it


def _is_within(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip(os.sep) + os.sep)


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False
