"""Watcher by events where the system grants them, by polling elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from producers.watching.polling_watcher import PollingWatcher
from producers.watching.watcher import (
    NativeListener,
    WatchedFiles,
    Watcher,
    WatchLimitReached,
    WatchListener,
    WatchMode,
    WatchState,
)

#: Types of file systems (proc(5), mountinfo) that other machines write to: over the network, or from outside of a
#: virtual machine.
_OVER_THE_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gfs2", "ocfs2", "davfs"}

_FROM_OUTSIDE = {"9p", "virtiofs", "vboxsf", "prl_fs", "vmhgfs", "drvfs"}

_FUSE = {"sshfs", "glusterfs", "rclone", "s3fs", "gcsfuse", "vmhgfs-fuse", "grpcfuse", "osxfs"}

BLIND = frozenset({*_OVER_THE_NETWORK, *_FROM_OUTSIDE, *(f"fuse.{name}" for name in _FUSE)})

_ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def open_watcher(listener: WatchListener, *, poll_interval_seconds: float = 5.0) -> FallbackWatcher:
    """Return the watcher for this machine."""
    return FallbackWatcher(_native_watcher, listener, poll_interval_seconds=poll_interval_seconds)


def _native_watcher(listener: NativeListener) -> Watcher:
    if sys.platform == "linux":
        from producers.watching.inotify_watcher import InotifyWatcher  # its import fails elsewhere

        return InotifyWatcher(listener)
    else:  # noqa: RET505 - mypy knows this form of a platform check
        from producers.watching.observer_watcher import ObserverWatcher

        return ObserverWatcher(listener)


class FallbackWatcher(Watcher):
    """Native watcher with polling for the agents that it has no room for.

    Every `refresh` of a polled agent tries the native watcher again: the user may have raised the limit.
    """

    def __init__(
        self,
        make_native: Callable[[NativeListener], Watcher],
        listener: WatchListener,
        *,
        poll_interval_seconds: float = 5.0,
    ) -> None:
        self._make_native = make_native
        self._listener = listener
        self._lock = threading.RLock()
        self._native: Watcher | None = None
        self._polling = PollingWatcher(listener, interval_seconds=poll_interval_seconds)
        self._files: dict[str, WatchedFiles] = {}
        self._reasons: dict[str, str] = {}
        # Polled agents on file systems without complete events.
        self._blind: set[str] = set()

    def add_root(self, agent: str, files: WatchedFiles) -> None:
        with self._lock:
            self._files[agent] = files
            self._try_native(agent)

    def remove_root(self, agent: str) -> None:
        with self._lock:
            self._files.pop(agent, None)
            self._reasons.pop(agent, None)
            self._polling.remove_root(agent)
            native = self._native
        if native is not None:
            native.remove_root(agent)

    def refresh(self, agent: str) -> None:
        with self._lock:
            if agent not in self._files:
                return
            if self._native is not None and self._native.problem() is not None:
                self._begin_anew(self._native)
                return
            if agent in self._reasons:
                self._try_native(agent)
                return
            native = self._native
        try:
            if native is not None:
                native.refresh(agent)
        except WatchLimitReached as limit:
            self._poll(agent, str(limit))

    def problem(self) -> str | None:
        with self._lock:
            native = self._native
        return native.problem() if native is not None else None

    def settle(self, agent: str, timeout_seconds: float) -> bool:
        with self._lock:
            native = self._native if agent not in self._reasons else None
        return native is not None and native.settle(agent, timeout_seconds)

    def state(self, agent: str) -> WatchState:
        with self._lock:
            reason = self._reasons.get(agent)
            blind = agent in self._blind
            native = self._native
        if reason is not None:
            said = f"{reason}. Files are looked at every few seconds instead"
            return WatchState(WatchMode.POLLING, said, wanted=blind)
        return native.state(agent) if native is not None else WatchState(WatchMode.OFF)

    def close(self) -> None:
        with self._lock:
            native, self._native = self._native, None
        if native is not None:
            native.close()
        self._polling.close()

    # As the native watcher's listener

    def on_change(self, agent: str, path: str) -> None:
        """Passed on."""
        self._listener.on_change(agent, path)

    def on_overflow(self) -> None:
        """Passed on."""
        self._listener.on_overflow()

    def on_uncertain(self, agent: str) -> None:
        """Passed on."""
        self._listener.on_uncertain(agent)

    def on_limit(self, agent: str, reason: str) -> None:
        """Poll the agent from now on. A comparison finds the changes in between."""
        self._poll(agent, reason)
        self._listener.on_uncertain(agent)

    def _begin_anew(self, dead: Watcher) -> None:
        """Replace a watcher whose thread has ended, for all agents."""
        self._native = None
        dead.close()
        for agent in self._files:
            self._try_native(agent)

    def _try_native(self, agent: str) -> None:
        blind = blind_folder([root.path for root in self._files[agent].watch_roots()])
        if blind is not None:
            folder, kind = blind
            if self._native is not None:
                self._native.remove_root(agent)
            self._blind.add(agent)
            self._poll(agent, f"{folder} lies on {kind}, where the system does not tell what other machines change")
            return
        self._blind.discard(agent)
        try:
            if self._native is None:
                self._native = self._make_native(self)
            self._native.add_root(agent, self._files[agent])
        except WatchLimitReached as limit:
            self._poll(agent, str(limit))
            return
        self._reasons.pop(agent, None)
        self._polling.remove_root(agent)

    def _poll(self, agent: str, reason: str) -> None:
        with self._lock:
            files = self._files.get(agent)
            if files is None:
                return
            already = agent in self._reasons
            self._reasons[agent] = reason
            if not already:
                self._polling.add_root(agent, files)


def blind_folder(folders: Iterable[Path], *, mounts: Path = Path("/proc/self/mountinfo")) -> tuple[Path, str] | None:
    """Return the first folder on such a file system and its type; None without one, or without a list of mounts."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    types = dict(_mount(line) for line in lines if " - " in line)
    for folder in folders:
        real = Path(os.path.realpath(folder))
        kind = next((types[str(above)] for above in (real, *real.parents) if str(above) in types), "")
        if kind in BLIND:
            return folder, kind
    return None


def _mount(line: str) -> tuple[str, str]:
    """Return the folder and the file system type of a line of mountinfo."""
    before, _, after = line.partition(" - ")
    where = before.split(" ")[4]
    for escape, character in _ESCAPES.items():
        where = where.replace(escape, character)
    return where, after.split(" ")[0]
