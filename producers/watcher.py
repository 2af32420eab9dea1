"""Watcher of the agents' files: looks at the files, and events of the system that start a look.

A *look* lists an agent's files by stat, watches each folder before it lists it, and compares the stats with those of
the previous look. No change falls between a watch and a listing. Changes of single documents are reported as they
come. Changes of folders, polling and lost events lead to a look.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from memory.documents.roots import DATABASE_FILES, existing_folder, is_folder_name
from memory.documents.scan import KnownFiles, packed
from memory.status.processes import Pulse
from producers.change_source import ChangeSet, ChangeSource, WatchLimitReached
from producers.report import WatchMode, WatchState
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError

if TYPE_CHECKING:
    from memory.documents.agent_files import AgentFiles, Scan, WatchRoot

log = structlog.get_logger(__name__)

#: Share of one core that polling may take.
MAX_CPU_SHARE = 0.02

#: Largest cost of a look, in CPU seconds, at which `settle` looks: about 20,000 documents.
SETTLE_CPU_SECONDS = 0.1

#: Longest pause after a look, in seconds, so that a storm of changes leads to few looks.
_LONGEST_PAUSE_SECONDS = 1.0

#: Share of one core that looks at databases may take: a program that works writes to its own all the time.
_DATABASE_CPU_SHARE = 0.05

#: Bytes of a packed stat before its change time.
_WITHOUT_CTIME = 24

#: The list of mounts (proc(5)).
MOUNTS = Path("/proc/self/mounts")

#: Types of file systems (proc(5)) that other machines write to: over the network, or from outside of a virtual machine.
_BLIND = (
    "nfs nfs4 cifs smb3 smbfs afs ceph lustre gfs2 ocfs2 davfs 9p virtiofs vboxsf prl_fs vmhgfs drvfs fuse.sshfs "
    "fuse.glusterfs fuse.rclone fuse.s3fs fuse.gcsfuse fuse.vmhgfs-fuse fuse.grpcfuse fuse.osxfs"
)


_EVENTS = WatchState(WatchMode.EVENTS)


class WatchListener(Protocol):
    """Receiver of changes, called from the watcher's threads. It never blocks for long and never raises."""

    def on_change(self, agent: str, key: DocumentKey) -> None:
        """Handle a document that was written, moved, created or deleted."""

    def on_uncertain(self, agent: str, *, events_lost: bool = False) -> None:
        """Compare the agent's files with its index: `events_lost`, or documents vanished, or roots changed."""


@dataclass(slots=True)
class _Watched:
    """Files of an agent at the last look. `folders` have a watch, `flat` ones only because of a root in them.

    `targets`: device and inode of each of the `roots`. `stats`: packed stats by hash of the document's key.
    `is_listed`: there was a look.
    """

    files: AgentFiles
    lock: threading.RLock = field(default_factory=threading.RLock)
    state: WatchState = _EVENTS
    roots: Sequence[WatchRoot] = ()
    targets: Sequence[tuple[int, int] | None] = ()
    folders: set[str] = field(default_factory=set)
    flat: set[str] = field(default_factory=set)
    stats: dict[int, bytes] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    is_listed: bool = False
    cpu_seconds: float = 0.0

    @property
    def is_polled(self) -> bool:
        return self.state.mode is WatchMode.POLLING

    def depends_on(self, folder: str, name: str) -> bool:
        """Return True if a change of a folder or link may add or remove documents."""
        if not name or (folder in self.folders - self.flat and is_folder_name(name)):
            return True
        return folder in self.flat and self.files.watch_roots() != self.roots


class _Look(KnownFiles):
    """Stats of one look, about 170 bytes a document. `compared`: bytes of a stat that count in the comparison."""

    def __init__(self, before: Mapping[int, bytes], compared: int | None) -> None:
        super().__init__()
        self._before = before
        self._compared = compared
        self.now: dict[int, bytes] = {}

    def differs(self, key: DocumentKey, stat: FileStat) -> bool:
        name = hash(key)
        now = self.now[name] = packed(stat)
        is_same = self._before.get(name, b"")[: self._compared] == now[: self._compared]
        self.unchanged += is_same
        return not is_same


