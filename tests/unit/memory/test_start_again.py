"""Who runs with settings that were changed since, or with another recalld."""

from __future__ import annotations

import time

from memory.start_again import start_again_troubles
from schemas.status import OutdatedState, ProcessState, TroubleState


def state(role: str, *, changed: float | None = None, version: str | None = "1.0", invalid: bool = False):
    now = time.time()
    outdated = None
    if changed is not None:
        outdated = OutdatedState(file="/etc/recalld.toml", changed_at=changed, read_at=now - 600, invalid=invalid)
    return ProcessState(
        role=role,
        host="here",
        pid=7,
        started_at=now - 600,
        heard_at=now,
        condition="well",
        version=version,
        outdated=outdated,
    )


def troubles(*states: ProcessState) -> list[TroubleState]:
    return start_again_troubles(states, version="1.0", now=time.time())


def test_processes_that_are_up_to_date_are_no_trouble():
    assert troubles(state("up"), state("work"), state("serve", version=None)) == []


def test_one_sentence_names_the_file_both_times_and_what_to_start_again():
    changed = time.time() - 60
    [trouble] = troubles(state("up", changed=changed), state("work", changed=changed), state("serve", changed=changed))
    clock = time.strftime("%H:%M:%S", time.localtime(changed))
    assert (trouble.part, trouble.since) == ("settings", changed)
    assert trouble.message.startswith("/etc/recalld.toml was changed at ")
    assert clock in trouble.message or "-" in trouble.message
    assert "`recalld up` runs with what was read at" in trouble.message
    assert trouble.message.endswith(": start it again")


def test_without_up_each_command_is_named():
    [trouble] = troubles(state("watch", changed=1.0), state("work", changed=1.0))
    assert "`recalld watch` and `recalld work` run with" in trouble.message
    assert trouble.message.endswith(": start them again")


def test_what_is_not_valid_now_is_said():
    [trouble] = troubles(state("up", changed=1.0, invalid=True))
    assert "to what is not valid, at 1970-01-01" in trouble.message
    assert "`recalld config show` says what to mend" in trouble.message


def test_another_version_is_told_and_that_of_a_command_that_ends_by_itself_is_not():
    [trouble] = troubles(state("work", version="0.9"), state("index", version="0.8"), state("serve"))
    assert trouble.message == "`recalld work` runs recalld 0.9, and this is 1.0: start it again"
