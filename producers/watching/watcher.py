"""Watcher of the agents' files: one look for all, and changes of the system that say when to look.

A *look* lists an agent's files by stat, watches each folder before it lists it, and compares the stats with those of
the look before. Nothing falls between a watch and a listing. Changes of single documents are reported as they come.
Changes of folders, polling and lost events lead to a look.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from memory.documents.roots import existing_folder, is_folder_name
from memory.documents.scan import KnownFiles, packed
from memory.status.processes import Pulse
from schemas.documents import DocumentKey, FileStat
from schemas.errors import RecalldError, Transient

if TYPE_CHECKING:
    from memory.documents.agent_files import AgentFiles, Scan, WatchRoot

log = structlog.get_logger(__name__)

#: Share of one core that polling may take.
MAX_CPU_SHARE = 0.02

#: CPU seconds of a look up to which every `settle` looks: about 20,000 documents.
SETTLE_CPU_SECONDS = 0.1

#: Roots that come and go while they get their watches are looked at again this many times.
_ROUNDS = 5

#: Seconds that the changes of folders wait at most after a look: a storm of changes leads to few looks.
_LONGEST_PAUSE_SECONDS = 1.0

#: Bytes of a packed stat before its change time.
_WITHOUT_CTIME = struct.calcsize("<qqQ")

#: The list of mounts (proc(5)).
MOUNTS = Path("/proc/self/mounts")

#: Types of file systems (proc(5)) that other machines write to: over the network, or from outside of a virtual machine.
_BLIND = (
    "nfs nfs4 cifs smb3 smbfs afs ceph lustre gfs2 ocfs2 davfs 9p virtiofs vboxsf prl_fs vmhgfs drvfs fuse.sshfs "
    "fuse.glusterfs fuse.rclone fuse.s3fs fuse.gcsfuse fuse.vmhgfs-fuse fuse.grpcfuse fuse.osxfs"
)


class WatchMode(StrEnum):
    """Method by which changes of an agent's files are noticed."""

    EVENTS = "events"
    POLLING = "polling"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class WatchState:
    """Mode, and the reason if it is degraded. `wanted`: no other mode works for the file system."""

    mode: WatchMode
    reason: str | None = None
    wanted: bool = False


class WatchLimitReached(Transient):
    """Raised when the system grants no further watch. The message names the limit and what to set."""


class WatchListener(Protocol):
    """Receiver of changes, called from the watcher's threads. It never blocks for long and never raises."""

    def on_change(self, agent: str, key: DocumentKey) -> None:
        """Handle a document that was written, moved, created or deleted."""

    def on_overflow(self) -> None:
        """Handle lost events: compare every agent's files with its index."""

    def on_uncertain(self, agent: str) -> None:
        """Handle vanished documents, or changed roots: compare the agent's files with its index."""


@dataclass(slots=True)
class ChangeSet:
    """Changes that a source reported together.

    `documents`: watched folder and absolute path of what may be a document. `folders`: watched folder and name of a
    folder or link in it that came, went or changed; without a name, the watched folder itself did.
    """

    documents: dict[tuple[str, str], None] = field(default_factory=dict)
    folders: dict[tuple[str, str], None] = field(default_factory=dict)
    overflowed: bool = False


class ChangeSource(ABC):
    """Changes in watched folders, as a system reports them. The constructor may raise `WatchLimitReached`."""

    #: True if a watch covers all that is below a folder.
    recursive: bool

    @abstractmethod
    def watch(self, folder: str, *, recursive: bool = False) -> bool:
        """Watch a folder. Return False if the system does not permit it; a folder that is gone is ignored.

        Raises:
            WatchLimitReached: the system grants no further watch.
        """

    @abstractmethod
    def unwatch(self, folder: str) -> None:
        """Stop watching a folder."""

    @abstractmethod
    def changes(self) -> Iterator[ChangeSet]:
        """Yield the changes until `close`. For one thread."""

    @abstractmethod
    def close(self) -> None:
        """End `changes` and release all watches."""


