"""Keeping processes alive, with a shell in place of recalld: its argument is what it runs."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from recalld.up import supervisor
from recalld.up.supervisor import Child, Supervisor
from tests.waiting import wait_until

MakeChild = Callable[..., Child]

#: Lives until its standard input ends, as every supervised process does, and says that it is ready.
LIVES = "echo ready; exec cat >/dev/null"


@pytest.fixture
def child_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeChild]:
    """Makes children that run some shell code; whatever is left of them is stopped."""
    program = tmp_path / "program"
    # It is called as `program -P -m recalld CODE --supervised`.
    program.write_text('#!/bin/sh\ncode="$4"\nshift 4\neval "$code"\n')
    program.chmod(0o755)
    monkeypatch.setattr("recalld.up.own_processes.sys", SimpleNamespace(executable=str(program)))
    made: list[Child] = []

    def make(code: str, *, name: str = "work") -> Child:
        made.append(Child(name, [code], log_folder=tmp_path / "log"))
        return made[-1]

    yield make
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.5)
    for child in made:
        child.stop()


class Clock:
    """The supervisor's monotonic clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(supervisor, "time", made)
    return made


def ended(child: Child) -> bool:
    return child.ended_with() is not None


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pause_of(child: Child, clock: Clock) -> float:
    """Let the child's end be noticed, find the moment at which it is started again, and return the pause."""
    wait_until(lambda: ended(child))
    assert child.look()
    assert child.pid is None
    began = clock.now
    for step in range(1, 2000):
        child.look()
        if child.pid is not None:
            return round(clock.now - began, 1)
        clock.now = began + step * 0.1
    raise AssertionError("it is not started again")


def test_a_process_that_keeps_dying_is_started_again_after_ever_longer_pauses(
    child_of: MakeChild, clock: Clock
) -> None:
    child = child_of("exit 3")
    child.start()
    assert [pause_of(child, clock) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_process_that_was_healthy_is_started_again_soon(child_of: MakeChild, clock: Clock) -> None:
    child = child_of("exit 3")
    child.start()
    for _ in range(4):
        pause_of(child, clock)
    clock.now += supervisor.HEALTHY_AFTER_SECONDS - 1
    assert pause_of(child, clock) == 3.2, "it did not live long enough"
    clock.now += supervisor.HEALTHY_AFTER_SECONDS + 1
    assert [pause_of(child, clock) for _ in range(2)] == [0.2, 0.4]


def test_a_process_that_lives_is_left_alone(child_of: MakeChild) -> None:
    child = child_of(LIVES)
    child.start()
    pid = child.pid
    wait_until(child.ready.is_set)
    assert child.look() is None
    assert child.ended_with() is None
    assert child.pid == pid


def test_how_a_process_ended_is_said_with_the_place_of_its_log(child_of: MakeChild) -> None:
    failing, killed = child_of("exit 3", name="watch"), child_of(LIVES, name="serve")
    for child in (failing, killed):
        child.start()
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: ended(failing) and ended(killed))
    assert failing.ended_with() == 3
    said: list[str] = []
    Supervisor([failing, killed], say=said.append).look()
    assert said == [
        f"watch ended with code 3; it is started again (log: {failing.log})",
        f"serve was killed by signal SIGKILL; it is started again (log: {killed.log})",
    ]
    assert failing.ended_with() is None, "it was looked at since"


def test_a_process_is_ready_when_it_says_so_and_again_only_after_it_said_so_again(
    child_of: MakeChild, clock: Clock, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = child_of(f"echo warming; echo already; cat {shlex.quote(str(gate))}; {LIVES}")
    children = Supervisor([child], say=lambda _: None)
    children.start()
    # Opening waits for the other end: by now it said its other lines.
    with gate.open("w"):
        assert not child.ready.is_set()
    wait_until(children.all_ready)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: ended(child))
    children.look()
    clock.now += supervisor.FIRST_PAUSE_SECONDS
    children.look()
    assert child.pid is not None
    assert not children.all_ready()
    with gate.open("w"):
        pass
    wait_until(children.all_ready)


