"""What machines do to a running recalld, other than killing it: nothing is lost, and it comes back by itself."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.siege import IMPATIENCE, Siege
from tests.waiting import wait_until

#: The processes' leases are over after this many seconds of sleep.
PAST_EVERY_LEASE = 2 * max(
    IMPATIENCE["workers.shared_claims:LEASE_SECONDS"], IMPATIENCE["workers.broker:HEARTBEAT_TIMEOUT_MS"] / 1000
)


@pytest.fixture
def siege(tmp_path: Path) -> Iterator[Siege]:
    with Siege(tmp_path, (), seed=time.time_ns() % 1_000_000, notes=12, talks=2) as running:
        running.change()
        running.settle()
        yield running


@pytest.mark.long
def test_a_broker_that_is_gone_and_whose_file_is_lost_gets_everything_again(siege: Siege) -> None:
    siege.server.open.clear()  # jobs are under way
    siege.change()
    wait_until(lambda: siege.server.in_flight, what="a request")
    pid = siege.daemon.broker_pid()
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(siege.home / "broker" / "appendonlydir")
    siege.change()
    siege.server.open.set()
    wait_until(lambda: siege.processes("broker") not in ([], [pid]), timeout=60, what="another broker")
    siege.end()
    assert siege.payments.double == []


@pytest.mark.long
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


@pytest.mark.long
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
