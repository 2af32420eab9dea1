"""Tests end by themselves, and take with them what they started."""

from __future__ import annotations

import subprocess
import threading

import pytest

from tests.daemon import arguments_of
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


def test_a_thread_that_goes_on_fails_its_test() -> None:
    go_on = threading.Event()
    try:
        with pytest.raises(AssertionError, match="left-behind"), nothing_left(patience_seconds=0.1):
            threading.Thread(target=go_on.wait, name="left-behind").start()
    finally:
        go_on.set()
