"""State of watching for status: the file `home/run/watch.json`, and conditions for degraded watching.

The file is one object `{agent: {mode, reason, overflows, lastEventAt, lastReconcileAt, pid, born}}`. `mode` is
"events", "polling" or "off", times are Unix seconds or null. `pid` and `born` name the watching process. It removes
the file at its end, and readers ignore the file of a dead process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memory.status.run_files import WATCH_STATE_PATH, this_process, write_derived
from producers.watching.watcher import WatchMode, WatchState
from schemas.conditions import Condition, ConditionCode
from schemas.ports import ConditionReporter

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


class WatchReport:
    """Report of all agents. Thread-safe, but `publish` and `close` belong to one thread."""

    def __init__(self, home: Path, agents: Iterable[str], reporter: ConditionReporter) -> None:
        self._path = home / WATCH_STATE_PATH
        self._reporter = reporter
        self._lock = threading.Lock()
        self._entries = {agent: _Entry() for agent in agents}
        self._dirty = True
        self._written_at: float | None = None
        self._reported: dict[str, list[Condition]] = {}

    def event(self, agent: str) -> None:
        """Record that the watcher reported a document of the agent."""
        with self._changing(agent) as entry:
            entry.last_event_at = time.time()

    def overflow(self) -> None:
        """Record lost events for every agent watched by events, until its next comparison."""
        for agent in self._entries:
            with self._changing(agent) as entry:
                if entry.state.mode is WatchMode.EVENTS:
                    entry.overflows += 1
                    entry.overflow_open = True

    def reconciled(self, agent: str) -> None:
        """Record a comparison of the agent's files and index, which finds the lost changes."""
        with self._changing(agent) as entry:
            entry.last_reconcile_at = time.time()
            entry.overflow_open = False

    def watched(self, agent: str, state: WatchState) -> None:
        """Record the present watch state of the agent."""
        if self._entries[agent].state != state:
            with self._changing(agent) as entry:
                entry.state = state

    def tell_again(self) -> None:
        """Report all conditions again at the next `publish`: a broker that came back may have lost them."""
        with self._lock:
            self._reported.clear()
            self._dirty = True

    def publish(self, *, now: float) -> None:
        """Write the file and report changed conditions, at most every `WRITE_SECONDS`."""
        with self._lock:
            if not self._dirty or (self._written_at is not None and now - self._written_at < WRITE_SECONDS):
                return
            self._dirty = False
            self._written_at = now
            body = {agent: _as_json(entry) for agent, entry in self._entries.items()}
            conditions = {agent: list(_conditions(entry)) for agent, entry in self._entries.items()}
        for agent, found in conditions.items():
            self._tell(agent, _OF_WATCHING, found)
        self._tell("*", (ConditionCode.WATCH_STATE_UNWRITABLE,), self._write(body))

    def close(self) -> None:
        """Remove the file: the process stops watching."""
        self._path.unlink(missing_ok=True)

    @contextmanager
    def _changing(self, agent: str) -> Iterator[_Entry]:
        with self._lock:
            self._dirty = True
            yield self._entries[agent]

    def _tell(self, agent: str, codes: Collection[ConditionCode], found: list[Condition]) -> None:
        with self._lock:
            known = self._reported.get(agent)
            self._reported[agent] = found
        if known != found:
            self._reporter.replace(codes, found, agent=agent)

    def _write(self, body: object) -> list[Condition]:
        """Write the file. Return the condition of a failure."""
        try:
            write_derived(self._path, body)
        except OSError as error:
            self._dirty = True
            params = {"error": error.strerror or str(error)}
            return [Condition(ConditionCode.WATCH_STATE_UNWRITABLE, str(self._path), params=params)]
        return []


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
