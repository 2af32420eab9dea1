"""Leftovers of a test: processes, which are ended, and threads, which must end by themselves."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.daemon import children, descendants
from tests.waiting import wait_until

#: Names of threads of executors, and of the web server's own.
_OF_A_POOL = re.compile(r"_\d+$|^AnyIO worker thread$")

#: Option of prctl(2): orphaned processes further down become children of this process.
_PR_SET_CHILD_SUBREAPER = 36


def keep_orphans() -> None:
    """Let every process that a test causes stay below this one, however it was started and whatever its parent did."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def nothing_left(*, patience_seconds: float = 60.0) -> Iterator[None]:
    """End the processes that the block started, and wait `patience_seconds` for the end of its threads.

    Raises:
        AssertionError: a thread goes on.
    """
    processes, threads = set(children(os.getpid())), set(threading.enumerate())
    yield
    wait_until(lambda: _end_all_but(processes), what="the end of processes that the test left behind")

    def left() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in threads and must_end(thread)]

    with suppress(AssertionError):
        wait_until(lambda: not left(), timeout=patience_seconds)
    assert not left(), f"threads outlive the test: {left()}"


def must_end(thread: threading.Thread) -> bool:
    """Return True for a worker's thread, and for one that would keep this process from ending.

    Threads of pools may be shared with the next test. Other daemons wait for a connection or a signal, and do nothing.
    """
    return type(thread).__module__ == "dramatiq.worker" or not (thread.daemon or _OF_A_POOL.search(thread.name))


def _end_all_but(before: set[int]) -> bool:
    """Kill what is new below this process; return True if nothing is."""
    new = set(children(os.getpid())) - before
    for pid in [pid for child in new for pid in (child, *descendants(child))]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in new:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return not new
