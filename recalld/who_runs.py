"""Whether anything of this home runs, asked of no broker: it may be the one that does not answer."""

from __future__ import annotations

from pathlib import Path

from memory.status.local_processes import is_alive
from memory.status.run_files import read_derived
from recalld.up_lock import daemon_pid


def anybody_runs(home: Path) -> bool:
    """Whether `up`, a watcher, a query service or producers of this home run on this machine."""
    if daemon_pid(home) is not None:
        return True
    files = (home / "run" / name for name in ("service.json", "watch.json", "hooks.json"))
    return any(is_alive(pid) for file in files for pid in pids_of(file))


def pids_of(path: Path) -> list[int]:
    """Process ids that a file of `run` names: its own, or those of all agents."""
    body = read_derived(path)
    if not isinstance(body, dict):
        return []
    entries = [body] if "pid" in body else [entry for entry in body.values() if isinstance(entry, dict)]
    return [entry["pid"] for entry in entries if isinstance(entry.get("pid"), int)]
