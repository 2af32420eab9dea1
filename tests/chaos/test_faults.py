"""Faults of machines under a running recalld, apart from kills: nothing is lost, and it comes back by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.disks import fill, read_only, small_disk
from tests.chaos.siege import IMPATIENCE, Siege
from tests.daemon import REPOSITORY, Daemon, clean_environment, recalld
from tests.waiting import wait_until

pytestmark = pytest.mark.long

#: The processes' leases are over after this many seconds of sleep.
PAST_EVERY_LEASE = 2 * IMPATIENCE["workers.queue.broker:HEARTBEAT_TIMEOUT_MS"] / 1000


@pytest.fixture
def siege(tmp_path: Path) -> Iterator[Siege]:
    with Siege(tmp_path, (), seed=time.time_ns() % 1_000_000, notes=12, talks=2) as running:
        running.change()
        running.settle()
        yield running


def test_a_broker_that_is_gone_and_whose_file_is_lost_gets_everything_again(siege: Siege) -> None:
    siege.server.open.clear()  # jobs are under way
    siege.change()
    wait_until(lambda: siege.server.in_flight, what="a request")
    pid = siege.lose_the_brokers_file()
    siege.change()
    siege.server.open.set()
    wait_until(lambda: siege.processes("broker") not in ([], [pid]), what="another broker")
    siege.end()
    assert siege.payments.double == []


def test_a_clock_that_jumps_back_an_hour_strands_nothing(siege: Siege) -> None:
    # Held by a worker that dies: whoever waits for its last sign of life to be old would wait for an hour.
    siege.server.open.clear()
    siege.change()
    wait_until(lambda: siege.server.in_flight, what="a request")
    for pid in siege.processes("work"):
        os.kill(pid, signal.SIGKILL)
    siege.plan.set_clock(-3600.0)
    siege.server.open.set()
    siege.change()
    siege.end()
    assert siege.payments.double == []


def test_a_laptop_that_sleeps_past_every_lease_goes_on_when_it_wakes(siege: Siege) -> None:
    siege.server.open.clear()
    siege.change()
    wait_until(lambda: siege.server.in_flight, what="a request")
    asleep = siege.everybody()
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    try:
        siege.change()
        siege.server.open.set()
        waking = time.monotonic() + PAST_EVERY_LEASE
        wait_until(lambda: time.monotonic() > waking, timeout=2 * PAST_EVERY_LEASE)
    finally:
        for pid in reversed(asleep):
            os.kill(pid, signal.SIGCONT)
    siege.end()
    assert siege.payments.double == []
    assert siege.everybody() == asleep, "nobody had to be started again"


def test_a_home_on_a_full_disk_says_so_and_goes_on_by_itself_when_there_is_room(tmp_path: Path) -> None:
    seed = time.time_ns() % 1_000_000
    with small_disk(tmp_path / "home", megabytes=48), Siege(tmp_path, (), seed=seed, notes=12, talks=2) as siege:
        siege.change()
        siege.settle()
        ballast = fill(siege.home)
        for _ in range(12):
            siege.change()
        wait_until(lambda: siege.status().get("ok") is False, timeout=120, what="status says that something is wrong")
        siege.check()
        ballast.unlink()
        siege.end()
        # Long enough for a round of housekeeping, which is not to end with the disk that it found full.
        wait_until(lambda: siege.status().get("ok") is True, timeout=120, what="status is well again")
        assert siege.payments.double == []


def test_a_home_that_cannot_be_written_answers_and_refuses_to_index(tmp_path: Path, workspace: Path) -> None:
    (workspace / "memory" / "a.md").write_text("The heron stands in the reeds.\n", "utf-8")
    home = tmp_path / "home"
    environment = {"RECALLD_PROVIDER": "stub"}
    with ExitStack() as disks:
        if os.geteuid() == 0:
            disks.enter_context(small_disk(home, megabytes=16))
        done = recalld("index", "--workspace", str(workspace), home=home, environment=environment)
        assert done.returncode == 0, done.stderr
        disks.enter_context(read_only(home))
        assert "memory/a.md" in recalld("search", "heron", home=home, environment=environment).stdout
        (workspace / "memory" / "b.md").write_text("A stork came.\n", "utf-8")
        for command in ("index", "up"):
            refused = recalld(command, "--workspace", str(workspace), home=home, environment=environment)
            assert refused.returncode == 1
            assert "RECALLD_HOME" in refused.stderr
            assert refused.stderr.count("\n") == 1, refused.stderr


def test_of_two_daemons_that_start_at_once_in_one_home_only_one_works(tmp_path: Path, workspace: Path) -> None:
    home = tmp_path / "home"
    daemon = Daemon(home, workspace)
    command = [sys.executable, "-m", "recalld", *daemon.options(), "up", "--workspace", str(workspace), "--port", "0"]
    two = [
        subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        refused = wait_until(lambda: [one for one in two if one.poll() is not None], what="one gives way")[0]
        assert refused.returncode == 1
        assert "already runs" in refused.communicate()[1]
        [working] = [one for one in two if one is not refused]
        daemon.write("memory/a.md", "The heron stands in the reeds.\n")
        wait_until(lambda: daemon.found("heron", "memory/a.md"))
        assert working.poll() is None
    finally:
        for one in two:
            one.send_signal(signal.SIGINT)
        for one in two:
            one.communicate(timeout=60)
