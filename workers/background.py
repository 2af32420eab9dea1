"""Pace of jobs on old documents and their vectors: jobs on live documents go first."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Self

from memory.http.private_folders import temporary_folder
from schemas.errors import UserError
from workers.queue.job_queue import BrokerJobQueue

#: A job looks after so many seconds of work if jobs on live documents run. Then it rests, up to so many times as long
#: as it worked, and so many seconds at a time: it never stands still.
LOOK_SECONDS, REST_PER_WORK, LONGEST_REST_SECONDS = 0.02, 4.0, 1.0

#: Seconds for which the jobs of a process are gentle after one of them met a job on live documents.
GENTLE_SECONDS = 2.0

#: Seconds after which a gentle job that computes lets another thread run. With Python's 5 ms a job on live documents,
#: which returns from each statement into a queue behind it, spends most of its time there.
SWITCH_SECONDS = 0.0005

#: Seconds between two looks of a job that rests or waits for its turn.
_PAUSE_SECONDS = 0.01


class Courtesy:
    """State that a process's jobs on old documents share: whether they are gentle, and their turns to work.

    Of all processes of the user, half as many gentle jobs work at a time as the machine has processors.
    """

    def __init__(
        self, queue: BrokerJobQueue, stopping: threading.Event, *, turns: int = max(1, (os.cpu_count() or 1) // 2)
    ) -> None:
        self._queue = queue
        self._stopping = stopping
        self._turns = range(turns)
        self._gentle_until = 0.0
        self._usual_switch = sys.getswitchinterval()

    @property
    def gentle(self) -> bool:
        """Return True if a job on live documents ran a moment ago."""
        return time.monotonic() < self._gentle_until

    def let_pass(self, seconds: float) -> float:
        """Wait while jobs on live documents run in any process, `seconds` at most. Return the seconds left."""
        while self._queue.live_jobs():
            self._gentle_until = time.monotonic() + GENTLE_SECONDS
            if seconds <= 0.0 or self._stopping.wait(_PAUSE_SECONDS):
                break
            seconds -= _PAUSE_SECONDS
        sys.setswitchinterval(SWITCH_SECONDS if self.gentle else self._usual_switch)
        return seconds

    def turn(self) -> IO[bytes] | None:
        """Wait for the turn of a gentle job, which ends when the file is closed. None if it does not come soon."""
        until = time.monotonic() + LONGEST_REST_SECONDS
        with suppress(OSError, UserError):
            folder = temporary_folder("turns")
            while time.monotonic() < until and not self._stopping.is_set():
                for number in self._turns:
                    file = (folder / str(number)).open("wb")
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        file.close()
                    else:
                        return file
                self._stopping.wait(_PAUSE_SECONDS)
        return None


class Background:
    """Pace of one job on old documents or vectors. Use it as a context manager."""

    def __init__(self, courtesy: Courtesy) -> None:
        self._courtesy = courtesy
        self._turn: IO[bytes] | None = None
        self._worked_from = time.monotonic()
        self._may_rest = 0.0  # seconds

    @property
    def gentle(self) -> bool:
        """Return True if the job has to work in small steps, and to call `rest` before each."""
        return self._courtesy.gentle

    def rest(self) -> bool:
        """Rest while jobs on live documents run; return True if the next step must be a small one."""
        worked = time.monotonic() - self._worked_from
        if worked >= LOOK_SECONDS:
            self._end_turn()
            may_rest = min(self._may_rest + REST_PER_WORK * worked, LONGEST_REST_SECONDS)
            self._may_rest = self._courtesy.let_pass(may_rest)
            if self.gentle:
                self._turn = self._courtesy.turn()
            self._worked_from = time.monotonic()
        return self.gentle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_turn()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None
