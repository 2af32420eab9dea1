"""Files below `run` by which the processes of a home find each other and status sees them: `watch.json`, `hooks.json`.

They are derived: a file that is gone, damaged or unreadable is as good as none, and its writer makes it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory.status.local_processes import born, is_the_same

if TYPE_CHECKING:
    from schemas.status import WatchingState

#: Relative to the home folder. One object: agent id -> its entry, see `producers.report`.
WATCH_STATE_PATH = Path("run") / "watch.json"

#: Relative to the home folder. One object: {url, pid, born}.
HOOKS_STATE_PATH = Path("run") / "hooks.json"


def read_derived(path: Path) -> Any | None:
    """Return the JSON value of a derived file, None where the file cannot be read or understood."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def write_derived(path: Path, value: object) -> None:
    """Replace a derived file as a whole, readable by its owner only. A folder in its place is set aside.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def this_process() -> dict[str, int | str | None]:
    """Return the entries by which a file names the process that wrote it."""
    return {"pid": os.getpid(), "born": born(os.getpid())}


def write_hooks_state(home: Path, url: str) -> None:
    """Record where this process takes hooks; `url` ends where the program's name belongs.

    Raises:
        OSError: the home folder cannot be written.
    """
    write_derived(home / HOOKS_STATE_PATH, {"url": url, **this_process()})


def read_hooks_state(home: Path) -> str | None:
    """Return where hooks may be sent, None while no process takes them."""
    state = _object(read_derived(home / HOOKS_STATE_PATH))
    url = state.get("url")
    return url if isinstance(url, str) and _lives(state) else None


def remove_hooks_state(home: Path) -> None:
    """Remove the record of this process."""
    if _object(read_derived(home / HOOKS_STATE_PATH)).get("pid") == os.getpid():
        with contextlib.suppress(OSError):
            (home / HOOKS_STATE_PATH).unlink()


def read_watch_state(home: Path, agent_id: str) -> WatchingState | None:
    """Return the watcher's record of this agent, None where there is none or the process that watched is gone."""
    from schemas.status import WatchingState

    state = _object(_states(home / WATCH_STATE_PATH).get(agent_id))
    if not _lives(state):
        return None
    reason, overflows = state.get("reason"), state.get("overflows")
    event_at, compared_at = (
        float(at) if isinstance(at := state.get(name), int | float) else None
        for name in ("lastEventAt", "lastReconcileAt")
    )
    return WatchingState(
        mode=str(state.get("mode", "unknown")),
        reason=str(reason) if reason else None,
        overflows=overflows if isinstance(overflows, int) else 0,
        last_event_at=event_at,
        last_compared_at=compared_at,
    )


def _lives(state: Mapping[str, Any]) -> bool:
    """Return True if the process that wrote these entries runs, and is not another one of its number."""
    pid, when_born = state.get("pid"), state.get("born")
    return isinstance(pid, int) and is_the_same(pid, when_born if isinstance(when_born, str) else None)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _states(path: Path) -> Mapping[str, Any]:
    """The file's content, read anew when it was replaced: every search asks, and it may tell of thousands of agents."""
    try:
        stat = path.stat()
    except OSError:
        return {}
    return _read(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=4)
def _read(path: Path, _looks: tuple[int, int, int]) -> Mapping[str, Any]:
    return _object(read_derived(path))
