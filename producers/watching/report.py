"""State of watching for status: the file `home/run/watch.json`, and conditions for degraded watching.

The file is one object `{agent: {mode, reason, overflows, lastEventAt, lastReconcileAt, pid, born}}`. `mode` is
"events", "polling" or "off", times are Unix seconds or null. `pid` and `born` name the watching process. It removes
the file at its end, and readers ignore the file of a dead process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from memory.status.run_files import WATCH_STATE_PATH, this_process, write_derived
from producers.watching.watcher import WatchMode, WatchState
from schemas.conditions import Condition, ConditionCode
from schemas.ports import ConditionReporter

log = structlog.get_logger(__name__)

#: The file is written at most this often.
WRITE_SECONDS = 1.0

_OFF = WatchState(WatchMode.OFF)

_OF_WATCHING = (ConditionCode.WATCH_OVERFLOWED, ConditionCode.WATCH_POLLS, ConditionCode.WATCH_DEGRADED)


@dataclass(slots=True)
class _Entry:
    state: WatchState = _OFF
    overflows: int = 0
    overflow_open: bool = False
    last_event_at: float | None = None
    last_reconcile_at: float | None = None
    #: Conditions as they were reported; None when they were not.
    told: list[Condition] | None = None


class WatchReport:
    """Report of all agents. Thread-safe, but `publish` and `close` belong to one thread."""

    def __init__(self, home: Path, agents: Iterable[str], reporter: ConditionReporter) -> None:
        self._path = home / WATCH_STATE_PATH
        self._reporter = reporter
        self._lock = threading.Lock()
        self._entries = {agent: _Entry() for agent in agents}
        self._dirty = True
        self._written_at: float | None = None
        # Why the file cannot be written: "" when an earlier run may have reported it, None when all is well.
        self._unwritable: str | None = ""

    def event(self, agent: str) -> None:
        """Record that the watcher reported a document of the agent."""
        with self._lock:
            self._entries[agent].last_event_at = time.time()
            self._dirty = True

    def overflow(self) -> None:
        """Record lost events for every agent watched by events, until its next comparison."""
        with self._lock:
            for entry in self._entries.values():
                if entry.state.mode is WatchMode.EVENTS:
                    entry.overflows += 1
                    entry.overflow_open = True
            self._dirty = True

    def reconciled(self, agent: str) -> None:
        """Record a comparison of the agent's files and index, which finds the lost changes."""
        with self._lock:
            entry = self._entries[agent]
            entry.last_reconcile_at = time.time()
            entry.overflow_open = False
            self._dirty = True

    def watched(self, agent: str, state: WatchState) -> None:
        """Record the present watch state of the agent."""
        with self._lock:
            entry = self._entries[agent]
            self._dirty = self._dirty or entry.state != state
            entry.state = state

    def tell_again(self) -> None:
        """Report all conditions again at the next `publish`: a broker that came back may have lost them."""
        with self._lock:
            for entry in self._entries.values():
                entry.told = None
            self._unwritable = ""
            self._dirty = True

    def publish(self, *, now: float) -> None:
        """Write the file and report changed conditions, at most every `WRITE_SECONDS`."""
        with self._lock:
            if not self._dirty or (self._written_at is not None and now - self._written_at < WRITE_SECONDS):
                return
            self._dirty = False
            self._written_at = now
            body = {agent: _as_json(entry) for agent, entry in self._entries.items()}
            news = [(agent, list(_conditions(entry))) for agent, entry in self._entries.items()]
            news = [(agent, found) for agent, found in news if self._entries[agent].told != found]
            for agent, found in news:
                self._entries[agent].told = found
        for agent, found in news:
            self._reporter.replace(_OF_WATCHING, found, agent=agent)
        if not self._write(body):
            with self._lock:
                self._dirty = True

    def close(self) -> None:
        """Remove the file: the process stops watching."""
        self._path.unlink(missing_ok=True)

    def _write(self, body: object) -> bool:
        """Write the file. Return True if that succeeded."""
        try:
            write_derived(self._path, body)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._unwritable:
                self._unwritable = reason
                self._reporter.report(ConditionCode.WATCH_STATE_UNWRITABLE, subject=str(self._path), error=reason)
            return False
        if self._unwritable is not None:
            self._unwritable = None
            self._reporter.resolve(ConditionCode.WATCH_STATE_UNWRITABLE, subject=str(self._path))
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


def _conditions(entry: _Entry) -> Iterator[Condition]:
    state = entry.state
    if entry.overflow_open:
        yield Condition(ConditionCode.WATCH_OVERFLOWED)
    elif state.mode is not WatchMode.OFF and state.reason is not None and not state.wanted:
        polls = state.mode is WatchMode.POLLING
        code = ConditionCode.WATCH_POLLS if polls else ConditionCode.WATCH_DEGRADED
        yield Condition(code, params={"reason": state.reason})
