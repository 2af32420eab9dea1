"""What the doctor says of a machine."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from memory.index.generation_writer import require_room
from memory.store.errors import NoRoom
from recalld.doctor import machine
from recalld.doctor.finding import Level
from schemas.settings import Settings


def proc(folder: Path, *, watches: int = 1000, instances: int = 128, taken: int = 0) -> Path:
    """A /proc with these limits, and another program that holds so many watches."""
    limits = folder / "sys" / "fs" / "inotify"
    limits.mkdir(parents=True)
    (limits / "max_user_watches").write_text(f"{watches}\n")
    (limits / "max_user_instances").write_text(f"{instances}\n")
    for part in ("fd", "fdinfo"):
        (folder / "77" / part).mkdir(parents=True)
    (folder / "77" / "cmdline").write_bytes(b"editor\0")
    (folder / "77" / "fd" / "5").symlink_to("anon_inode:inotify")
    (folder / "77" / "fdinfo" / "5").write_text("pos: 0\n" + "inotify wd:1 ino:1\n" * taken)
    return folder


def test_few_open_files_are_a_warning_with_the_number_that_is_better(settings: Settings):
    assert machine.open_files(settings, limit=4096).level is Level.OK
    found = machine.open_files(settings, limit=100)
    assert found.level is Level.WARNING
    assert "ulimit -n 264" in (found.action or "")


def test_watches_that_are_enough_are_fine(settings: Settings, tmp_path: Path):
    found = machine.watches(settings, proc=proc(tmp_path / "proc", taken=3))
    assert found.level is Level.OK
    assert "3 of 1000 inotify watches taken by others" in found.message


def test_folders_beyond_the_limit_of_watches_are_told_before_they_are_polled(settings: Settings, tmp_path: Path):
    folders = settings.agents[0].workspace / "memory"
    for number in range(8):
        (folders / f"folder-{number}").mkdir()
    assert machine.watches(settings, proc=proc(tmp_path / "roomy", watches=60, taken=40)).level is Level.OK
    found = machine.watches(settings, proc=proc(tmp_path / "narrow", watches=45, taken=40))
    assert found.level is Level.WARNING
    assert "sysctl fs.inotify.max_user_watches=128" in (found.action or "")


def test_instances_that_others_have_taken_are_told(settings: Settings, tmp_path: Path):
    found = machine.watches(settings, proc=proc(tmp_path / "proc", instances=1))
    assert "sysctl fs.inotify.max_user_instances=128" in (found.action or "")


def test_a_system_without_inotify_has_no_limit(settings: Settings, tmp_path: Path):
    assert machine.watches(settings, proc=tmp_path).level is Level.OK


def test_both_kinds_of_search_are_looked_for(settings: Settings):
    assert [found.level for found in machine.sqlite_parts(settings)] == [Level.OK, Level.OK]


def test_a_missing_sqlite_vec_is_no_fault(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    [_, found] = machine.sqlite_parts(settings)
    assert found.level is Level.OK


def test_an_extension_that_cannot_be_loaded_is_told(settings: Settings, tmp_path: Path):
    vector = settings.store.vector.model_copy(update={"extension_path": tmp_path / "none.so"})
    without = settings.model_copy(update={"store": settings.store.model_copy(update={"vector": vector})})
    [_, found] = machine.sqlite_parts(without)
    assert found.level is Level.WARNING


@pytest.mark.parametrize(
    ("free", "level"), [(10_000_000, Level.PROBLEM), (200_000_000, Level.WARNING), (10**10, Level.OK)]
)
def test_the_less_space_is_free_the_worse(settings: Settings, free: int, level: Level):
    assert machine.disk(settings, free=free).level is level


def test_a_disk_that_is_nearly_full_is_not_said_to_take_nothing(settings: Settings):
    told = machine.disk(settings, free=11_000_000)
    assert told.message.startswith("11.0 MB are free for ")
    assert told.message.endswith(": what does not fit into that is not indexed")
    assert told.action == "keep 500.0 MB free"
    folder = settings.indexes_path / "main"
    folder.mkdir(parents=True)
    (folder / "x.sqlite").write_bytes(b"x" * 1000)
    assert machine.disk(settings, free=0).message.endswith("and no new index can be built beside the present one")
    with pytest.raises(NoRoom):
        require_room(folder / "x.sqlite", free=lambda _: machine._NO_SPACE)  # what it says holds at its bound


def test_space_for_the_largest_index_to_be_built_anew_is_asked_for(settings: Settings):
    index = settings.indexes_path / "main" / "big.sqlite"
    index.parent.mkdir(parents=True)
    with index.open("wb") as file:
        file.truncate(700_000_000)
    assert machine.disk(settings, free=1_000_000_000).level is Level.WARNING


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_a_problem(settings: Settings):
    settings.home.mkdir()
    settings.home.chmod(0o500)
    assert "cannot be written" in machine.disk(settings).message


def test_a_clock_that_went_back_is_told(settings: Settings):
    note = settings.agents[0].workspace / "MEMORY.md"
    note.write_text("a note\n")
    assert machine.clock(settings, broker_seconds_ahead=None).level is Level.OK
    assert machine.clock(settings, broker_seconds_ahead=-3600.0).level is Level.WARNING
    assert machine.clock(settings, broker_seconds_ahead=0.0, now=1000.0).level is Level.PROBLEM
    os.utime(note, (time.time() + 900, time.time() + 900))
    assert "in the future" in machine.clock(settings, broker_seconds_ahead=0.0).message
