"""Reports of the watcher about itself, read by every search."""

from __future__ import annotations

import json
import os
from pathlib import Path

from memory.status.run_files import WATCH_STATE_PATH, read_watch_state
from schemas.status import WatchingState


def publish(home: Path, body: object) -> None:
    path = home / WATCH_STATE_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name("draft")
    draft.write_text(json.dumps(body), "utf-8")
    draft.replace(path)


def test_every_new_word_of_the_watcher_is_read(home: Path):
    assert read_watch_state(home, "main") is None
    for overflows in range(5):
        publish(home, {"main": {"mode": "events", "overflows": overflows, "pid": os.getpid()}})
        assert read_watch_state(home, "main") == WatchingState("events", overflows=overflows)
        assert read_watch_state(home, "other") is None
    (home / WATCH_STATE_PATH).unlink()
    assert read_watch_state(home, "main") is None


def test_a_file_of_another_shape_says_nothing(home: Path):
    for body in ([], {"main": 3}, {"main": {"mode": "events"}}, "events"):
        publish(home, body)
        assert read_watch_state(home, "main") is None
