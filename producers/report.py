"""Conditions of the agents' files and of their watching, and the file `home/run/watch.json` for status.

The file is one object `{agent: {mode, reason, overflows, lastEventAt, lastReconcileAt, pid, born}}`. `mode` is
"events", "polling" or "off", times are Unix seconds or null. `pid` and `born` name the watching process. It removes
the file at its end, and readers ignore the file of a dead process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import structlog

from memory.documents.scan import printable
from memory.status.run_files import WATCH_STATE_PATH, this_process, write_derived
from schemas.conditions import OF_FILES, Condition, ConditionCode
from schemas.ports import ConditionReporter

log = structlog.get_logger(__name__)

#: Least seconds between two reports of conditions and writes of the file.
WRITE_SECONDS = 1.0

#: Seconds for which the last refusal stays in status.
REFUSAL_SECONDS = 600.0

#: Largest number of shown characters of a refused path.
_SHOWN_CHARS = 200

_OF_AGENTS = (
    ConditionCode.WATCH_MOVED,
    ConditionCode.WATCH_OVERFLOWED,
    ConditionCode.WATCH_POLLS,
    ConditionCode.EVENT_PATHS_REFUSED,
    ConditionCode.FILES_NOT_COMPARED,
    *OF_FILES,
)


class WatchMode(StrEnum):
    """Method of noticing changes of an agent's files."""

    EVENTS = "events"
    POLLING = "polling"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class WatchState:
    """Mode, and the reason if it is degraded. `is_required`: no other mode works for the file system."""

    mode: WatchMode
    reason: str | None = None
    is_required: bool = False


_OFF = WatchState(WatchMode.OFF)


@dataclass(slots=True)
class _Entry:
    """Record of one agent. `files` are the conditions of its last comparison, None before the first one.

    `moved`: a watched path that leads to another folder since then.
    """

    state: WatchState = _OFF
    overflows: int = 0
    overflow_open: bool = False
    moved: Path | None = None
    last_event_at: float | None = None
    last_reconcile_at: float | None = None
    files: Sequence[Condition] | None = None
    refused: int = 0
    refusal: tuple[str, str] = ("", "")
    refused_at: float = 0.0

    def conditions(self) -> Iterator[Condition]:
        state = self.state
        if self.moved is not None:
            yield Condition(ConditionCode.WATCH_MOVED, printable(str(self.moved)))
        if self.overflow_open:
            yield Condition(ConditionCode.WATCH_OVERFLOWED)
        elif state.mode is not WatchMode.OFF and state.reason is not None and not state.is_required:
            yield Condition(ConditionCode.WATCH_POLLS, params={"reason": state.reason})
        if self.refused:
            path, reason = self.refusal
            yield Condition(
                ConditionCode.EVENT_PATHS_REFUSED, params={"paths": self.refused, "path": path, "reason": reason}
            )
        yield from self.files or ()

    def body(self) -> dict[str, object]:
        return {
            "mode": self.state.mode.value,
            "reason": self.state.reason,
            "overflows": self.overflows,
            "lastEventAt": self.last_event_at,
            "lastReconcileAt": self.last_reconcile_at,
            **this_process(),
        }


class FilesReport:
    """Report of all agents. Thread-safe, but `publish` and `close` belong to one thread."""

    def __init__(self, home: Path, agents: Iterable[str], reporter: ConditionReporter) -> None:
        self._path = home / WATCH_STATE_PATH
        self._reporter = reporter
        self._lock = threading.Lock()
        self._entries = {agent: _Entry() for agent in agents}
        self._dirty = True
        self._next_at = 0.0
        self._reported: dict[str, list[Condition]] = {}

    def event(self, agent: str) -> None:
        """Record that the watcher reported a document of the agent."""
        with self._changing(agent) as entry:
            entry.last_event_at = time.time()

    def overflow(self, agent: str) -> None:
        """Record lost events, until the agent's next comparison."""
        with self._changing(agent) as entry:
            entry.overflows += 1
            entry.overflow_open = True

    def moved(self, agent: str, path: Path) -> None:
        """Record that a watched path leads to another folder, until the agent's next comparison."""
        with self._changing(agent) as entry:
            entry.moved, self._next_at = path, 0.0  # the comparison is near

    def compared(self, agent: str, conditions: Sequence[Condition]) -> None:
        """Record a comparison of the agent's files and index with its `conditions`. It has found all lost changes."""
        with self._changing(agent) as entry:
            entry.last_reconcile_at = time.time()
            entry.overflow_open, entry.moved = False, None
            entry.files = conditions

    def not_compared(self, agent: str, **params: str | float) -> None:
        """Record a comparison that failed."""
        with self._changing(agent) as entry:
            entry.files = [Condition(ConditionCode.FILES_NOT_COMPARED, params=params)]

    def watched(self, agent: str, state: WatchState) -> None:
        """Record the present watch state of the agent."""
        if self._entries[agent].state != state:
            with self._changing(agent) as entry:
                entry.state = state

    def refused(self, agent: str, kind: str, path: str, *, reason: str) -> None:
        """Record the refusal to open a path that an event of a known agent named."""
        log.warning("event_refused", kind=kind, agent=agent, reason=reason)
        text = "".join(sign if sign.isprintable() else "?" for sign in printable(path[: _SHOWN_CHARS + 1]))
        with self._changing(agent) as entry:
            entry.refused += 1
            entry.refused_at = time.monotonic()
            entry.refusal = text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}...", reason

    def republish(self) -> None:
        """Report all conditions again: a broker that came back may have lost them."""
        with self._lock:
            self._reported.clear()
            self._dirty = True

    def publish(self, *, now: float) -> None:
        """Report changed conditions and write the file, at most every `WRITE_SECONDS`. Times are monotonic."""
        with self._lock:
            for entry in self._entries.values():
                if entry.refused and now - entry.refused_at > REFUSAL_SECONDS:
                    entry.refused, self._dirty = 0, True
            if not self._dirty or now < self._next_at:
                return
            self._dirty, self._next_at = False, now + WRITE_SECONDS
            entries = {agent: replace(entry) for agent, entry in self._entries.items()}
        for agent, entry in entries.items():
            if entry.files is not None:
                self._replace(agent, _OF_AGENTS, [*entry.conditions()])
        conditions = []
        try:
            write_derived(self._path, {agent: entry.body() for agent, entry in entries.items()})
        except OSError as error:
            self._dirty = True
            params = {"error": error.strerror or str(error)}
            conditions = [Condition(ConditionCode.WATCH_STATE_UNWRITABLE, str(self._path), params=params)]
        self._replace("*", (ConditionCode.WATCH_STATE_UNWRITABLE,), conditions)

    def close(self) -> None:
        """Remove the file: the process stops watching."""
        self._path.unlink(missing_ok=True)

    @contextmanager
    def _changing(self, agent: str) -> Iterator[_Entry]:
        with self._lock:
            self._dirty = True
            yield self._entries[agent]

    def _replace(self, agent: str, codes: Collection[ConditionCode], conditions: list[Condition]) -> None:
        if self._reported.get(agent) != conditions:
            self._reported[agent] = conditions
            self._reporter.replace(codes, conditions, agent=agent)
