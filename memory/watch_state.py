"""What the watcher says of itself: `run/watch.json`, written by the producers, read by status."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

#: Relative to the home folder. One object: agent id -> {mode, reason, overflows, lastEventAt, lastReconcileAt, pid}.
WATCH_STATE_PATH = Path("run") / "watch.json"


@dataclass(frozen=True, slots=True)
class WatchState:
    """How an agent's files are watched: `mode` is "events", "polling" or "off"; `reason` says why, in words."""

    mode: str
    reason: str | None = None
    overflows: int = 0

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
    )


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


def is_alive(pid: object) -> bool:
    """Whether a process of that id runs."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's process
    return True
