"""What it means to watch files, whoever does it.

Watcher
+-- InotifyWatcher        Linux: one thread and one inotify instance for all agents
+-- ObserverWatcher       other systems, through watchdog's Observer
+-- PollingWatcher        anywhere: looks again every few seconds
+-- FallbackWatcher    one of the first two, and polling for whom the system grants no watch
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
    """How changes of an agent's files are noticed."""

    EVENTS = "events"
    POLLING = "polling"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class WatchState:
    """The mode and, when it is not the best one or not complete, why. `wanted`: no other way would do."""

    mode: WatchMode
    reason: str | None = None
    wanted: bool = False


class WatchLimitReached(Transient):
    """The system grants no (further) watch. The message names the limit and what to set."""


class WatchedFiles(Protocol):
    """What a watcher has to know of an agent's documents; `memory.documents.agent_files.AgentFiles` is it."""

    def watch_roots(self) -> Sequence[WatchRoot]:
        """The directories and files to look at, as the disk is now."""

    def owns_directory(self, path: Path) -> bool:
        """Whether a directory below a recursive root counts (ignored ones do not)."""

    def scan(self) -> Scan:
        """All documents and their stat."""

    def path_of(self, key: DocumentKey) -> Path:
        """Where a document lies."""


class WatchListener(Protocol):
    """Whom a watcher tells. Called from the watcher's threads; never blocks for long, never raises."""

    def on_change(self, agent: str, path: str) -> None:
        """Something at this absolute path may have been written, moved, created or deleted."""

    def on_overflow(self) -> None:
        """Events of any agent were lost: compare every agent's files with its index."""

    def on_uncertain(self, agent: str) -> None:
        """What is watched for this agent changed its shape: refresh it, and compare its files with its index."""


class NativeListener(WatchListener, Protocol):
    """Whom a watcher tells that needs the system's help and may lose it."""

    def on_limit(self, agent: str, reason: str) -> None:
        """The agent was dropped because the system grants no further watch, or the watcher failed."""


class Watcher(ABC):
    """Tells a listener what changed below the agents' roots. Safe to use from several threads."""

    @abstractmethod
    def add_root(self, agent: str, files: WatchedFiles) -> None:
        """Watch an agent's roots, present and to come. When this returns, no later change goes unnoticed.

        Raises:
            WatchLimitReached: nothing is watched for this agent.
        """

    @abstractmethod
    def remove_root(self, agent: str) -> None:
        """Watch the agent no longer; unknown agents are fine."""

    @abstractmethod
    def refresh(self, agent: str) -> None:
        """Make sure that what is watched is what is there now. Compare files and index afterwards.

        Raises:
            WatchLimitReached: nothing is watched for this agent any more.
        """

    def settle(self, agent: str, timeout_seconds: float) -> bool:  # noqa: ARG002 - for those who can
        """Wait until the listener was told of everything that was written before; False where nobody can tell."""
        return False

    def problem(self) -> str | None:
        """Why nobody is told of changes any more, None while all is well. Cheap. `refresh` begins anew."""
        return None

    @abstractmethod
    def state(self, agent: str) -> WatchState:
        """How the agent is watched."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything and end the threads; no callback comes after it."""


class Role(Enum):
    """Why a directory is watched for an agent."""

    TREE = "all below"
    FLAT = "entries right inside"


def wanted_directories(roots: Sequence[WatchRoot]) -> dict[str, Role]:
    """The directories that have to be watched for these roots.

    A root that is not there, and a root that is a file, is watched through the nearest directory above.
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
