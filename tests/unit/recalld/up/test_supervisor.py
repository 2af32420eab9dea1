"""Processes that are kept alive, with a shell in place of recalld; and the lock of the daemon that does it."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recalld.up import supervisor
from recalld.up.lock import daemon_lock, daemon_pid
from recalld.up.supervisor import Child, own_command, stop_all
from schemas.errors import UserError
from tests.waiting import Clock, wait_until

MakeChild = Callable[..., Child]

#: Lives until its standard input ends, as every supervised process does, and says that it is ready.
LIVES = "echo ready; exec cat >/dev/null"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def child_of(tmp_path: Path, clock: Clock) -> Iterator[MakeChild]:
    """Makes children that run some shell code; whatever is left of them is killed."""
    made: list[Child] = []

    def make(code: str, *, name: str = "work") -> Child:
        made.append(Child(name, ["/bin/sh", "-c", code], log_folder=tmp_path / "log", clock=clock))
        return made[-1]

    yield make
    for child in made:
        child.wait(0.0)


def end_of(child: Child) -> str:
    """Look until the child has ended."""
    said: list[str | None] = []
    wait_until(lambda: said.append(child.look()) or said[-1])
    return str(said[-1])


def start(*children: Child) -> None:
    """Start children and wait until all are ready."""
    wait_until(lambda: False not in [child.look() is None and child.ready for child in children])


def pause_of(child: Child, clock: Clock) -> float:
    """Let the child end, find the moment at which it is started again, and return the pause."""
    end_of(child)
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
    assert [pause_of(child, clock) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    clock.now += supervisor.HEALTHY_AFTER_SECONDS - 1
    assert pause_of(child, clock) == 10.0, "it did not live long enough"
    clock.now += supervisor.HEALTHY_AFTER_SECONDS + 1
    assert [pause_of(child, clock) for _ in range(2)] == [0.2, 0.4]
    assert child.failures == 11


def test_how_a_process_ended_is_said_with_the_place_of_its_log(child_of: MakeChild) -> None:
    failing = child_of("exit 3", name="watch")
    killed = child_of(LIVES, name="serve")
    start(killed)
    assert killed.pid is not None
    assert os.getsid(killed.pid) == killed.pid, "Ctrl-C must reach the supervisor only"
    os.kill(killed.pid, signal.SIGKILL)
    for child, end in ((failing, "watch ended with code 3;"), (killed, "serve was killed by signal SIGKILL;")):
        told = end_of(child)
        assert told.startswith(end)
        assert str(child.log) in told
    assert (failing.failures, killed.failures) == (1, 0)


def test_a_log_is_bounded_while_its_process_runs(child_of: MakeChild, tmp_path: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    flood = f"head -c {supervisor.LOG_BYTES + 1} /dev/zero | tr '\\0' x >&2"
    child = child_of(f"{flood}; echo ready; read line <{gate}; echo after >&2; {LIVES}")
    start(child)
    child.look()
    assert (child.log.stat().st_size, child.log.with_suffix(".log.1").stat().st_size) == (0, supervisor.LOG_BYTES + 1)
    gate.write_text("go\n")
    wait_until(lambda: child.log.read_bytes() == b"after\n")
    assert child.pid is not None


def test_a_log_without_room_for_its_copy_is_emptied_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "work.log"
    log.write_bytes(b"x" * (supervisor.LOG_BYTES + 1))
    (tmp_path / "work.log.1").mkdir()
    supervisor.bound_log(log)
    assert log.read_bytes() == b""


def test_a_process_is_ready_when_it_says_so_and_again_only_after_it_said_so_again(
    child_of: MakeChild, clock: Clock, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    child = child_of(f"echo warming; echo already; cat {shlex.quote(str(gate))}; {LIVES}")
    for _ in range(2):
        child.look()
        # Opening waits for the other end: by now it said its other lines.
        with gate.open("w"):
            child.look()
            assert not child.ready
        start(child)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        end_of(child)
        clock.now += supervisor.FIRST_PAUSE_SECONDS


def test_kinds_are_stopped_in_their_order_and_all_workers_at_a_time(child_of: MakeChild, tmp_path: Path) -> None:
    happened, gate = tmp_path / "happened", tmp_path / "gate"
    os.mkfifo(gate)
    here = shlex.quote(str(gate))
    # Each worker ends only when the other was asked, too: one writes and one reads.
    acts = {"watch": "sleep 0.1", "work-1": f"echo now > {here}", "work-2": f"cat {here} > /dev/null", "serve": ":"}
    children = [
        child_of(
            f"trap '{act}; echo {name} >> {happened}; exit 0' TERM\necho ready; while :; do sleep 0.02; done", name=name
        )
        for name, act in acts.items()
    ]
    start(*children)
    stop_all(children)
    said = happened.read_text().split()
    assert (said[0], sorted(said[1:3]), said[3]) == ("watch", ["work-1", "work-2"], "serve")
    assert [child.pid for child in children] == [None] * 4


def test_a_process_that_does_not_end_is_killed_and_one_that_is_over_is_left(
    child_of: MakeChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.2)
    stubborn, never, over = child_of("trap '' TERM; echo ready; cat >/dev/null"), child_of(LIVES), child_of("exit 0")
    end_of(over)
    start(stubborn)
    pid = stubborn.pid
    stop_all([stubborn, never, over])
    assert not Path(f"/proc/{pid}").exists()
    assert (stubborn.pid, never.pid, over.pid) == (None, None, None)


def test_a_process_that_dies_again_and_again_is_missed_until_it_is_back(
    child_of: MakeChild, clock: Clock, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    child = child_of(f"test -e {shlex.quote(str(mended))} || {{ echo it fails >&2; exit 3; }}; {LIVES}", name="watch")
    assert child.missed() is None
    for _ in range(3):
        end_of(child)
        clock.now += supervisor.LONGEST_PAUSE_SECONDS
    assert "code 3: it fails" in (child.missed() or "")
    mended.touch()
    start(child)
    assert child.missed() is None
    slow = child_of("cat >/dev/null", name="serve")
    slow.look()
    clock.now += supervisor.MISSED_AFTER_SECONDS + 1
    assert str(slow.log) in (slow.missed() or "")


def test_a_child_runs_no_recalld_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recalld.py").write_text("raise SystemExit('a file of the current folder was run')\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ".")
    child = Child("serve", own_command("serve", "--help"), log_folder=tmp_path / "log")
    assert "code 0" in end_of(child)
    assert child.log.read_text("utf-8") == ""


def test_a_second_daemon_is_refused_with_the_first_one_s_process_id(home: Path) -> None:
    assert daemon_pid(home) is None
    assert not home.exists(), "asking makes nothing"
    with daemon_lock(home):
        with pytest.raises(UserError, match=rf"already runs for .*\(process {os.getpid()}\); stop it first"):
            daemon_lock(home).__enter__()
        assert daemon_pid(home) == os.getpid(), "the refused one took nothing away"
    assert daemon_pid(home) is None
    (home / "run" / "up.lock").write_text("99999999999999")
    with daemon_lock(home):
        assert daemon_pid(home) == os.getpid(), "a longer number does not shine through"


def test_a_home_that_cannot_be_written_is_said_in_one_sentence(home: Path) -> None:
    home.write_text("a file, not a folder")
    with pytest.raises(UserError, match="choose another folder with --home"):
        daemon_lock(home).__enter__()
