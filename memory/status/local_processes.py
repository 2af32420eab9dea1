"""Processes of this machine: alive, stopped, or another one of the same number. One of them is a private broker."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from schemas.errors import UserError

#: Record of the process started as a home's broker: its id, the folder's inode, the process's time of birth.
_NOTED = Path("broker") / "server"

#: There from the start of work to its orderly end with nothing left: marks, messages, a document that kills processes.
_UNFINISHED = Path("run") / "unfinished"

#: A unix socket's path may hold 107 bytes on Linux and 103 on macOS.
_MAX_SOCKET_PATH = 100

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


def socket_path(home: Path) -> Path:
    """Return the socket of this home's private server; a short path elsewhere when the home's is too long."""
    path = home / "broker" / "valkey.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    digest = hashlib.blake2b(os.fsencode(home.absolute()), digest_size=8).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"recalld-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to another user; choose a shorter --home so that it is not needed")
    return folder / "valkey.sock"


def note_server(home: Path, pid: int) -> None:
    """Record the process started as this home's broker: it cannot be asked when it does not answer."""
    (home / _NOTED).write_text(f"{pid} {_inode(home)} {born(pid) or ''}", encoding="ascii")


def server_pid(home: Path) -> int | None:
    """Return the living private broker of this home, even if it does not answer; None without one."""
    try:
        pid, inode, when_born = (home / _NOTED).read_text(encoding="ascii").split(" ")
        # A copied home names the server of its original.
        return int(pid) if inode == _inode(home) and is_the_same(int(pid), when_born or None) else None
    except (OSError, ValueError):
        return None


def _inode(home: Path) -> str:
    return str((home / _NOTED).parent.stat().st_ino)


def frozen_pid(home: Path) -> int | None:
    """Return the private broker of this home if a signal stopped it: it takes calls and answers none."""
    pid = server_pid(home)
    return pid if pid is not None and is_stopped(pid) else None


def note_unfinished(home: Path) -> None:
    """Record that work of this home begins."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / _UNFINISHED).touch()


def note_finished(home: Path) -> None:
    """Record that work of this home ended with nothing left."""
    (home / _UNFINISHED).unlink(missing_ok=True)


def was_unfinished(home: Path) -> bool:
    """Return True if work of this home was interrupted, or goes on."""
    return (home / _UNFINISHED).exists()
