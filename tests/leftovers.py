"""What a test leaves behind: processes, which are ended, and threads, which must end by themselves."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.daemon import children, descendants
from tests.waiting import wait_until

#: Option of prctl(2): orphaned processes further down become children of this process.
_PR_SET_CHILD_SUBREAPER = 36

#: Seconds that threads get to end: a worker that lost its broker sleeps for five at a time.
PATIENCE_SECONDS = 60.0


def keep_orphans() -> None:
    """Let every process that a test causes stay below this one, however it was started and whatever its parent did."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def nothing_left() -> Iterator[None]:
    """End the processes that the block started, and wait for the end of its threads.

    Raises:
        AssertionError: a thread goes on.
    """
    processes, threads = set(children(os.getpid())), set(threading.enumerate())
    yield
    wait_until(lambda: _end_all_but(processes), what="the end of processes that the test left behind")

    def left() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in threads and not _is_kept(thread)]

    with suppress(AssertionError):
        wait_until(lambda: not left(), timeout=PATIENCE_SECONDS)
    assert left() == [], "threads outlive the test"


def _is_kept(thread: threading.Thread) -> bool:
    """Return True for a thread of a pool that tests share, and for dramatiq's time limits, which end with a process."""
    return thread.name.startswith(("request_", "asyncio_", "AnyIO")) or "Timeout" in type(thread).__name__


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
