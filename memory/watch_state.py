"""What the watcher says of itself: `run/watch.json`, written by the producers, read by status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from memory.local_processes import is_alive

#: Relative to the home folder. One object: agent id -> {mode, reason, overflows, lastEventAt, lastReconcileAt, pid}.
WATCH_STATE_PATH = Path("run") / "watch.json"


@dataclass(frozen=True, slots=True)
class WatchState:
    """How an agent's files are watched: `mode` is "events", "polling" or "off"; `reason` says why, in words.

    `last_event_at` and `last_compared_at` (with the index) are Unix times, `pid` is the process that watches.
    """

    mode: str
    reason: str | None = None
    overflows: int = 0
    last_event_at: float | None = None
    last_compared_at: float | None = None
    pid: int | None = field(default=None, compare=False)

    @property
    def sentence(self) -> str:
        """The state in words."""
        text = f"{self.mode}: {self.reason}" if self.reason else self.mode
        return f"{text} ({self.overflows} queue overflows)" if self.overflows else text


def read_watch_state(home: Path, agent_id: str) -> WatchState | None:
    """What the watcher says of this agent; None when there is none, or the process that watched is gone."""
    state = _states(home / WATCH_STATE_PATH).get(agent_id)
    if not isinstance(state, dict) or not is_alive(state.get("pid")):
        return None
    reason = state.get("reason")
    overflows = state.get("overflows")
    return WatchState(
        mode=str(state.get("mode", "unknown")),
        reason=str(reason) if reason else None,
        overflows=overflows if isinstance(overflows, int) else 0,
        last_event_at=_time(state.get("lastEventAt")),
        last_compared_at=_time(state.get("lastReconcileAt")),
        pid=state["pid"],
    )


def _time(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _states(path: Path) -> Mapping[str, Any]:
    """The file's content, read anew when it was replaced: every search asks, and it may tell of thousands of agents."""
    try:
        stat = path.stat()
        return _read(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns))
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=4)
def _read(path: Path, _looks: tuple[int, int, int]) -> Mapping[str, Any]:
    states = json.loads(path.read_bytes())
    return states if isinstance(states, dict) else {}
