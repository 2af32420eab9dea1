"""What dead processes left is found and removed; what is used is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from recalld.doctor.finding import Level
from recalld.doctor.home import leftovers
from schemas.settings import Settings


@pytest.fixture
def gone() -> int:
    """The number of a process that ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def write(path: Path, body: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
    return path


def healed(settings: Settings) -> list[str]:
    return [found.heal() for found in leftovers(settings) if found.heal is not None]


def test_files_of_processes_that_are_gone_are_removed_and_those_of_the_living_stay(settings: Settings, gone: int):
    assert [found.level for found in leftovers(settings)] == [Level.OK]
    run = settings.home / "run"
    stale = [write(run / "service.json", {"pid": gone}), write(run / "watch.json", {"main": {"pid": gone}})]
    used = write(run / "hooks.json", {"url": "http://127.0.0.1:1/", "pid": os.getpid()})
    found = list(leftovers(settings))
    assert [one.heal() for one in found if one.heal is not None] == [f"removed {path}" for path in stale]
    assert (used.exists(), [path.exists() for path in stale]) == (True, [False, False])
    write(stale[0], {"pid": os.getpid()})
    assert found[0].heal is not None
    assert found[0].heal().startswith("left"), "it is used again meanwhile"
    assert stale[0].exists()


def test_a_socket_without_a_listener_and_old_drafts_are_removed_and_the_others_stay(settings: Settings):
    path = settings.home / "broker" / "valkey.sock"
    path.parent.mkdir(parents=True)
    old = write(settings.home / "run" / ".watch.json.77", {})
    fresh = write(settings.home / "spool" / ".1.json", {})
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.fspath(path))
        server.listen()
        assert healed(settings) == [f"removed {old}"]
    assert healed(settings) == [f"removed {path}"]
    assert (path.exists(), old.exists(), fresh.exists()) == (False, False, True)


def test_events_that_were_set_aside_are_told_and_kept(settings: Settings):
    event = write(settings.home / "spool" / "damaged" / "1.json", {})
    [found] = leftovers(settings)
    assert (found.level, found.heal) == (Level.WARNING, None)
    assert event.exists()
