"""Supervisor of the processes of one machine: it starts them, restarts them when they die, stops them in order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from recalld.settings.load import environment_for_child
from recalld.up.sd_notify import READY
from schemas.errors import backoff

#: Seconds a process gets to end by itself before it is killed; longer than `recalld.up.lifecycle.OVERDUE_SECONDS`.
STOP_SECONDS = 30.0

#: Seconds that an orderly end of `up` may take: three kinds of processes one after the other, and the broker.
UP_OVERDUE_SECONDS = 3 * STOP_SECONDS + 15.0

#: Pause before a process that died is started again: the first, and the longest it grows to.
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0

#: A process that lived this long is healthy; the next pause is the first one again.
HEALTHY_AFTER_SECONDS = 30.0

#: Seconds without a ready process after which it counts as missing. A process that died once is back long before.
MISSED_AFTER_SECONDS = 12.0

#: Bytes from which on a log is moved to `.log.1`.
LOG_BYTES = 10_000_000

#: The entry point, which finds our packages from its own place: in an environment and in a checkout.
_ENTRY_POINT = Path(__file__).resolve().parents[1] / "__main__.py"


def own_command(*arguments: str) -> list[str]:
    """Return the command that runs recalld with this Python in any folder and with any PYTHONPATH.

    `python -m recalld` would run a project's `recalld/`. `-P` keeps the folder of the entry point off the path of
    modules (https://docs.python.org/3/using/cmdline.html#cmdoption-P).
    """
    return [sys.executable, "-P", str(_ENTRY_POINT), *arguments]


def lasting_command() -> list[str]:
    """Return the command for settings of other programs: the `recalld` that was called, a path that upgrades keep."""
    for script in (Path(sys.argv[0]), Path(sys.executable).with_name("recalld")):
        if script.name == "recalld" and script.is_file():
            return [str(script.absolute())]
    return own_command()


class Child:
    """One supervised process, its log, and its backoff. Its state is that of the last `look`, which also starts it."""

    def __init__(
        self, name: str, command: Sequence[str], *, log_folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.command = command
        self.log = log_folder / f"{name}.log"
        self.ready = False
        #: Number of ends with an error. A killed process did nothing wrong.
        self.failures = 0
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = self._due_at = 0.0
        #: Ends in a row of a process that was not healthy.
        self._ends = 0
        self._away_since = clock()
        self._end = "was started and does not get ready"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def look(self) -> str | None:
        """Start the process if it is due. Return a sentence about its end, None without one."""
        now, process = self._clock(), self._process
        if process is None:
            if now >= self._due_at:
                self._start(now)
            return None
        bound_log(self.log)
        if process.poll() is None:
            if process.stdout is not None and READY.encode() in (process.stdout.read() or b"").splitlines():
                self.ready = True
            return None
        self._forget()
        if self.ready:
            self.ready, self._away_since = False, now
        self._ends = self._ends + 1 if now - self._started_at <= HEALTHY_AFTER_SECONDS else 1
        self._due_at = now + backoff(self._ends, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        code = process.returncode
        self.failures += code > 0
        self._end = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{self.name} {self._end}; it is started again (log: {self.log})"

    def missed(self) -> str | None:
        """Return the reason why the process is missing, in words; None while it is ready, and shortly after."""
        if self.ready or self._clock() - self._away_since < MISSED_AFTER_SECONDS:
            return None
        words = self.last_words()
        return f"{self.name} {self._end}{f': {words}' if words else ''} (log: {self.log})"

    def last_words(self) -> str:
        """Return the last sentence in the log: the error message of a process that ended."""
        return last_sentence(self.log)

    def terminate(self) -> None:
        """Ask the process to end."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, until: float) -> None:
        """Wait until monotonic time `until` for the end of a process that was asked to end, then kill it."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=max(0.0, until - time.monotonic()))
            self.kill()
            self._forget()

    def kill(self) -> None:
        """End the process at once, with everything in its session."""
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _start(self, now: float) -> None:
        """Start the process in a session of its own, so that Ctrl-C reaches only the supervisor."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        bound_log(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                self.command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=environment_for_child(),
            )
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)
        self._started_at = now

    def _forget(self) -> None:
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            if pipe is not None:
                pipe.close()


def last_sentence(log: Path, *, beginning: int = 0) -> str:
    """Return the last line of a log that is no log entry, from byte `beginning` on; empty without one."""
    try:
        lines = log.read_bytes()[beginning:].decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip() and not line.startswith("{")), "")


def bound_log(log: Path) -> None:
    """Copy a log that grew past `LOG_BYTES` over the copy before it, and empty it.

    Its writers append, so they go on at the beginning; lines of the moment of the copy may be missing. Where the disk
    takes no copy, the log is emptied all the same.
    """
    with suppress(OSError):
        if log.stat().st_size <= LOG_BYTES:
            return
        with suppress(OSError):
            shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)


def stop_all(children: Sequence[Child]) -> None:
    """Stop producers, then all workers, then the query service: each kind when the one before has ended."""
    for _, kind in groupby(children, key=lambda child: child.name.partition("-")[0]):
        of_kind = list(kind)
        for child in of_kind:
            child.terminate()
        until = time.monotonic() + STOP_SECONDS
        for child in of_kind:
            child.wait(until)