def test_all_are_ready_when_the_last_one_is(child_of: MakeChild, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first, last = child_of(LIVES, name="watch"), child_of(f"cat {shlex.quote(str(gate))}; {LIVES}", name="serve")
    children = Supervisor([first, last], say=lambda _: None)
    children.start()
    wait_until(first.ready.is_set)
    assert not children.all_ready()
    with gate.open("w"):
        pass
    wait_until(children.all_ready)


def test_a_large_log_is_put_aside_when_its_process_starts(
    child_of: MakeChild, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES", 20)
    child = child_of("echo sixteen letters >&2; exit 1")
    child.start()
    pause_of(child, clock)
    pause_of(child, clock)
    aside = child.log.with_suffix(".log.1")
    assert aside.read_text() == "sixteen letters\n" * 2, "a small one is written on, a large one is put aside"
    wait_until(lambda: ended(child))
    assert child.log.read_text() == "sixteen letters\n"


def test_the_last_line_of_the_log_is_what_a_process_said_before_it_ended(child_of: MakeChild) -> None:
    child = child_of("echo first >&2; echo the port is taken >&2; echo >&2; echo not here; exit 2")
    assert child.last_words() == ""
    child.start()
    wait_until(lambda: ended(child))
    assert child.last_words() == "the port is taken"


def test_a_process_that_said_nothing_has_no_last_words(child_of: MakeChild) -> None:
    child = child_of("exit 1")
    child.start()
    wait_until(lambda: ended(child))
    assert child.last_words() == ""


def test_a_process_has_a_session_of_its_own_and_few_memory_arenas(child_of: MakeChild) -> None:
    child = child_of(f'echo "$1 $MALLOC_ARENA_MAX" >&2; {LIVES}')
    child.start()
    wait_until(child.ready.is_set)
    assert child.pid is not None
    assert os.getsid(child.pid) == child.pid, "Ctrl-C must reach the supervisor only"
    assert child.last_words() == "--supervised 2"


def test_processes_are_stopped_one_after_the_other_in_their_order(child_of: MakeChild, tmp_path: Path) -> None:
    happened = tmp_path / "happened"
    children = Supervisor(
        [
            child_of(
                f"trap 'echo {name} asked >> {happened}; sleep 0.1; echo {name} over >> {happened}; exit 0' TERM\n"
                "echo ready; while :; do sleep 0.02; done",
                name=name,
            )
            for name in ("watch", "work-1", "serve")
        ],
        say=lambda _: None,
    )
    children.start()
    wait_until(children.all_ready)
    children.stop()
    assert happened.read_text().splitlines() == [
        f"{name} {what}" for name in ("watch", "work-1", "serve") for what in ("asked", "over")
    ]
    assert [child.pid for child in children.children] == [None] * 3


def test_all_workers_are_stopped_at_a_time(child_of: MakeChild, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    here = shlex.quote(str(gate))
    # Each ends only when the other was asked, too: one writes and one reads.
    meets = {"work-1": f"echo now > {here}", "work-2": f"cat {here} > /dev/null"}
    children = Supervisor(
        [child_of(f"trap '{act}; exit 0' TERM\necho ready; while :; do sleep 0.02; done", name=name)
         for name, act in meets.items()],
        say=lambda _: None,
    )  # fmt: skip
    children.start()
    wait_until(children.all_ready)
    processes = [child._process for child in children.children]
    children.stop()
    assert [process.returncode for process in processes if process is not None] == [0, 0], "nobody had to be killed"


def test_a_process_that_does_not_end_is_killed(child_of: MakeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.2)
    child = child_of("trap '' TERM; echo ready; cat >/dev/null")
    child.start()
    wait_until(child.ready.is_set)
    pid = child.pid
    assert pid is not None
    child.stop()
    assert not exists(pid)
    assert child.pid is None


def test_stopping_what_never_ran_or_is_over_is_nothing(child_of: MakeChild) -> None:
    never, over = child_of(LIVES), child_of("exit 0")
    over.start()
    wait_until(lambda: ended(over))
    Supervisor([never, over], say=lambda _: None).stop()
    assert never.pid is None
    assert over.pid is None


def test_a_process_learns_from_its_input_that_its_supervisor_let_go(child_of: MakeChild) -> None:
    child = child_of(LIVES)
    child.start()
    wait_until(child.ready.is_set)
    process = child._process
    assert process is not None
    assert process.stdin is not None
    assert process.poll() is None
    process.stdin.close()
    wait_until(lambda: ended(child))
    assert child.ended_with() == 0


def test_a_process_that_dies_again_and_again_is_missed_after_a_while_and_not_when_it_is_back(
    child_of: MakeChild, clock: Clock, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    child = child_of(f"test -e {shlex.quote(str(mended))} || {{ echo it fails >&2; exit 3; }}; {LIVES}", name="watch")
    child.start()
    assert child.missed() is None
    for _ in range(3):
        wait_until(lambda: ended(child))
        child.look()
        clock.now += supervisor.LONGEST_PAUSE_SECONDS
        child.look()
    assert child.missed() == f"watch ended with code 3, again and again: it fails (log: {child.log})"
    wait_until(lambda: ended(child))
    mended.touch()
    child.look()
    clock.now += supervisor.LONGEST_PAUSE_SECONDS
    child.look()
    wait_until(child.ready.is_set)
    assert child.missed() is None


def test_a_process_that_does_not_get_ready_is_missed(child_of: MakeChild, clock: Clock) -> None:
    child = child_of("cat >/dev/null", name="serve")
    children = Supervisor([child], say=lambda _: None)
    children.start()
    assert children.missed() == {"serve": None}
    clock.now += supervisor.MISSED_AFTER_SECONDS + 1
    assert children.missed() == {"serve": f"serve was started and does not get ready (log: {child.log})"}
