"""State of watching for status: `home/run/watch.json`, and troubles for what is degraded.

The file is one object `{agent: {mode, reason, overflows, lastEventAt, lastReconcileAt, pid, born}}`. `mode` is
"events", "polling" or "off", times are Unix seconds or null. `pid` and `born` name the process that watches: the file
holds while that process lives, and is removed at its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from memory.status.run_files import WATCH_STATE_PATH, this_process, write_derived
from producers.watching.watcher import WatchMode, WatchState
from schemas.ports import TroubleReporter

log = structlog.get_logger(__name__)

#: The file is written at most this often.
WRITE_SECONDS = 1.0

_OFF = WatchState(WatchMode.OFF)


@dataclass(slots=True)
class _Entry:
    state: WatchState = _OFF
    overflows: int = 0
    overflow_open: bool = False
    last_event_at: float | None = None
    last_reconcile_at: float | None = None
    told: str | None = None


class WatchReport:
    """Thread-safe, but `publish` and `close` belong to one thread."""

    def __init__(self, home: Path, agents: Iterable[str], troubles: TroubleReporter) -> None:
        self._path = home / WATCH_STATE_PATH
        self._troubles = troubles
        self._lock = threading.Lock()
        self._entries = {agent: _Entry() for agent in agents}
        self._dirty = True
        self._written_at: float | None = None
        # What is said of a file that cannot be written: "" when an earlier run may have said so, None when all is well.
        self._unwritable: str | None = ""

    def event(self, agent: str) -> None:
        """A document of the agent was reported by the watcher."""
        with self._lock:
            self._entries[agent].last_event_at = time.time()
            self._dirty = True

    def overflow(self) -> None:
        """Events were lost; said of every agent that lives by events until its next comparison."""
        with self._lock:
            for entry in self._entries.values():
                if entry.state.mode is WatchMode.EVENTS:
                    entry.overflows += 1
                    entry.overflow_open = True
            self._dirty = True

    def reconciled(self, agent: str) -> None:
        """The agent's files were compared with its index: what an overflow lost was found."""
        with self._lock:
            entry = self._entries[agent]
            entry.last_reconcile_at = time.time()
            entry.overflow_open = False
            self._dirty = True

    def watched(self, agent: str, state: WatchState) -> None:
        """How the agent is watched now."""
        with self._lock:
            entry = self._entries[agent]
            self._dirty = self._dirty or entry.state != state
            entry.state = state

    def tell_again(self) -> None:
        """Whoever keeps the troubles may have forgotten them: report them all once more at the next `publish`."""
        with self._lock:
            for entry in self._entries.values():
                entry.told = None
            self._unwritable = ""
            self._dirty = True

    def publish(self, *, now: float) -> None:
        """Write the file if there is news and the last time is long enough ago; tell troubles that changed."""
        with self._lock:
            if not self._dirty or (self._written_at is not None and now - self._written_at < WRITE_SECONDS):
                return
            self._dirty = False
            self._written_at = now
            body = {agent: _as_json(entry) for agent, entry in self._entries.items()}
            news = [(agent, message) for agent, entry in self._entries.items() if (message := _news(entry)) is not None]
        for agent, message in news:
            if message:
                self._troubles.report("watch", message, agent=agent)
            else:
                self._troubles.resolve("watch", agent=agent)
        if not self._write(body):
            with self._lock:
                self._dirty = True

    def close(self) -> None:
        """Nobody watches from now on."""
        self._path.unlink(missing_ok=True)

    def _write(self, body: object) -> bool:
        """Whether the file could be written."""
        try:
            write_derived(self._path, body)
        except OSError as error:
            message = f"{self._path} cannot be written: {error.strerror}; free space there"
            if message != self._unwritable:
                self._unwritable = message
                self._troubles.report("watch-state", message)
            return False
        if self._unwritable is not None:
            self._unwritable = None
            self._troubles.resolve("watch-state")
        return True


def _as_json(entry: _Entry) -> dict[str, object]:
    return {
        "mode": entry.state.mode.value,
        "reason": entry.state.reason,
        "overflows": entry.overflows,
        "lastEventAt": entry.last_event_at,
        "lastReconcileAt": entry.last_reconcile_at,
        **this_process(),
    }


def _news(entry: _Entry) -> str | None:
    """The trouble to report, "" when there is none any more, None when the last word still holds."""
    message = ""
    if entry.overflow_open:
        message = "the system's queue of file events overflowed; all files are being compared with the index"
    elif entry.state.mode is not WatchMode.OFF and entry.state.reason is not None and not entry.state.wanted:
        message = entry.state.reason
        if entry.state.mode is WatchMode.POLLING:
            message = f"file changes are noticed by polling: {message}"
    if message == entry.told:
        return None
    entry.told = message
    return message
