"""A worker at its memory limit: another one goes on with its documents."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon import Daemon
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets one process limit another one's memory"),
]


@pytest.fixture
def daemon(home: Path, workspace: Path) -> Iterator[Daemon]:
    with Daemon(home, workspace) as running:
        yield running


#: Bytes that a limited worker may still map: it can start threads, and not read a large note.
HEADROOM_BYTES = 24_000_000

#: Lines of the large note, 17 MB: to read it takes more than the headroom and what malloc has mapped and not used,
#: 64 MB for the arena of a thread.
LINES = 600_000


def workers(daemon: Daemon) -> set[int]:
    """Return the pids of the workers that say that they are there."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes().split(b"\0")
            if b"work" in command and str(daemon.home).encode() in command:
                found.add(int(path.parent.name))
    return found


def leave_no_memory(pid: int) -> None:
    """Let a process map no more memory than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.prlimit(pid, resource.RLIMIT_AS)[1]))


def test_documents_of_a_worker_without_memory_are_indexed_by_the_next_one(daemon: Daemon):
    daemon.write("memory/small.md", "The first word is firstword.\n")
    wait_until(lambda: daemon.found("firstword", "memory/small.md"))
    before = workers(daemon)
    assert before
    for pid in before:
        leave_no_memory(pid)
    text = "\n".join(f"Line {line} tells of bird{line}." for line in range(LINES))
    daemon.write("memory/large.md", f"{text}\n\nThe last word is lastword.\n")
    wait_until(lambda: not before & workers(daemon), what="they end")
    wait_until(lambda: daemon.found("lastword", "memory/large.md"), what="others go on")
    assert daemon.status()["deadLetters"] == []
