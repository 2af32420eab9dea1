"""Lock of a home's daemon, which ends with its holder, and other signs of running processes."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING

from memory.status.run_files import is_alive, read_derived
from schemas.errors import UserError

if TYPE_CHECKING:
    from schemas.settings import Settings

#: Files of `run` that name the processes that wrote them.
_RUN_FILES = ("service.json", "watch.json", "hooks.json")

#: Attempts to get the lock, which a process that checks it also holds for a moment; and the seconds between two.
_TRIES, _PAUSE_SECONDS = 20, 0.01


def daemon_pid(home: Path) -> int | None:
    """Return the process id of the `recalld up` of this home; None if none runs."""
    try:
        handle = (home / "run" / "up.lock").open("r", encoding="ascii", errors="replace")
    except OSError:
        return None
    with handle:
        return None if _locked(handle, fcntl.LOCK_SH) else _pid(handle)


@contextmanager
def daemon_lock(home: Path) -> Iterator[None]:
    """Hold the lock during the block.

    Raises:
        UserError: another daemon runs in this home, or the home cannot be written.
    """
    path = home / "run" / "up.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+", encoding="ascii", errors="replace")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; mend that, or choose another folder with --home or RECALLD_HOME"
        ) from None
    with handle:
        tries = 1
        while not _locked(handle, fcntl.LOCK_EX):
            if tries == _TRIES:
                process = f" (process {pid})" if (pid := _pid(handle)) else ""
                raise UserError(
                    f"recalld already runs for {home}{process}; stop it first (`recalld stop`), or choose another "
                    "folder with --home"
                )
            tries += 1
            time.sleep(_PAUSE_SECONDS)
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


def _pid(handle: IO[str]) -> int | None:
    handle.seek(0)
    text = handle.read().strip()
    return int(text) if text.isdecimal() else None


def has_processes(home: Path) -> bool:
    """Return True if `up`, a watcher, a query service or producers of this home run on this machine."""
    return daemon_pid(home) is not None or any(map(is_alive, chain(*_run_files(home).values())))


def stale_files(home: Path) -> list[Path]:
    """Return the run files whose processes are all gone."""
    return [path for path, pids in _run_files(home).items() if pids and not any(map(is_alive, pids))]


def _run_files(home: Path) -> dict[Path, list[object]]:
    """Return the process ids in each run file, which has one entry or one an agent."""
    files = {path: read_derived(path) for path in (home / "run" / name for name in _RUN_FILES)}
    return {
        path: [process["pid"] for process in (body, *body.values()) if isinstance(process, dict) and "pid" in process]
        for path, body in files.items()
        if isinstance(body, dict)
    }


def broker_away(settings: Settings) -> tuple[str, str] | None:
    """Return the fault of a broker that does not answer, and the remedy; None where nothing needs it."""
    if settings.broker.url is not None:
        return "the broker named by REDIS_URL (broker.url) does not answer", "start it, or correct the URL"
    if has_processes(settings.home):
        log = settings.home / "broker" / "valkey.log"
        remedy = f"look into {log}; `recalld up` starts it again when it is gone"
        return "recalld runs and its private broker does not answer", remedy
    return None