class Watcher:
    """Watcher of any number of agents, with one thread for events and one for polling. Thread-safe.

    An agent is polled while the system grants no watches, and where its file system does not report all changes. Every
    `refresh` tries again.
    """

    def __init__(
        self,
        listener: WatchListener,
        *,
        source: Callable[[], ChangeSource] | None = None,
        poll_interval_seconds: float = 5.0,
        mounts: Path = MOUNTS,
        pulse: Pulse | None = None,
    ) -> None:
        self._pulse = pulse or Pulse("watching")
        self._listener = listener
        self._make_source = source or _native_source
        self._interval = poll_interval_seconds
        self._mounts = mounts
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._agents: dict[str, _Watched] = {}
        self._source: ChangeSource | None = None
        self._threads: dict[str, threading.Thread] = {}

    def add(self, agent: str, files: AgentFiles) -> None:
        """Watch an agent's present and future roots. No change after the return goes unnoticed."""
        with self._lock:
            self._agents[agent] = _Watched(files)
        self.refresh(agent)

    def refresh(self, agent: str) -> None:
        """Look at an agent's files, by events again where that is possible."""
        watched = self._agents[agent]
        with watched.lock:
            blind = blind_folder([root.path for root in watched.files.watch_roots()], mounts=self._mounts)
            reason = "{} lies on {}, where the system does not tell what other machines change"
            self._look(agent, watched, _polling(reason.format(*blind), is_required=True) if blind else _EVENTS)

    def settle(self, agent: str) -> bool:
        """Report the changes of an agent before this call. Return False if the agent is polled or not watched.

        Where a look is expensive, only events count: the system reports them within milliseconds.
        """
        watched = self._agents.get(agent)
        if watched is None or watched.is_polled or self._stop.is_set():
            return False
        with watched.lock:
            if watched.cpu_seconds <= SETTLE_CPU_SECONDS:
                self._look(agent, watched)
        return True

    def follow_moved(self) -> Iterator[tuple[str, Path]]:
        """Look again where a root is another folder than at the last look. Yield the agent and the root.

        A link that leads elsewhere, a renamed folder further up and a mount cause no event.
        """
        for agent, watched in list(self._agents.items()):
            with watched.lock:
                targets = zip(watched.roots, watched.targets, strict=False)
                moved = [root.path for root, target in targets if _target(root) != target]
                if not moved or watched.is_polled or self._stop.is_set():
                    continue
                try:
                    for folder in watched.folders:
                        self._started_source().unwatch(folder)  # its name may be that of another folder now
                    self._look(agent, watched)
                except Exception as error:  # noqa: BLE001 - the comparison that follows reports it
                    log.warning("moved_folder_not_watched", agent=agent, error=str(error))
            yield agent, moved[0]

    def state(self, agent: str) -> WatchState:
        """Return the watch state of an agent."""
        return self._agents[agent].state

    def folders(self) -> list[str]:
        """Return every folder that has a watch."""
        with self._lock:
            return sorted(set().union(*(watched.folders for watched in self._agents.values())))

    def close(self) -> None:
        """End the threads and release all watches. No callback comes afterwards."""
        self._stop.set()
        with self._lock:
            # A look that is under way keeps this source: it makes no other one.
            source, threads = self._source, list(self._threads.values())
        if source is not None:
            source.close()
        for thread in threads:
            thread.join()

    # Looks, under the agent's lock

    def _look(self, agent: str, watched: _Watched, state: WatchState | None = None) -> None:
        """List the files, watch their folders, and report the differences from the last look."""
        began, first, before = time.thread_time(), not watched.is_listed, watched.stats
        places, was_polled = (watched.roots, watched.unlisted), watched.is_polled
        watched.state = state or watched.state
        try:
            scan = self._scan(watched)
        except WatchLimitReached as limit:
            watched.state = _polling(str(limit))
            scan = self._scan(watched)
        if watched.is_polled:
            self._start("watch-polling", self._poll)
        watched.unlisted, watched.is_listed, watched.cpu_seconds = scan.unlisted, True, time.thread_time() - began
        if first:
            return
        for key in scan.documents:
            self._listener.on_change(agent, key)
        # A root also vanishes with its disk: only the comparison with the index can call documents deleted.
        vanished, began_to_poll = not before.keys() <= watched.stats.keys(), watched.is_polled and not was_polled
        if vanished or began_to_poll or places != (watched.roots, watched.unlisted):
            self._listener.on_uncertain(agent)

    def _scan(self, watched: _Watched) -> Scan:
        """Return the differences from the last look. Every folder gets its watch before it is listed, unless polled."""
        # On some file systems every look moves the change times. Changes of these alone are left to comparisons.
        look = _Look(watched.stats, _WITHOUT_CTIME if watched.is_polled else None)
        folders: set[str] = set()
        entered: set[str] = set()

        def watch(folder: str, *, recursive: bool = False, enters: bool = True) -> None:
            if enters:
                entered.add(folder)
            if folder not in folders or recursive:
                folders.add(folder)
                with self._lock:
                    watched.folders.add(folder)
                source.watch(folder, recursive=recursive)

        watched.roots = watched.files.watch_roots()
        if watched.is_polled:
            scan = watched.files.scan(but=look)
        else:
            source = self._started_source()
            # Twice: a root that appears before the folder above it has its watch causes no event.
            for _ in range(2):
                watched.roots = watched.files.watch_roots()
                watched.targets = [_target(root) for root in watched.roots]
                for root in watched.roots:
                    watch(existing_folder(str(root.path)), recursive=root.recursive, enters=root.recursive)
            scan = watched.files.scan(but=look, entering=None if source.recursive else watch)
        watched.flat, watched.stats = folders - entered, look.now
        with self._lock:
            released, watched.folders = watched.folders - folders, folders
            for folder in released.difference(*(watched.folders for watched in self._agents.values())):
                if self._source is not None:
                    self._source.unwatch(folder)
        return scan

    # Threads

    def _started_source(self) -> ChangeSource:
        with self._lock:
            if self._source is None:
                self._source = self._make_source()
                self._threads.pop("watch-events", None)
                self._start("watch-events", partial(self._follow, self._source))
            return self._source

    def _start(self, name: str, target: Callable[[], None]) -> None:
        with self._lock:
            if name not in self._threads and not self._stop.is_set():
                self._threads[name] = threading.Thread(target=target, name=name, daemon=True)
                self._threads[name].start()

    def _follow(self, source: ChangeSource) -> None:
        """Carry out the changes of a source. After a failure, the agents are polled until their next refresh."""
        try:
            for changes in source.changes():
                if self._stop.is_set():
                    return
                with self._pulse.at("reports changes of files"):
                    looked_seconds = self._carry_out(changes)
                self._stop.wait(min(looked_seconds, _LONGEST_PAUSE_SECONDS))
        except Exception as error:
            log.exception("watching_failed")
            source.close()
            with self._lock:
                self._source, agents = None, dict(self._agents)
            for agent, watched in agents.items():
                with watched.lock:
                    watched.folders.clear()
                    watched.state = _polling(f"the watcher failed: {error!r}")
                self._listener.on_uncertain(agent)
            self._start("watch-polling", self._poll)

    def _carry_out(self, changes: ChangeSet) -> float:
        """Report changed documents, look at changed databases and at agents with changed folders.

        Return the seconds of the pause that looks are worth.
        """
        for agent, watched in list(self._agents.items()) if changes.overflowed else ():
            if not watched.is_polled:
                self._listener.on_uncertain(agent, events_lost=True)
        owners = cache(self._owners_of)
        for folder, name in changes.documents:
            for agent, watched in owners(folder) if name not in DATABASE_FILES else ():
                self._document_changed(agent, watched, os.path.join(folder, name))  # noqa: PTH118 - many times
        began = time.monotonic()
        for folder in {folder for folder, name in changes.documents if name in DATABASE_FILES}:
            for agent, watched in owners(folder):
                self._database_changed(agent, watched, folder)
        database_seconds = time.monotonic() - began
        due: dict[str, _Watched] = {}
        for folder, name in changes.folders:
            for agent, watched in owners(folder):
                if agent not in due and watched.depends_on(folder, name):
                    due[agent] = watched
        began = time.monotonic()
        for agent, watched in due.items():
            with watched.lock:
                if not watched.is_polled:
                    self._look(agent, watched)
        return (time.monotonic() - began if due else 0.0) + database_seconds / _DATABASE_CPU_SHARE

    def _document_changed(self, agent: str, watched: _Watched, path: str) -> None:
        key = watched.files.key_of(path)
        if key is None:
            return
        with watched.lock:
            before = watched.stats.pop(hash(key), None)
            with suppress(RecalldError):
                if (stat := watched.files.stat(key)) is not None:
                    watched.stats[hash(key)] = packed(stat)
            if before is not None and before == watched.stats.get(hash(key)):
                return  # a look came first
        self._listener.on_change(agent, key)

    def _database_changed(self, agent: str, watched: _Watched, folder: str) -> None:
        """Report the sessions that changed in the database of a folder."""
        with watched.lock:
            try:
                rows = watched.files.rows_in(folder)
            except RecalldError:
                self._listener.on_uncertain(agent)
                return
            changed = [key for key, stat in rows.items() if watched.stats.get(hash(key)) != packed(stat)]
            watched.stats.update((hash(key), packed(rows[key])) for key in changed)
        for key in changed:
            self._listener.on_change(agent, key)

    def _owners_of(self, folder: str) -> list[tuple[str, _Watched]]:
        with self._lock:
            recursive = self._source is not None and self._source.recursive
            folders = {folder, *map(str, Path(folder).parents)} if recursive else {folder}
            return [entry for entry in self._agents.items() if not entry[1].folders.isdisjoint(folders)]

    def _poll(self) -> None:
        """Look at the polled agents every few seconds, less often if a round is expensive."""
        pause = self._interval
        while not self._stop.wait(pause):
            began = time.thread_time()
            for agent, watched in list(self._agents.items()):
                with watched.lock:
                    if not watched.is_polled or self._stop.is_set():
                        continue
                    try:
                        self._look(agent, watched)
                    except Exception as error:  # noqa: BLE001 - the comparison that follows reports it
                        log.warning("polling_failed", agent=agent, error=str(error))
                        self._listener.on_uncertain(agent)
            pause = max(self._interval, (time.thread_time() - began) / MAX_CPU_SHARE)


