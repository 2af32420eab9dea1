"""The condition of a process follows from its last heartbeat and, on this machine, from the process itself."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Any

import pytest

from memory.status.run_files import born
from schemas.status import OutdatedState, ProcessState
from workers.health.heartbeat import GONE_SECONDS, SILENT_SECONDS, Beat, process_states


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


ELSEWHERE = "elsewhere"

#: A number beyond the largest that a process can have.
NO_PROCESS = 2**22 + 1


@pytest.mark.parametrize(
    ("found", "condition"),
    [
        pytest.param(beat(), "well", id="it was heard of"),
        pytest.param(beat(host=ELSEWHERE), "well", id="it was heard of on another machine"),
        pytest.param(beat(silent=SILENT_SECONDS + 1), "silent", id="silent and seems to live"),
        pytest.param(beat(silent=60, host=ELSEWHERE), "silent", id="silent on another machine"),
        pytest.param(beat(pid=NO_PROCESS, silent=GONE_SECONDS + 1), "gone", id="it is gone"),
        pytest.param(beat(pid=NO_PROCESS), "well", id="it is gone and owes no heartbeat yet"),
        pytest.param(replace(beat(silent=60), born="1"), "gone", id="another process has its number"),
        pytest.param(beat(stuck=("its tail thread has ended",)), "stuck", id="a thread does not get on"),
    ],
)
def test_the_condition_of_a_process_follows_from_its_heartbeat(found: Beat, condition: str):
    states = process_states([found, beat("watch")])
    assert [state.condition for state in states] == [condition, "well"]
    assert states[0].stuck == found.state.stuck


def test_a_command_that_was_killed_is_not_missed():
    assert [state.role for state in process_states([beat("index", pid=NO_PROCESS, silent=60), beat()])] == ["work"]


def test_settings_of_another_machine_are_named_with_it():
    changed = OutdatedState("/etc/recalld.toml", 5000.0, 4000.0)
    [state] = process_states([beat(host=ELSEWHERE, outdated=changed)])
    assert state.outdated is not None
    assert state.outdated.file.split() == ["/etc/recalld.toml", "on", ELSEWHERE]
