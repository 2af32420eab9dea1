"""What this machine knows of a process: whether it lives, stands still, or is another one of the same number."""

from __future__ import annotations

import os
from pathlib import Path

#: In which field of /proc/<pid>/stat, counted behind the name, the state and the time of birth stand (proc(5)).
_STATE, _BORN = 0, 19


def is_alive(pid: object) -> bool:
    """Whether a process of that id runs."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # somebody else's process
    return True


def born(pid: int) -> str | None:
    """A word that another process of the same number would not have; None where the system does not tell."""
    fields = _stat(pid)
    return fields[_BORN] if len(fields) > _BORN else None


def is_the_same(pid: int, when_born: str | None) -> bool:
    """Whether the process of that number still is the one that was born then."""
    if not is_alive(pid):
        return False
    fields = _stat(pid)
    if fields and fields[_STATE] == "Z":
        return False  # it ended; nobody has looked yet
    now = fields[_BORN] if len(fields) > _BORN else None
    return when_born is None or now is None or now == when_born


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal or a debugger; False where the system does not tell."""
    return _stat(pid)[:1] in (["T"], ["t"])


def _stat(pid: int) -> list[str]:
    try:
        # The name stands in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