@dataclass(slots=True)
class _Watched:
    """An agent's files and their last look. `folders` have a watch, `flat` ones only because of a root in them.

    `polled`: the state of a polled agent. `moving`: documents whose change time alone moved in the last round.
    """

    files: AgentFiles
    lock: threading.RLock = field(default_factory=threading.RLock)
    polled: WatchState | None = None
    roots: Sequence[WatchRoot] = ()
    folders: set[str] = field(default_factory=set)
    flat: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    seen: dict[int, bytes] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    moving: set[DocumentKey] = field(default_factory=set)
    looked: bool = False
    cpu_seconds: float = 0.0

    def depends_on(self, folder: str, name: str) -> bool:
        """Return True if a change of a folder or link may change which documents there are."""
        if not name or (folder in self.folders - self.flat and is_folder_name(name)):
            return True
        return folder in self.flat and self.files.watch_roots() != self.roots


class _Look(KnownFiles):
    """Stats of one look, about 170 bytes a document, compared with those of the look before."""

    def __init__(self, before: Mapping[int, bytes]) -> None:
        super().__init__()
        self.before = before
        self.now: dict[int, bytes] = {}

    def differs(self, key: DocumentKey, stat: FileStat) -> bool:
        name = hash(key)
        self.now[name] = packed(stat)
        is_same = self.before.get(name) == self.now[name]
        self.unchanged += is_same
        return not is_same

    def only_ctime_moved(self, key: DocumentKey) -> bool:
        known = self.before.get(hash(key))
        return known is not None and known[:_WITHOUT_CTIME] == self.now[hash(key)][:_WITHOUT_CTIME]


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
            watched.polled = None
            if blind is not None:
                reason = f"{blind[0]} lies on {blind[1]}, where the system does not tell what other machines change"
                watched.polled = _polling(reason, wanted=True)
            self._look(agent, watched)

    def settle(self, agent: str) -> bool:
        """Report the changes of an agent before this call. Return False if the agent is polled or not watched.

        Where a look is expensive, only events count: the system reports them within milliseconds.
        """
        watched = self._agents.get(agent)
        if watched is None or watched.polled is not None or self._stop.is_set():
            return False
        with watched.lock:
            if watched.cpu_seconds <= SETTLE_CPU_SECONDS:
                self._look(agent, watched)
        return True

    def state(self, agent: str) -> WatchState:
        """Return the watch state of an agent."""
        watched = self._agents[agent]
        if watched.polled is not None:
            return watched.polled
        if not watched.refused:
            return WatchState(WatchMode.EVENTS)
        more = f" and {len(watched.refused) - 1} more" if len(watched.refused) > 1 else ""
        return WatchState(WatchMode.EVENTS, f"{watched.refused[0]}{more} cannot be watched: permission denied")

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

    def _look(self, agent: str, watched: _Watched) -> None:
        """List the files, watch their folders, and report what differs from the last look."""
        began = time.thread_time()
        first, roots, unlisted, polled = not watched.looked, watched.roots, watched.unlisted, watched.polled
        try:
            look = _Look(watched.seen)
            scan = self._covering_scan(watched, look)
        except WatchLimitReached as limit:
            watched.polled = _polling(str(limit))
            look = _Look(watched.seen)
            scan = self._covering_scan(watched, look)
        changed = list(scan.documents)
        if watched.polled is not None:
            self._start("watch-polling", self._poll)
            # A change time that moves alone is reported once it rests: on some file systems every look moves it.
            moving = {key for key in changed if look.only_ctime_moved(key)}
            changed = [key for key in {**scan.documents, **dict.fromkeys(watched.moving)} if key not in moving]
            watched.moving = moving
        watched.seen, watched.unlisted, watched.looked = look.now, scan.unlisted, True
        watched.cpu_seconds = time.thread_time() - began
        if first:
            return
        for key in changed:
            self._listener.on_change(agent, key)
        # A root also vanishes with its disk: only the comparison with the index can call documents deleted.
        began_to_poll = polled is None and watched.polled is not None
        vanished = not look.before.keys() <= look.now.keys()
        if vanished or watched.roots != roots or scan.unlisted != unlisted or began_to_poll:
            self._listener.on_uncertain(agent)

    def _covering_scan(self, watched: _Watched, look: _Look) -> Scan:
        """Return the scan of the files. Every folder gets its watch before it is listed."""
        if watched.polled is not None:
            watched.refused = []
            self._release(watched, watched.folders)
            watched.roots = watched.files.watch_roots()
            return watched.files.scan(but=look)
        source = self._started_source()
        folders: set[str] = set()
        entered: set[str] = set()
        refused: set[str] = set()

        def watch(folder: str, *, recursive: bool = False) -> None:
            if folder not in folders or recursive:
                folders.add(folder)
                with self._lock:
                    watched.folders.add(folder)
                if not source.watch(folder, recursive=recursive):
                    refused.add(folder)

        def enter(folder: str) -> None:
            entered.add(folder)
            watch(folder)

        for _ in range(_ROUNDS):
            roots = watched.roots = watched.files.watch_roots()
            for root in roots:
                watch(existing_folder(str(root.path)), recursive=root.recursive)
                if root.recursive:
                    entered.add(str(root.path))
            # A root that appeared before the folder above it got its watch causes no event.
            if watched.files.watch_roots() == roots:
                break
        scan = watched.files.scan(but=look, entering=None if source.recursive else enter)
        self._release(watched, watched.folders - folders)
        watched.flat = folders - entered
        watched.refused = sorted(refused)
        return scan

    def _release(self, watched: _Watched, folders: set[str]) -> None:
        with self._lock:
            released, watched.folders = folders, watched.folders - folders
            for folder in released.difference(*(other.folders for other in self._agents.values())):
                if self._source is not None:
                    self._source.unwatch(folder)

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
        """Carry out the changes of a source. If that fails, its agents are polled until their next refresh."""
        try:
            for changes in source.changes():
                if self._stop.is_set():
                    return
                with self._pulse.at("reports changes of files"):
                    looked_seconds = self._carry_out(changes)
                self._stop.wait(min(looked_seconds, _LONGEST_PAUSE_SECONDS))
        except Exception as error:
            log.exception("watching_failed")
            with self._lock:
                self._source = None
                agents = list(self._agents.items())
            source.close()
            for agent, watched in agents:
                with watched.lock:
                    watched.folders.clear()
                    watched.polled = watched.polled or _polling(f"the watcher failed: {error!r}")
                    self._start("watch-polling", self._poll)
                self._listener.on_uncertain(agent)

    def _carry_out(self, changes: ChangeSet) -> float:
        """Report changed documents and look at agents with changed folders. Return the seconds that looks took."""
        if changes.overflowed:
            self._listener.on_overflow()
        owners = cache(self._owners_of)
        for folder, path in changes.documents:
            for agent, watched in owners(folder):
                self._document_changed(agent, watched, path)
        due: dict[str, _Watched] = {}
        for folder, name in changes.folders:
            for agent, watched in owners(folder):
                if agent not in due and watched.depends_on(folder, name):
                    due[agent] = watched
        began = time.monotonic()
        for agent, watched in due.items():
            with watched.lock:
                if watched.polled is None:
                    self._look(agent, watched)
        return time.monotonic() - began if due else 0.0

    def _document_changed(self, agent: str, watched: _Watched, path: str) -> None:
        key = watched.files.key_of(path)
        if key is None:
            return
        with watched.lock:
            try:
                stat = watched.files.stat(key)
            except RecalldError:
                stat = None
            if stat is None:
                watched.seen.pop(hash(key), None)
            elif watched.seen.get(hash(key)) == packed(stat):
                return  # a look came first
            else:
                watched.seen[hash(key)] = packed(stat)
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
                    if watched.polled is None or self._stop.is_set():
                        continue
                    try:
                        self._look(agent, watched)
                    except Exception as error:  # noqa: BLE001 - the comparison that follows reports it
                        log.warning("polling_failed", agent=agent, error=str(error))
                        self._listener.on_uncertain(agent)
            pause = max(self._interval, (time.thread_time() - began) / MAX_CPU_SHARE)


def _polling(reason: str, *, wanted: bool = False) -> WatchState:
    return WatchState(WatchMode.POLLING, f"{reason}. Files are looked at every few seconds instead", wanted=wanted)


def blind_folder(folders: Iterable[Path], *, mounts: Path = MOUNTS) -> tuple[Path, str] | None:
    """Return the first folder on such a file system and its type; None without one, or without a list of mounts."""
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError:
        return None
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
        from producers.watching.inotify import InotifySource  # its import fails elsewhere

        return InotifySource()
    from producers.watching.observer import ObserverSource

    return ObserverSource()
