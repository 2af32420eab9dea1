"""Interface of file watchers and their listeners.

Watcher
+-- InotifyWatcher        Linux: one thread and one inotify instance for all agents
+-- ObserverWatcher       other systems, through watchdog's Observer
+-- PollingWatcher        anywhere: looks again every few seconds
+-- FallbackWatcher       one of the first two, and polling for agents without a watch
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from schemas.documents import DocumentKey
from schemas.errors import Transient

if TYPE_CHECKING:
    from memory.documents.agent_files import Scan, WatchRoot


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


class WatchedFiles(Protocol):
    """Files of an agent as a watcher needs them. `memory.documents.agent_files.AgentFiles` implements it."""

    def watch_roots(self) -> Sequence[WatchRoot]:
        """Return the directories and files to watch, as the disk is now."""

    def owns_directory(self, path: Path) -> bool:
        """Return True if a directory below a recursive root counts and is not ignored."""

    def scan(self) -> Scan:
        """Return all documents and their stats."""

    def path_of(self, key: DocumentKey) -> Path:
        """Return the path of a document."""


class WatchListener(Protocol):
    """Receiver of changes, called from the watcher's threads. It never blocks for long and never raises."""

    def on_change(self, agent: str, path: str) -> None:
        """Handle an absolute path that may have been written, moved, created or deleted."""

    def on_overflow(self) -> None:
        """Handle lost events: compare every agent's files with its index."""

    def on_uncertain(self, agent: str) -> None:
        """Handle changed roots of an agent: refresh it, and compare its files with its index."""


class NativeListener(WatchListener, Protocol):
    """Receiver of a native watcher's changes and of its limits."""

    def on_limit(self, agent: str, reason: str) -> None:
        """Handle a dropped agent: the system grants no further watch, or the watcher failed."""


class Watcher(ABC):
    """Watcher that reports changes below the agents' roots to a listener. Thread-safe."""

    @abstractmethod
    def add_root(self, agent: str, files: WatchedFiles) -> None:
        """Watch an agent's present and future roots. No change after the return goes unnoticed.

        Raises:
            WatchLimitReached: nothing is watched for this agent.
        """

    @abstractmethod
    def remove_root(self, agent: str) -> None:
        """Stop watching an agent. Unknown agents are ignored."""

    @abstractmethod
    def refresh(self, agent: str) -> None:
        """Watch the present roots of an agent. Compare files and index afterwards.

        Raises:
            WatchLimitReached: nothing is watched for this agent any more.
        """

    def settle(self, agent: str, timeout_seconds: float) -> bool:  # noqa: ARG002 - for subclasses
        """Wait until the listener got all earlier changes. Return False after the timeout, or if unknown."""
        return False

    def problem(self) -> str | None:
        """Return the reason why changes are not reported any more, else None. Cheap. `refresh` restarts the watcher."""
        return None

    @abstractmethod
    def state(self, agent: str) -> WatchState:
        """Return the watch state of an agent."""

    @abstractmethod
    def close(self) -> None:
        """End the threads and release all watches. No callback comes afterwards."""


class Role(Enum):
    """Reach of a watch on a directory for an agent."""

    TREE = "all below"
    FLAT = "entries right inside"


def wanted_directories(roots: Sequence[WatchRoot]) -> dict[str, Role]:
    """Return the directories to watch for these roots.

    A missing root, and a root that is a file, is watched through the nearest directory above.
    """
    wanted: dict[str, Role] = {}
    for root in roots:
        path = os.fspath(root.path)
        if Path(path).is_dir():
            role = Role.TREE if root.recursive else Role.FLAT
        else:
            path, role = _nearest_directory(path), Role.FLAT
        if wanted.get(path) is not Role.TREE:
            wanted[path] = role
    return wanted


def _nearest_directory(path: str) -> str:
    return next((str(parent) for parent in Path(path).parents if parent.is_dir()), os.sep)
