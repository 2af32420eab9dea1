"""The end of a process, by real signals to real programs; and the words that systemd hears."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from recalld.up.lifecycle import notify, watchdog
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


def program(code: str, *, before: str = "") -> subprocess.Popen[str]:
    """Run it until it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", before + PRELUDE + code],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and the rest of the output."""
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(
            """
stop = begin()
with last_act(lambda: print("first", flush=True)), last_act(lambda: print("latest", flush=True)):
    stop.wait()
    print("stopping", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # in C, for half an hour
""",
            "latest\nfirst\n",
            id="while the main thread hears nothing",
        ),
        pytest.param(
            """
stop, ended = begin(), threading.Event()
with last_act(lambda: (ended.set(), time.sleep(0.3))):
    stop.wait()
    print("stopping", flush=True)
    ended.wait()
""",
            "",
            id="while the main thread goes on, as a last act ended what it waited for",
        ),
    ],
)
def test_a_second_signal_is_immediate_after_the_last_acts(code: str, said: str) -> None:
    process = program(code)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    assert outcome(process) == (128 + signal.SIGINT, said)


def test_an_end_that_takes_too_long_is_cut_short_and_says_so() -> None:
    process = program(
        "begin(overdue_seconds=0.2).wait()\n"
        "with last_act(lambda: print('last act', flush=True)): threading.Event().wait()"
    )
    process.send_signal(signal.SIGTERM)
    assert outcome(process) == (1, "recalld: did not end within 0 s and leaves as it is\nlast act\n")


def test_a_command_that_nohup_started_stays_when_the_terminal_goes() -> None:
    process = program("begin().wait(); print('in order')", before="import signal; signal.signal(1, signal.SIG_IGN)\n")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "SigPnd:\t0000000000000000" in Path(f"/proc/{process.pid}/status").read_text())
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert outcome(process) == (0, "in order\n")


def test_systemd_gets_signs_of_life_as_long_as_all_goes_well(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"recalld-test-{os.getpid()}"
    for variable, value in (("NOTIFY_SOCKET", f"@{name}"), ("WATCHDOG_USEC", "40000"), ("WATCHDOG_PID", os.getpid())):
        monkeypatch.setenv(variable, str(value))
    looks: list[int] = []
    problems: list[str] = []

    def look() -> list[str]:
        looks.append(1)
        return problems

    def looked(times: int) -> bool:
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + times)
        return True

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")  # in the abstract namespace
        systemd.settimeout(0.0)
        with watchdog(look):
            assert looked(2)
            assert heard(systemd) == {b"WATCHDOG=1"}
            problems.append("its sweeper thread has ended")
            assert looked(1)
            heard(systemd)
            assert looked(2)
            assert heard(systemd) == set()


def heard(systemd: socket.socket) -> set[bytes]:
    """What came since this was asked last."""
    words: set[bytes] = set()
    with suppress(BlockingIOError):
        while True:
            words.add(systemd.recv(100))
    return words


@pytest.mark.parametrize("asked", [{}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
@pytest.mark.parametrize("address", ["", "nonsense", "/nobody/listens/here"])
def test_without_systemd_a_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], address: str
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**asked, "NOTIFY_SOCKET": address}.items():
        monkeypatch.setenv(name, value)

    def never() -> list[str]:
        raise AssertionError("looked")

    notify("READY=1")
    with watchdog(never):
        pass
