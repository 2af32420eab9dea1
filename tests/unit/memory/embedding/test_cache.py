"""The embedding cache on a real file."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.cache import EmbeddingCache
from memory.embedding.cache_reader import EmbeddingCacheReader
from memory.embedding.vectors import round_rows
from memory.store.reader import Vector


def vectors(start: int, count: int, *, dimensions: int = 64) -> dict[str, Vector]:
    raw = np.random.default_rng(start).standard_normal((count, dimensions)).astype(np.float32)
    rows = round_rows(raw, expected=count, dimensions=dimensions)[0]
    return {text_hash(f"{start} {i}"): row for i, row in enumerate(rows)}


def test_what_is_put_comes_back_the_same_in_another_process_s_cache(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    kept = vectors(1, 1000)
    EmbeddingCache(path).put_many("model a", kept)
    found = EmbeddingCache(path).get_many("model a", [*kept, text_hash("never seen")])
    assert found.keys() == kept.keys()
    assert all(np.array_equal(found[key], kept[key]) for key in kept)


def test_a_file_that_is_no_database_is_set_aside_and_a_new_one_made(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_bytes(b"not a database at all" * 1000)
    cache = EmbeddingCache(path)
    cache.put_many("model", vectors(1, 10))
    assert EmbeddingCacheReader(path).entries() == 10
    aside = list(tmp_path.glob("cache.sqlite.corrupt-*"))
    assert len(aside) == 1
    assert aside[0].read_bytes().startswith(b"not a database")


def test_the_least_recently_used_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    today = time.time()
    cache = EmbeddingCache(tmp_path / "cache.sqlite", max_entries=100)
    old, used, new = vectors(1, 60), vectors(2, 40), vectors(3, 40)
    monkeypatch.setattr("memory.embedding.cache.time.time", lambda: today - 5 * 86_400)
    cache.put_many("model", old)
    cache.put_many("model", used)
    monkeypatch.setattr("memory.embedding.cache.time.time", lambda: today)
    cache.get_many("model", list(used))
    cache.put_many("model", new)
    cache.evict()
    assert EmbeddingCacheReader(tmp_path / "cache.sqlite").entries() <= 100
    assert len(cache.get_many("model", [*used, *new])) == 80
    assert len(cache.get_many("model", list(old))) < 60


def test_maintenance_keeps_to_a_bound_that_was_lowered_and_empties_the_log(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    filled = EmbeddingCache(path)
    filled.put_many("model", vectors(1, 6000, dimensions=256))
    log = tmp_path / "cache.sqlite-wal"
    assert log.stat().st_size > 1_048_576
    bounded = EmbeddingCache(path, max_entries=1000)
    bounded.maintain()
    assert EmbeddingCacheReader(path).entries() <= 1000
    assert log.stat().st_size == 0
    kept = vectors(2, 10, dimensions=256)
    filled.put_many("model", kept)
    assert bounded.get_many("model", list(kept)).keys() == kept.keys()
