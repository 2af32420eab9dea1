"""Tests end by themselves, and take with them what they started."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.daemon import REPOSITORY, arguments_of
from tests.leftovers import nothing_left
from tests.waiting import wait_until


def test_a_process_on_its_own_ends_with_the_test_that_caused_it() -> None:
    with nothing_left():
        # Its parent is gone, its session and its environment are others.
        orphan = subprocess.run(
            ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"],
            capture_output=True,
            env={"PATH": "/bin:/usr/bin"},
        )
        wait_until(lambda: arguments_of(int(orphan.stdout))[0] == "sleep")
    assert arguments_of(int(orphan.stdout)) == [""]


def test_a_process_from_before_stays() -> None:
    with subprocess.Popen(["sleep", "600"]) as before:
        with nothing_left():
            pass
        assert before.poll() is None
        before.kill()


def test_a_thread_that_goes_on_fails_its_test() -> None:
    go_on = threading.Event()
    try:
        with pytest.raises(AssertionError, match="left-behind"), nothing_left(patience_seconds=0.1):
            threading.Thread(target=go_on.wait, name="left-behind").start()
    finally:
        go_on.set()


def test_every_test_has_a_time_limit(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout") is not None


def test_processes_hear_signals_that_these_tests_were_started_to_ignore() -> None:
    ignoring = "import signal; [signal.signal(number, signal.SIG_IGN) for number in (1, 2, 3)]; "
    chosen = ["-q", "-k", "second_signal", "tests/unit/recalld/up/test_lifecycle.py"]
    run = f"import pytest; raise SystemExit(pytest.main({chosen!r}))"
    done = subprocess.run([sys.executable, "-c", ignoring + run], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
