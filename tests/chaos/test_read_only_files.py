"""Caches on a disk that cannot be written."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from memory.store.durable_sqlite import parts
from tests.chaos.disks import read_only, small_disk
from tests.storing import cache_at, cache_reader_at


@pytest.mark.parametrize("log", ["kept", "removed"])
def test_a_cache_is_read_from_a_disk_that_cannot_be_written(tmp_path: Path, log: str) -> None:
    folder = tmp_path / "cache"
    with ExitStack() as disks:
        if os.geteuid() == 0:
            disks.enter_context(small_disk(folder, megabytes=16))
        folder.mkdir(exist_ok=True)
        path = folder / "embeddings.sqlite"
        with closing(cache_at(path)) as cache:
            cache.put_many("model", {"a": np.array([1.0, 0.0], np.float32)})
        if log == "removed":
            for part in parts(path)[1:]:
                part.unlink()
        disks.enter_context(read_only(folder))
        reader = cache_reader_at(path)
        assert (reader.entries(), list(reader.get_many("model", ["a", "b"]))) == (1, ["a"])
