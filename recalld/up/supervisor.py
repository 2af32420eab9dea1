"""Supervisor of the processes of one machine: it starts them, restarts them when they die, stops them in order."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from recalld.settings.load import environment_for_child
from recalld.up.lifecycle import READY
from recalld.up.own_processes import own_command, own_environment

#: Seconds a process gets to end by itself before it is killed; longer than `recalld.up.lifecycle.OVERDUE_SECONDS`.
STOP_SECONDS = 30.0

#: Pause before a process that died is started again: the first, and the longest it grows to.
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0

#: A process that lived this long is healthy; the next pause is the first one again.
HEALTHY_AFTER_SECONDS = 30.0

#: Seconds without a ready process after which it is missed; a process that died once is back long before.
MISSED_AFTER_SECONDS = 12.0

#: A log larger than this is put aside when its process is started.
LOG_BYTES = 10_000_000


#: glibc gives every thread an arena of its own, each with what its busiest moment took; two are enough for us.
_MEMORY = {"MALLOC_ARENA_MAX": "2"}


class Child:
    """One supervised process: `recalld <arguments> --supervised`, its log, and its backoff."""

    def __init__(self, name: str, arguments: Sequence[str], *, log_folder: Path) -> None:
        self.name = name
        self.ready = threading.Event()
        self.log = log_folder / f"{name}.log"
        self.arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        self._until = 0.0
        self._missed_since: float | None = None
        self._why: str | None = None

    @property
    def kind(self) -> str:
        """Return the name without the number: several processes may be of one kind."""
        return self.name.partition("-")[0]

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process in a session of its own, so that Ctrl-C reaches only the supervisor."""
        self.ready.clear()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                own_command("recalld", *self.arguments, "--supervised"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=own_environment(environment_for_child(_MEMORY)),
            )
        self._started_at = time.monotonic()
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def look(self) -> str | None:
        """Start the process again if it died. Return its end in words, None if it lives."""
        now = time.monotonic()
        if self._process is None:
            if now < self._not_before:
                return None
            self.start()
            return None
        code = self._process.poll()
        if code is None:
            return None
        self._forget()
        if now - self._started_at > HEALTHY_AFTER_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        self._not_before = now + self._pause_seconds
        self._pause_seconds = min(self._pause_seconds * 2, LONGEST_PAUSE_SECONDS)
        why = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._why = why
        return f"{self.name} {why}; it is started again (log: {self.log})"

    def missed(self) -> str | None:
        """Return the reason why this process's work is not done for a while now, in words; None while it is done."""
        now = time.monotonic()
        if self.ready.is_set() and self._process is not None:
            self._missed_since = self._why = None
            return None
        if self._missed_since is None:
            self._missed_since = now
        if now - self._missed_since < MISSED_AFTER_SECONDS:
            return None
        what = f"{self._why}, again and again" if self._why is not None else "was started and does not get ready"
        said = self.last_words()
        return f"{self.name} {what}{f': {said}' if said else ''} (log: {self.log})"

    def ended_with(self) -> int | None:
        """Return the exit code if the process ended since the last `look`, else None."""
        return self._process.poll() if self._process else None

    def last_words(self) -> str:
        """Return the last sentence in the log that is no log entry: the error message of a process that ended."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        said = [line for line in lines if line.strip() and not line.startswith("{")]
        return said[-1] if said else ""

    def stop(self) -> None:
        """Ask the process to end and wait; kill it when it does not."""
        self.ask_to_stop()
        self.wait()

    def ask_to_stop(self) -> None:
        """Ask the process to end; it has `STOP_SECONDS` from now on."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
        self._until = time.monotonic() + STOP_SECONDS

    def wait(self) -> None:
        """Wait for the end of a process that was asked to end; kill it after `STOP_SECONDS`."""
        process = self._process
        if process is None:
            return
        try:
            process.wait(timeout=max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End the process at once, with everything in its session."""
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - we asked for a pipe
        with process.stdout as lines:
            for line in lines:
                if line.strip().decode("ascii", "replace") == READY and process is self._process:
                    self.ready.set()


class Supervisor:
    """Supervisor of some children."""

    def __init__(self, children: Sequence[Child], *, say: Callable[[str], None]) -> None:
        self.children = children
        self._say = say

    def start(self) -> None:
        """Start all children."""
        for child in self.children:
            child.start()

    def look(self) -> None:
        """Start dead children again."""
        for child in self.children:
            said = child.look()
            if said:
                self._say(said)

    def missed(self) -> dict[str, str | None]:
        """Return name -> reason why a child's work is not done, None while it is done."""
        return {child.name: child.missed() for child in self.children}

    def all_ready(self) -> bool:
        """Return True if every child is ready."""
        return all(child.ready.is_set() for child in self.children)

    def stop(self) -> None:
        """Stop producers, then all workers, then the query service: each kind when the one before has ended."""
        for _, kind in groupby(self.children, key=lambda child: child.kind):
            same = list(kind)
            for child in same:
                child.ask_to_stop()
            for child in same:
                child.wait()

    def kill(self) -> None:
        """End all children at once."""
        for child in self.children:
            child.kill()
