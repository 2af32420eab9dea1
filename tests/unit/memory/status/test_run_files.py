"""Reports of the watcher about itself, read by every search."""

from __future__ import annotations

import os
from pathlib import Path

from memory.status.run_files import WATCH_STATE_PATH, read_watch_state, write_derived
from schemas.status import WatchingState


def test_every_new_word_of_the_watcher_is_read(home: Path):
    assert read_watch_state(home, "main") is None
    for overflows in range(5):
        write_derived(home / WATCH_STATE_PATH, {"main": {"mode": "events", "overflows": overflows, "pid": os.getpid()}})
        assert read_watch_state(home, "main") == WatchingState("events", overflows=overflows)
        assert read_watch_state(home, "other") is None
    (home / WATCH_STATE_PATH).unlink()
    assert read_watch_state(home, "main") is None


def test_a_file_of_another_shape_says_nothing(home: Path):
    for body in ([], {"main": 3}, {"main": {"mode": "events"}}, "events"):
        write_derived(home / WATCH_STATE_PATH, body)
        assert read_watch_state(home, "main") is None
