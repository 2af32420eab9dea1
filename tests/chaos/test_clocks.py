"""Clocks of all processes, Valkey included, that are set back or ahead: nothing is stuck, cancelled or paid twice."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.batch_server import BatchServer, JobScript
from tests.daemon import Daemon
from tests.waiting import wait_until
from workers.queue.private_server import server_binary

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="the clock is preloaded on Linux")]

NOTES = 230
DAY, YEAR = 86_400, 365 * 86_400


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with the wrong clock."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: nothing sets the clock of all processes")
    library = tmp_path_factory.mktemp("clock") / "wrong_clock.so"
    source = Path(__file__).with_name("wrong_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


class Clock:
    """Clock of the processes with this environment."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self.set(0)
        self.environment = {"LD_PRELOAD": str(library), "WRONG_CLOCK": str(file)}

    def set(self, seconds: int) -> None:
        """Let the clock be wrong by so many seconds."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))


@pytest.fixture
def clock(tmp_path: Path, preloaded: Path) -> Iterator[Clock]:
    """The clock of processes whose broker has it, too: recalld starts its own one without any environment."""
    clock, folder = Clock(tmp_path / "clock", preloaded), Path(tempfile.mkdtemp())
    socket = folder / "valkey.sock"
    command = [str(server_binary()), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, env=clock.environment, stdout=subprocess.DEVNULL) as valkey:
        try:
            wait_until(socket.exists)
            clock.environment["REDIS_URL"] = f"unix://{socket}"
            yield clock
        finally:
            valkey.terminate()
    shutil.rmtree(folder)


def daemon_of(home: Path, workspace: Path, server: BatchServer, clock: Clock, *, batch: bool) -> Daemon:
    config = f'[remote]\nbase_url = "{server.url}"\napi_key = "a-key"\n'
    config += "[remote.batch]\nenabled = true\npoll_interval_ms = 200\n" if batch else ""
    return Daemon(home, workspace, provider="openai", config=config, environment=clock.environment)


def write_notes(workspace: Path, bird: str = "heron") -> Counter[str]:
    """Put a folder of notes in place at once, and return their texts."""
    texts = Counter(f"The {bird} number {number} stands in the reeds." for number in range(NOTES))
    folder = workspace.parent / bird
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.md").write_text(text, "utf-8")
    folder.rename(workspace / "memory" / bird)
    return texts


def vectors(daemon: Daemon) -> int:
    return int(daemon.status()["index"]["vectorsReady"])


def looks(server: BatchServer) -> int:
    return sum(job.looks for job in server.jobs.values())


def wait_for_looks(server: BatchServer, count: int = 3) -> None:
    before = looks(server)
    wait_until(lambda: looks(server) >= before + count, what="looks at the job")


def test_the_clock_of_every_process_is_set(clock: Clock) -> None:
    clock.set(-YEAR)
    asked = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=clock.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    dated = subprocess.run(["date", "+%s"], env=clock.environment, capture_output=True, text=True, check=True)
    real = float(subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True).stdout)
    for said in (asked.stdout, dated.stdout):
        assert abs(float(said) + YEAR - real) < 600


@pytest.mark.parametrize("restart", [False, True])
def test_a_batch_job_is_looked_at_after_the_clock_was_set_back_a_day(
    home: Path, workspace: Path, server: BatchServer, clock: Clock, *, restart: bool
) -> None:
    texts = write_notes(workspace)
    server.open.clear()
    with daemon_of(home, workspace, server, clock, batch=True) as daemon:
        wait_for_looks(server)
        if restart:
            daemon.stop()
        clock.set(-DAY)
        if restart:
            daemon.start()
        wait_for_looks(server)
        server.open.set()
        wait_until(lambda: vectors(daemon) == NOTES, what="vectors of the job")
        assert server.paid == texts
        assert not server.paid_inline


def test_a_clock_ahead_for_a_moment_cancels_no_batch_job_and_stops_no_later_one(
    home: Path, workspace: Path, server: BatchServer, clock: Clock
) -> None:
    texts = write_notes(workspace)
    server.open.clear()
    server.script(JobScript(ends="failed", done=20), JobScript())
    with daemon_of(home, workspace, server, clock, batch=True) as daemon:
        wait_for_looks(server)
        clock.set(YEAR)
        wait_for_looks(server)
        assert not server.submitted[0].cancelled
        server.open.set()
        # It fails while the clock is ahead.
        wait_until(lambda: vectors(daemon) == NOTES, what="vectors, the normal way")
        daemon.stop()  # the comparison at the start finds all notes at once
        clock.set(0)
        texts += write_notes(workspace, "stork")
        daemon.start()
        wait_until(lambda: vectors(daemon) == 2 * NOTES, what="vectors of another job")
        assert len(server.submitted) > 1
        assert not any(job.cancelled for job in server.submitted)
        assert server.paid == texts


@pytest.mark.parametrize("failure", [429, 401])  # a cool-down of ten minutes, and a refused key
def test_a_provider_that_stopped_is_asked_again_after_the_clock_was_set_back(
    home: Path, workspace: Path, server: BatchServer, clock: Clock, failure: int
) -> None:
    (workspace / "MEMORY.md").write_text("The heron stands in the reeds.")
    server.fail("POST", "/embeddings", failure, times=1000, retry_after="600")
    with daemon_of(home, workspace, server, clock, batch=False) as daemon:
        wait_until(lambda: daemon.status()["endpoint"]["condition"] != "ok", what="a failure")
        clock.set(-DAY)
        server.mend()
        wait_until(lambda: vectors(daemon) == 1, what="another question")
        wait_until(lambda: daemon.status()["ok"], what="status is well again")