def _target(root: WatchRoot) -> tuple[int, int] | None:
    try:
        stat = root.path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _polling(reason: str, *, is_required: bool = False) -> WatchState:
    return WatchState(
        WatchMode.POLLING, f"{reason}. Files are looked at every few seconds instead", is_required=is_required
    )


def blind_folder(folders: Iterable[Path], *, mounts: Path = MOUNTS) -> tuple[Path, str] | None:
    """Return the first folder on a file system of `_BLIND` and the type; None without one, or without a mount list."""
    lines = mounts.read_bytes().splitlines() if mounts.is_file() else []
    # Spaces and the like are octal escapes there.
    fields = ([part.decode("unicode_escape").encode("latin-1") for part in line.split(b" ")] for line in lines)
    types = {os.fsdecode(where): kind.decode() for _, where, kind, *_ in fields}
    for folder in folders:
        real = Path(os.path.realpath(folder))
        kind = next((types[str(above)] for above in (real, *real.parents) if str(above) in types), "")
        if kind in _BLIND.split():
            return folder, kind
    return None


def _native_source() -> ChangeSource:
    if os.uname().sysname == "Linux":
        from producers.inotify import InotifySource  # its import fails elsewhere

        return InotifySource()
    from producers.observer import ObserverSource

    return ObserverSource()
