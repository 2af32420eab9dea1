"""Processes that look for patterns (`memory.redaction.pattern_program`), so that one that never ends can be ended."""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import threading
import time
from array import array
from contextlib import suppress
from pathlib import Path

from memory.redaction.pattern_budgets import PatternsUnanswered, PatternTooCostly
from memory.redaction.pattern_program import FOUND, OUT_OF_MEMORY, REQUEST, SPENT

#: Texts of one process that are looked through at a time; others wait for their turn.
MOST_PROCESSES = 4

#: Bytes of memory for one text: so many, and so many for each of its bytes.
MEMORY_BYTES = 1024**3
MEMORY_TIMES = 32

#: Seconds after which somebody who waits is able to hear that its own thread has to end.
_LISTEN_SECONDS = 0.5

_READ_BYTES = 1024 * 1024

_PROGRAM = Path(__file__).with_name("pattern_program.py")


class PatternProcesses:
    """At most `most` processes, begun when they are needed and kept for the next text. Any thread may ask."""

    def __init__(self, most: int = MOST_PROCESSES) -> None:
        self._turns = threading.Semaphore(most)
        self._idle: list[_PatternProcess] = []
        self._busy: set[_PatternProcess] = set()
        self._closed = threading.Event()

    def find(
        self, patterns: bytes, text: bytes, *, count: int, seconds: float, patience: float
    ) -> tuple[list[array[int]], float]:
        """Return what is secret by each of `count` patterns (JSON), and the seconds of processor time that it took.

        Of each pattern: start, end, start, end ... in characters. `seconds` of processor time may be taken, and
        `patience` seconds on the clock.

        Raises:
            PatternTooCostly: it takes more than that.
            PatternsUnanswered: no process can be had, or it got no time.
        """
        end = time.monotonic() + patience
        self._take_turn(end)
        try:
            with suppress(_Ended):  # something else killed it, perhaps long ago
                return self._ask(patterns, text, count, seconds, end)
            self._end_idle()  # and perhaps those beside it
            try:
                return self._ask(patterns, text, count, seconds, end)
            except _Ended as error:
                raise PatternTooCostly(error.done + 1, f"its process ended with code {error.code}") from None
        finally:
            self._turns.release()

    def close(self) -> None:
        """End all processes. Texts that are looked through get no answer, and neither do later ones."""
        self._closed.set()
        for process in tuple(self._busy):
            process.kill()
        self._end_idle()

    def _end_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().end()

    def _take_turn(self, end: float) -> None:
        while not self._turns.acquire(timeout=max(0.0, min(_LISTEN_SECONDS, end - time.monotonic()))):
            if time.monotonic() >= end:
                raise PatternsUnanswered(
                    "other texts that redaction.patterns take long for are looked through at this moment"
                )

    def _ask(
        self, patterns: bytes, text: bytes, count: int, seconds: float, end: float
    ) -> tuple[list[array[int]], float]:
        if self._closed.is_set():
            raise PatternsUnanswered("the process that looks for redaction.patterns is ending")
        try:
            process = self._idle.pop()
        except IndexError:
            process = _PatternProcess()
        self._busy.add(process)
        if self._closed.is_set():  # while it was begun: who closed did not see it
            process.kill()
        try:
            answer = process.ask(patterns, text, count, seconds, end)
        except BaseException:  # also what ends this thread: half an answer is nobody's
            process.end()
            raise
        finally:
            self._busy.discard(process)
        self._idle.append(process)
        return answer


class _Ended(Exception):
    """The process ended with `code` (negative: a signal) after `done` patterns."""

    def __init__(self, code: int, done: int) -> None:
        super().__init__(code)
        self.code = code
        self.done = done


class _PatternProcess:
    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", str(_PROGRAM)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell, no outside text
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal sends is meant for this process, which ends the other one
            )
        except OSError as error:
            raise PatternsUnanswered(
                f"no process can be begun to look for redaction.patterns ({error.strerror}): nothing is read without"
            ) from None
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        for descriptor in (self._input, self._output):
            os.set_blocking(descriptor, False)

    def ask(
        self, patterns: bytes, text: bytes, count: int, seconds: float, end: float
    ) -> tuple[list[array[int]], float]:
        memory = MEMORY_BYTES + MEMORY_TIMES * len(text)
        parts: list[array[int]] = []
        try:
            self._send(REQUEST.pack(seconds, memory, len(patterns), len(text)) + patterns, end)
            self._send(text, end)
            for _ in range(count):
                (size,) = FOUND.unpack(self._received(FOUND.size, end))
                found = array("q")
                found.frombytes(self._received(size * found.itemsize, end))
                parts.append(found)
            (spent,) = SPENT.unpack(self._received(SPENT.size, end))
        except (BrokenPipeError, EOFError):
            code = self._process.wait()
            if code == -signal.SIGPROF:
                raise PatternTooCostly(len(parts) + 1, f"more than {seconds:.2g} s of processor time") from None
            if code == OUT_OF_MEMORY:
                raise PatternTooCostly(len(parts) + 1, f"more than {memory / 1e9:.1f} GB of memory") from None
            raise _Ended(code, len(parts)) from None
        return parts, spent

    def kill(self) -> None:
        """Let whoever waits for it see its end. It holds nothing that could be lost."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, and keep nothing of it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _send(self, data: bytes, end: float) -> None:
        left = memoryview(data)
        while left:
            _wait(self._input, select.POLLOUT, end)
            left = left[os.write(self._input, left) :]

    def _received(self, size: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            _wait(self._output, select.POLLIN, end)
            part = os.read(self._output, min(_READ_BYTES, size - len(data)))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def _wait(descriptor: int, event: int, end: float) -> None:
    """Wait until a pipe is ready, or was closed on the other side."""
    poll = select.poll()
    poll.register(descriptor, event)
    while not poll.poll(1000 * max(0.0, min(_LISTEN_SECONDS, end - time.monotonic()))):
        if time.monotonic() >= end:
            raise PatternsUnanswered("looking for redaction.patterns in this text did not end in time")


#: Those of this process.
PROCESSES = PatternProcesses()
atexit.register(PROCESSES.close)
