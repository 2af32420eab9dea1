"""Socket of a home's private broker, and the process that listens there. A look needs no Redis client."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import tempfile
from pathlib import Path

from memory.status.local_processes import born, is_stopped, is_the_same
from schemas.errors import UserError

#: Record of the process started as a home's broker: its id, the folder's inode, the process's time of birth.
_NOTED = Path("broker") / "server"

#: There from the start of work to its orderly end with nothing left: marks, messages, a document that kills processes.
_UNFINISHED = Path("run") / "unfinished"

#: A unix socket's path may hold 107 bytes on Linux and 103 on macOS.
_MAX_SOCKET_PATH = 100


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


def pid_behind(path: Path) -> int | None:
    """Return the process that listens on a unix socket, even if it does not answer; None where the system has none."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(path))
            pid, _, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, option, 12))
        except OSError:
            return None
    return int(pid)


def note_server(home: Path, pid: int) -> None:
    """Record the process started as this home's broker: it cannot be asked when it does not answer."""
    (home / _NOTED).write_text(f"{pid} {_inode(home)} {born(pid) or ''}", encoding="ascii")


def server_pid(home: Path) -> int | None:
    """Return the living private broker of this home, even if it does not answer; None without one."""
    if not (home / "broker").is_dir():
        return None
    try:
        pid, inode, when_born = (home / _NOTED).read_text(encoding="ascii").split(" ")
        # A copied home names the server of its original.
        ours = inode == _inode(home) and is_the_same(int(pid), when_born or None)
        return int(pid) if ours else None
    except (OSError, ValueError):
        return pid_behind(socket_path(home))  # it was started by an earlier version


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
