"""Conditions of processes: each names what to do, and what is up to date is none."""

from __future__ import annotations

from memory.status.processes import known_processes, outdated_conditions, process_conditions
from schemas.conditions import Condition, ConditionCode
from schemas.status import OutdatedState, ProcessState
from tests.quiet_health import QuietHealth


class Looks(QuietHealth):
    """A queue whose processes are other ones at each look."""

    def __init__(self, *looks: tuple[ProcessState, ...]) -> None:
        self.looks = list(looks)

    def processes(self) -> tuple[ProcessState, ...]:
        return self.looks.pop(0)


def unwell(role: str, condition: str) -> ProcessState:
    code = ConditionCode(f"process_{condition}")
    return state(role).model_copy(update={"condition": condition, "code": code, "stuck": ("its tail thread",)})


def test_a_process_that_is_not_well_is_a_condition_with_its_host_and_what_hangs():
    [found] = process_conditions([state("work"), unwell("watch", "stuck")])
    assert (found.code, found.subject, found.since) == (ConditionCode.PROCESS_STUCK, "watch", 1000.0)
    assert found.params == {"pid": 7, "host": "here", "threads": "its tail thread"}


def test_when_all_are_silent_they_are_looked_at_once_more():
    waited: list[float] = []
    asleep = (unwell("work", "silent"), unwell("watch", "silent"))
    well = (state("work"), state("watch"))
    assert known_processes(Looks(asleep, well), wait=waited.append) == well
    assert known_processes(Looks(asleep, asleep), wait=waited.append) == asleep
    assert len(waited) == 2
    assert known_processes(Looks(asleep), wait=None) == ()
    assert known_processes(Looks((*asleep, well[0])), wait=None) == (*asleep, well[0])


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


def test_one_condition_names_the_changed_file_both_times_and_what_to_start_again():
    [found] = outdated(state("up", changed=900.0), state("work", changed=900.0), state("serve", changed=900.0))
    assert (found.code, found.subject, found.since) == (ConditionCode.SETTINGS_CHANGED, "/etc/recalld.toml", 900.0)
    assert found.params == {"changed_at": 900.0, "read_at": 500.0, "commands": "`recalld up`"}


def test_another_version_is_a_condition_and_that_of_a_passing_command_is_not():
    [found] = outdated(state("work", version="0.9"), state("index", version="0.8"), state("serve"))
    assert (found.code, found.subject, found.since) == (ConditionCode.VERSION_DIFFERS, "0.9", 400.0)
