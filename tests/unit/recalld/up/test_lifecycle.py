"""How a process ends: every program here is a real one that gets real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.daemon import REPOSITORY
from tests.waiting import wait_until

#: Says "begun" when signals are heard.
PRELUDE = """
import hashlib, sys, threading, time
from recalld.up.lifecycle import last_act, stop_event
def begin(**options):
    stop = stop_event(**{"supervised": False, **options})
    print("begun", flush=True)
    return stop
"""


def program(code: str, *, before: str = "", stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Run it until it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", before + PRELUDE + code],
        cwd=REPOSITORY,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and the rest of what it said."""
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


def test_a_second_signal_is_immediate_after_the_last_acts_even_while_the_main_thread_hears_nothing() -> None:
    process = program(
        """
stop = begin()
with last_act(lambda: print("first", flush=True)), last_act(lambda: print("latest", flush=True)):
    stop.wait()
    print("stopping", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # in C, for half an hour
"""
    )
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    assert outcome(process) == (128 + signal.SIGINT, "latest\nfirst\n")


def test_whoever_waited_for_what_a_last_act_ended_does_not_decide_how_the_process_ends() -> None:
    process = program(
        """
stop, ended = begin(), threading.Event()
with last_act(lambda: (ended.set(), time.sleep(0.3))):
    stop.wait()
    print("stopping", flush=True)
    ended.wait()
"""
    )
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    assert outcome(process) == (128 + signal.SIGTERM, "")


def test_an_end_that_takes_too_long_is_cut_short_and_says_so() -> None:
    process = program(
        "begin(overdue_seconds=0.2).wait()\n"
        "with last_act(lambda: print('last act', flush=True)): threading.Event().wait()"
    )
    process.send_signal(signal.SIGTERM)
    code, said = outcome(process)
    assert code == 1
    assert said == "recalld: did not end within 0 s and leaves as it is\nlast act\n"


def test_who_was_started_by_nohup_stays_when_the_terminal_goes() -> None:
    process = program("begin().wait(); print('in order')", before="import signal; signal.signal(1, signal.SIG_IGN)\n")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "SigPnd:\t0000000000000000" in Path(f"/proc/{process.pid}/status").read_text())
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert outcome(process) == (0, "in order\n")
