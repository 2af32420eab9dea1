"""Lock of the daemon of a home, which ends with its holder, and the other signs of running processes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from memory.status.run_files import is_alive, read_derived
from schemas.errors import UserError
from schemas.settings import Settings

#: Files of `run` that name the processes that wrote them.
RUN_FILES = ("service.json", "watch.json", "hooks.json")

#: Tries to get a taken lock, and the seconds between two.
_TRIES, _PAUSE_SECONDS = 20, 0.01


def daemon_pid(home: Path) -> int | None:
    """Return the process id of the `recalld up` of this home; None if none runs."""
    try:
        handle = (home / "run" / "up.lock").open("r", encoding="ascii", errors="replace")
    except OSError:
        return None
    with handle:
        return None if _locked(handle, fcntl.LOCK_SH) else _pid(handle.read())


@contextmanager
def only_daemon(home: Path) -> Iterator[None]:
    """Hold the lock during the block.

    Raises:
        UserError: another daemon runs in this home, or the home cannot be written.
    """
    path = home / "run" / "up.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; mend that, or choose another folder with --home or RECALLD_HOME"
        ) from None
    with handle:
        # A process that only looks holds the lock for a moment, too.
        for _ in range(_TRIES):
            if _locked(handle, fcntl.LOCK_EX):
                break
            time.sleep(_PAUSE_SECONDS)
        else:
            pid = _pid(path.read_text(encoding="ascii", errors="replace"))
            raise UserError(
                f"recalld already runs for {home}"
                + (f" (process {pid})" if pid else "")
                + "; stop it first, or choose another folder with --home"
            ) from None
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _locked(handle: IO[str], how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _pid(text: str) -> int | None:
    return int(text) if text.isascii() and text.strip().isdigit() else None


def anybody_runs(home: Path) -> bool:
    """Return True if `up`, a watcher, a query service or producers of this home run on this machine."""
    if daemon_pid(home) is not None:
        return True
    return any(is_alive(pid) for name in RUN_FILES for pid in pids_of(home / "run" / name))


def pids_of(path: Path) -> list[int]:
    """Return the process ids in a file of `run`: one, or one an agent."""
    body = read_derived(path)
    if not isinstance(body, dict):
        return []
    entries = [body] if "pid" in body else [entry for entry in body.values() if isinstance(entry, dict)]
    return [entry["pid"] for entry in entries if isinstance(entry.get("pid"), int)]


def broker_away(settings: Settings) -> tuple[str, str] | None:
    """Return what is wrong with a broker that does not answer, and what to do; None where nothing needs it."""
    if settings.broker.url is not None:
        return "the broker named by REDIS_URL (broker.url) does not answer", "start it, or correct the URL"
    if anybody_runs(settings.home):
        log = settings.home / "broker" / "valkey.log"
        remedy = f"look into {log}; `recalld up` starts it again when it is gone"
        return "recalld runs and its private broker does not answer", remedy
    return None
