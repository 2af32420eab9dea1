"""Processes of this machine, and the files of a home by which they find each other and status finds them.

The files are derived: the writer of a file makes it again if it is gone, damaged or unreadable. A file names its writer
by process id and time of birth, so that a later process with the same id is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory.http.private_folders import temporary_folder
from memory.http.whole_files import move_folder_aside, write_whole
from schemas.conditions import Condition

if TYPE_CHECKING:
    from schemas.status import WatchingState

#: Record of the process started as a home's broker: its id, the folder's inode, the process's time of birth.
_SERVER_RECORD = Path("broker") / "server"

#: Present from the start of work until its orderly end, without remaining marks, messages or quarantined documents.
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
    """Return the time of birth of a process, as its system writes it; None on a system without."""
    fields = _stat(pid)
    return fields[_BORN] if len(fields) > _BORN else None


def is_the_same(pid: int, when_born: str | None) -> bool:
    """Return True if the process with that id runs, and was born at `when_born` (None: at any time)."""
    if not is_alive(pid):
        return False
    fields = _stat(pid)
    if fields and fields[_STATE] == "Z":
        return False  # it ended; its parent has not waited for it yet
    now = fields[_BORN] if len(fields) > _BORN else None
    return when_born is None or now is None or now == when_born


def is_stopped(pid: int) -> bool:
    """Return True if a signal or a debugger stopped the process; False on a system without /proc."""
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
    return temporary_folder(digest) / "valkey.sock"


def note_server(home: Path, pid: int) -> None:
    """Record the process started as this home's broker, to be found even while it does not answer."""
    (home / _SERVER_RECORD).write_text(f"{pid} {_inode(home)} {born(pid) or ''}", encoding="ascii")


def server_pid(home: Path) -> int | None:
    """Return the living private broker of this home, even if it does not answer; None without one."""
    try:
        pid, inode, when_born = (home / _SERVER_RECORD).read_text(encoding="ascii").split(" ")
        # A copied home names the server of its original.
        return int(pid) if inode == _inode(home) and is_the_same(int(pid), when_born or None) else None
    except (OSError, ValueError):
        return None


def _inode(home: Path) -> str:
    return str((home / _SERVER_RECORD).parent.stat().st_ino)


def frozen_pid(home: Path) -> int | None:
    """Return the private broker of this home if a signal stopped it: connections open, and no answer comes."""
    pid = server_pid(home)
    return pid if pid is not None and is_stopped(pid) else None


def note_unfinished(home: Path) -> None:
    """Record that work of this home begins."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    (home / _UNFINISHED).touch()


def note_finished(home: Path) -> None:
    """Record that work of this home ended, and none remains."""
    (home / _UNFINISHED).unlink(missing_ok=True)


def was_unfinished(home: Path) -> bool:
    """Return True if work of this home was interrupted, or goes on."""
    return (home / _UNFINISHED).exists()


#: Relative to the home folder. One object: agent id -> its entry, see `producers.report`.
WATCH_STATE_PATH = Path("run") / "watch.json"

#: Relative to the home folder. One object: {conditions: [[agent, condition]], pid, born}.
REMOTE_STATE_PATH = Path("run") / "remote.json"

#: Relative to the home folder. One object: {url, pid, born}.
HOOKS_STATE_PATH = Path("run") / "hooks.json"


#: Relative to the home folder. The last known usage: {day or "ever": {agent id or "*": [usage]}}.
USAGE_PATH = Path("run") / "usage.json"


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
    move_folder_aside(path)
    write_whole(path, json.dumps(value).encode(), synced=False)


def keep_derived(path: Path, value: object) -> None:
    """Replace a derived file, or remove it (None). Raises OSError."""
    if value is None:
        path.unlink(missing_ok=True)
    else:
        write_derived(path, value)


def this_process() -> dict[str, int | str | None]:
    """Return the entries by which a file names the process that wrote it."""
    return {"pid": os.getpid(), "born": born(os.getpid())}


def write_hooks_state(home: Path, url: str) -> None:
    """Record the URL at which this process takes hooks; the program's name belongs at its end.

    Raises:
        OSError: the home folder cannot be written.
    """
    write_derived(home / HOOKS_STATE_PATH, {"url": url, **this_process()})


def read_hooks_state(home: Path) -> str | None:
    """Return the URL for hooks, None while no process takes them."""
    state = _object(read_derived(home / HOOKS_STATE_PATH))
    url = state.get("url")
    return url if isinstance(url, str) and _is_writer_alive(state) else None


def remove_hooks_state(home: Path) -> None:
    """Remove the record of this process."""
    if _object(read_derived(home / HOOKS_STATE_PATH)).get("pid") == os.getpid():
        with contextlib.suppress(OSError):
            (home / HOOKS_STATE_PATH).unlink()


def read_watch_state(home: Path, agent_id: str) -> WatchingState | None:
    """Return the watcher's record of this agent, None where there is none or the process that watched is gone."""
    from schemas.status import WatchingState

    state = _object(_object(read_derived(home / WATCH_STATE_PATH)).get(agent_id))
    if not _is_writer_alive(state):
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


def remote_conditions(home: Path, agent_id: str) -> Iterator[Condition]:
    """Yield the conditions of an agent, and of all ("*"), from the process that sends documents to a fleet."""
    state = _object(read_derived(home / REMOTE_STATE_PATH))
    with contextlib.suppress(KeyError, TypeError, ValueError):  # of another version
        for agent, body in state["conditions"] if _is_writer_alive(state) else ():
            if agent in (agent_id, "*"):
                yield Condition.of(body)


def _is_writer_alive(state: Mapping[str, Any]) -> bool:
    """Return True if the process that wrote these entries still runs."""
    pid, when_born = state.get("pid"), state.get("born")
    return isinstance(pid, int) and is_the_same(pid, when_born if isinstance(when_born, str) else None)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
