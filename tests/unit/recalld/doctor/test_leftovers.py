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


def test_a_clean_home_has_no_leftovers(settings: Settings):
    assert [found.level for found in leftovers(settings)] == [Level.OK]


def test_files_of_processes_that_are_gone_are_removed_and_those_of_the_living_stay(settings: Settings, gone: int):
    run = settings.home / "run"
    stale = [write(run / "service.json", {"pid": gone}), write(run / "watch.json", {"main": {"pid": gone}})]
    used = write(run / "hooks.json", {"url": "http://127.0.0.1:1/", "pid": os.getpid()})
    assert healed(settings) == [f"removed {path}" for path in stale]
    assert used.exists()
    assert not any(path.exists() for path in stale)
    assert healed(settings) == []


def test_a_file_that_somebody_uses_again_meanwhile_stays(settings: Settings, gone: int):
    path = write(settings.home / "run" / "service.json", {"pid": gone})
    [found] = leftovers(settings)
    write(path, {"pid": os.getpid()})
    assert found.heal is not None
    assert found.heal().startswith("left")
    assert path.exists()


def test_a_socket_that_nobody_listens_on_is_removed(settings: Settings):
    path = settings.home / "broker" / "valkey.sock"
    path.parent.mkdir(parents=True)
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.fspath(path))
        server.listen()
        assert healed(settings) == []
    assert healed(settings) == [f"removed {path}"]
    assert not path.exists()


def test_drafts_of_writers_that_died_are_removed_and_fresh_ones_stay(settings: Settings):
    old = write(settings.home / "run" / ".watch.json.77", {})
    fresh = write(settings.home / "spool" / ".1.json", {})
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    assert healed(settings) == [f"removed {old}"]
    assert fresh.exists()


def test_events_that_were_set_aside_are_told_and_kept(settings: Settings):
    event = write(settings.home / "spool" / "damaged" / "1.json", {})
    [found] = leftovers(settings)
    assert found.level is Level.WARNING
    assert found.heal is None
    assert event.exists()
