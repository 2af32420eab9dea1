"""Leftovers of dead processes in the home: files that name a running process, sockets without a listener, drafts."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from memory.status.local_processes import is_alive
from memory.status.private_broker import socket_path
from recalld.doctor.finding import Finding, Level
from recalld.up.lock import pids_of
from schemas.settings import Settings

#: Age of a draft whose writer has died: a living writer renames it at once.
_ABANDONED_SECONDS = 3600.0


def leftovers(settings: Settings) -> Iterator[Finding]:
    """Yield a finding on each stale file of the home; healing removes the file."""
    found = False
    for path, what in _stale(settings):
        found = True
        yield Finding(
            "leftovers",
            Level.WARNING,
            f"{path} is {what}",
            "`recalld doctor --fix` removes it",
            heal=_removing(settings, path),
        )
    aside = settings.home / "spool" / "damaged"
    kept = len(list(aside.glob("*.json"))) if aside.is_dir() else 0
    if kept:
        found = True
        yield Finding(
            "leftovers",
            Level.WARNING,
            f"{kept} events that could not be read were set aside in {aside}",
            "look at them and delete them; what they were about is found by comparing files and index",
        )
    if not found:
        yield Finding.fine("leftovers", "no stale locks, sockets or drafts")


def _stale(settings: Settings) -> Iterator[tuple[Path, str]]:
    run = settings.home / "run"
    for name, what in (
        ("service.json", "of a query service that is gone"),
        ("watch.json", "of a watcher that is gone"),
        ("hooks.json", "of producers that are gone"),
    ):
        pids = pids_of(run / name)
        if pids and not any(map(is_alive, pids)):
            yield run / name, what
    if settings.broker.url is None:
        path = settings.home / "broker" / "valkey.sock"
        if path.parent.is_dir():
            path = socket_path(settings.home)
        if path.is_socket() and not _listens(path):
            yield path, "a socket without a listener"
    for folder, pattern in ((run, ".*.json.*"), (settings.home / "spool", ".*.json"), (settings.home, "namespace.*")):
        for draft in sorted(folder.glob(pattern)) if folder.is_dir() else ():
            with suppress(OSError):
                if time.time() - draft.stat().st_mtime > _ABANDONED_SECONDS:
                    yield draft, "a draft of a process that died"


def _listens(path: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # a listener may be busy
        return True


def _removing(settings: Settings, path: Path) -> Callable[[], str]:
    def remove() -> str:
        # The process that starts a broker holds this lock until the socket exists.
        with _held(settings.home / "broker" / "lock") as ours:
            if not ours or path not in dict(_stale(settings)):
                return f"left {path}: it is in use again"
            path.unlink(missing_ok=True)
        return f"removed {path}"

    return remove


@contextmanager
def _held(lock: Path) -> Iterator[bool]:
    if not lock.exists():
        yield True
        return
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
