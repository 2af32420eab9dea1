"""Who of those that should be there is not well, and since when."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from memory.status import processes as module
from memory.status.local_processes import born, is_stopped, is_the_same
from memory.status.processes import (
    not_watched,
    outdated_conditions,
    process_conditions,
    process_states,
)
from schemas.conditions import Condition, ConditionCode
from schemas.ports import OutdatedState, ProcessSign
from schemas.status import ProcessState
from tests.waiting import wait_until


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def sign(role: str = "work", *, pid: int | None = None, silent: float = 1.0, host: str = "") -> ProcessSign:
    pid = pid or os.getpid()
    return ProcessSign(
        role=role,
        host=host or socket.gethostname(),
        pid=pid,
        born=born(pid),
        started_at=900.0,
        heard_at=1000.0,
        silent_seconds=silent,
    )


def conditions(*signs: ProcessSign) -> list[str]:
    return [state.condition for state in process_states(lambda: signs, wait=lambda _: None)]


def test_a_process_that_was_heard_of_is_well():
    assert conditions(sign(), sign("watch", host="elsewhere")) == ["well", "well"]
    assert list(process_conditions(process_states(lambda: [sign()]))) == []


def test_a_stopped_process_is_told_with_how_it_goes_on(process: subprocess.Popen[bytes]):
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(process.pid))
    stopped = sign("watch", pid=process.pid, silent=module.GONE_SECONDS + 1)
    states = process_states(lambda: [stopped, sign()])
    [found] = process_conditions(states)
    assert (found.code, found.subject, found.since) == (ConditionCode.PROCESS_STOPPED, "watch", 1000.0)
    assert found.params == {"pid": process.pid}
    assert not_watched(states) == found
    assert not_watched(process_states(lambda: [stopped, sign("watch")])) is None


def test_a_process_that_is_gone_is_known_to_be_gone(process: subprocess.Popen[bytes]):
    gone = sign(pid=process.pid, silent=module.GONE_SECONDS + 1)
    process.kill()
    wait_until(lambda: not is_the_same(process.pid, gone.born))  # also while nobody has looked at how it ended
    assert conditions(gone, sign()) == ["gone", "well"]
    process.wait()
    assert conditions(gone, sign()) == ["gone", "well"]
    assert conditions(replace(gone, silent_seconds=1.0), sign()) == ["well", "well"], "it owes no sign yet"


def test_a_number_that_another_process_has_now_is_not_the_process():
    if born(os.getpid()) is None:
        pytest.skip("this system does not tell when a process was born")
    assert conditions(replace(sign(silent=60), born="1"), sign()) == ["gone", "well"]


def test_silence_is_told_of_a_process_that_seems_to_live_and_of_one_elsewhere():
    silent = [sign(silent=module.SILENT_SECONDS + 1), sign(silent=60, host="elsewhere")]
    states = process_states(lambda: [*silent, sign("watch")])
    assert [state.condition for state in states] == ["silent", "silent", "well"]
    [_, elsewhere] = process_conditions(states)
    assert (elsewhere.code, elsewhere.params["host"]) == (ConditionCode.PROCESS_SILENT, "elsewhere")


def test_workers_of_a_command_that_was_killed_are_not_missed(process: subprocess.Popen[bytes]):
    gone = sign("index", pid=process.pid, silent=60)
    process.kill()
    process.wait()
    assert conditions(gone, sign()) == ["well"]


def test_a_thread_that_does_not_get_on_is_named():
    stuck = replace(sign(), stuck=("its tail thread has ended",))
    [state] = process_states(lambda: [stuck])
    assert state.condition == "stuck"
    assert state.stuck == ("its tail thread has ended",)
    assert [one.code for one in process_conditions([state])] == [ConditionCode.PROCESS_STUCK]


def test_when_nobody_was_heard_of_the_machine_may_have_slept_and_they_are_looked_at_once_more():
    waited: list[float] = []
    looks = [[sign(silent=3600), sign("watch", silent=3599)], [sign(silent=0.1), sign("watch", silent=0.2)]]
    states = process_states(lambda: looks.pop(0), wait=waited.append)
    assert [state.condition for state in states] == ["well", "well"]
    assert len(waited) == 1


def test_all_of_them_silent_for_good_is_told():
    assert conditions(sign(silent=60), sign("watch", silent=61)) == ["silent", "silent"]


def test_one_that_just_awoke_gives_the_others_the_time_to_awake_too():
    awoke = replace(sign("watch"), awoke_seconds=1.0)
    assert conditions(awoke, sign(silent=3600)) == ["well", "well"]
    assert conditions(replace(awoke, awoke_seconds=60.0), sign(silent=3600)) == ["well", "silent"]


def state(role: str, *, changed: float | None = None, version: str | None = "1.0", invalid: bool = False):
    outdated = None
    if changed is not None:
        outdated = OutdatedState(file="/etc/recalld.toml", changed_at=changed, read_at=500.0, invalid=invalid)
    return ProcessState(
        role=role,
        host="here",
        pid=7,
        started_at=400.0,
        heard_at=1000.0,
        condition="well",
        version=version,
        outdated=outdated,
    )


def outdated(*states: ProcessState) -> list[Condition]:
    return list(outdated_conditions(states, version="1.0", now=1000.0))


def test_processes_that_are_up_to_date_are_no_condition():
    assert outdated(state("up"), state("work"), state("serve", version=None)) == []


def test_one_condition_names_the_changed_file_both_times_and_what_to_start_again():
    [found] = outdated(state("up", changed=900.0), state("work", changed=900.0), state("serve", changed=900.0))
    assert (found.code, found.subject, found.since) == (ConditionCode.SETTINGS_CHANGED, "/etc/recalld.toml", 900.0)
    assert found.params == {"changed_at": 900.0, "read_at": 500.0, "commands": "`recalld up`"}


def test_without_up_each_command_is_named():
    [found] = outdated(state("watch", changed=1.0), state("work", changed=1.0))
    assert found.params["commands"] == "`recalld watch` and `recalld work`"


def test_settings_that_are_not_valid_now_are_a_condition_of_their_own():
    assert [one.code for one in outdated(state("up", changed=1.0, invalid=True))] == [ConditionCode.SETTINGS_INVALID]


def test_another_version_is_a_condition_and_that_of_a_command_that_ends_by_itself_is_not():
    [found] = outdated(state("work", version="0.9"), state("index", version="0.8"), state("serve"))
    assert (found.code, found.subject, found.since) == (ConditionCode.VERSION_DIFFERS, "0.9", 400.0)
