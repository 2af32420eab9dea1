"""The condition of a process follows from its last heartbeat and, on this machine, from the process itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from memory.status.run_files import born, is_stopped, is_the_same
from schemas.status import OutdatedState, ProcessState
from tests.waiting import wait_until
from workers.health.heartbeat import GONE_SECONDS, SILENT_SECONDS, Beat, process_states


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def beat(role: str = "work", *, pid: int | None = None, silent: float = 1.0, host: str = "", **more: Any) -> Beat:
    pid = pid or os.getpid()
    state = ProcessState(
        role=role,
        host=host or socket.gethostname(),
        pid=pid,
        started_at=900.0,
        heard_at=1000.0,
        condition="well",
        **more,
    )
    return Beat(name=f"{role}:{pid}", born=born(pid), silent_seconds=silent, state=state)


def conditions(*beats: Beat) -> list[str]:
    return [state.condition for state in process_states(list(beats))]


def test_a_process_that_was_heard_of_is_well():
    assert conditions(beat(), beat("watch", host="elsewhere")) == ["well", "well"]


def test_a_stopped_process_is_named_with_how_it_goes_on(process: subprocess.Popen[bytes]):
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(process.pid))
    [stopped, _] = process_states([beat("watch", pid=process.pid, silent=GONE_SECONDS + 1), beat()])
    assert (stopped.condition, stopped.code) == ("stopped", "process_stopped")
    assert f"`kill -CONT {process.pid}`" in str(stopped.problem)


def test_a_process_that_is_gone_is_known_to_be_gone(process: subprocess.Popen[bytes]):
    gone = beat(pid=process.pid, silent=GONE_SECONDS + 1)
    process.kill()
    wait_until(lambda: not is_the_same(process.pid, gone.born))  # also before its parent looked how it ended
    assert conditions(gone, beat()) == ["gone", "well"]
    assert conditions(replace(gone, silent_seconds=1.0), beat()) == ["well", "well"], "it owes no heartbeat yet"
    assert conditions(replace(gone, state=gone.state.model_copy(update={"role": "index"})), beat()) == ["well"], (
        "a command that was killed is not missed"
    )


def test_a_number_that_another_process_has_now_is_not_the_process():
    if born(os.getpid()) is None:
        pytest.skip("this system does not tell when a process was born")
    assert conditions(replace(beat(silent=60), born="1"), beat()) == ["gone", "well"]


def test_silence_is_reported_of_a_process_that_seems_to_live_and_of_another_machine_s():
    assert conditions(beat(silent=SILENT_SECONDS + 1), beat(silent=60, host="elsewhere"), beat("watch")) == [
        "silent",
        "silent",
        "well",
    ]


def test_a_thread_that_does_not_get_on_is_named():
    [state] = process_states([beat(stuck=("its tail thread has ended",))])
    assert (state.condition, state.stuck) == ("stuck", ("its tail thread has ended",))


def test_settings_of_another_machine_are_named_with_it():
    changed = OutdatedState("/etc/recalld.toml", 5000.0, 4000.0)
    [state] = process_states([beat(host="elsewhere", outdated=changed)])
    assert state.outdated is not None
    assert state.outdated.file == "/etc/recalld.toml on elsewhere"
