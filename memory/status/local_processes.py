"""Facts about a process of this machine: alive, stopped, or another process of the same number."""

from __future__ import annotations

import os
from pathlib import Path

#: Fields of /proc/<pid>/stat, counted behind the name, that hold the state and the time of birth (proc(5)).
_STATE, _BORN = 0, 19


def is_alive(pid: object) -> bool:
    """Return True if a process of that id runs."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's process
    return True


def born(pid: int) -> str | None:
    """Return a word that no other process of the same number has; None where the system has none."""
    fields = _stat(pid)
    return fields[_BORN] if len(fields) > _BORN else None


def is_the_same(pid: int, when_born: str | None) -> bool:
    """Return True if the process of that number still is the one born then."""
    if not is_alive(pid):
        return False
    fields = _stat(pid)
    if fields and fields[_STATE] == "Z":
        return False  # it ended; its parent has not looked yet
    now = fields[_BORN] if len(fields) > _BORN else None
    return when_born is None or now is None or now == when_born


def is_stopped(pid: int) -> bool:
    """Return True if a signal or a debugger stopped the process; False where the system does not tell."""
    return _stat(pid)[:1] in (["T"], ["t"])


def _stat(pid: int) -> list[str]:
    try:
        # The name stands in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
