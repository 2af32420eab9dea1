"""The embedding cache on a real file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import apsw
import numpy as np
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.cache import EmbeddingCache
from memory.embedding.vectors import check_and_round
from memory.store import durable_sqlite as kept_file
from memory.store.errors import StoreBusy, StoreFull, StoreUnreadable
from memory.store.reader import Vector
from tests.waiting import wait_until


def vectors(start: int, count: int, *, dimensions: int = 64) -> dict[str, Vector]:
    raw = np.random.default_rng(start).standard_normal((count, dimensions)).astype(np.float32)
    rows = check_and_round(raw, expected=count, dimensions=dimensions)
    return {text_hash(f"{start} {i}"): row for i, row in enumerate(rows)}


def test_what_is_put_comes_back_the_same_in_another_process_s_cache(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    kept = vectors(1, 1000)
    EmbeddingCache(path).put_many("model a", kept)
    found = EmbeddingCache(path).get_many("model a", [*kept, text_hash("never seen")])
    assert found.keys() == kept.keys()
    assert all(np.array_equal(found[key], kept[key]) for key in kept)


def test_identities_do_not_see_each_other_s_vectors(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "cache.sqlite")
    one, two = vectors(1, 3), vectors(1, 3, dimensions=32)
    cache.put_many("model a", one)
    cache.put_many("model b", two)
    for model, width in (("model a", {(64,)}), ("model b", {(32,)}), ("model c", set())):
        assert {vector.shape for vector in cache.get_many(model, list(one)).values()} == width


def test_a_vector_takes_two_bytes_a_dimension_on_disk(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "cache.sqlite")
    cache.put_many("model", vectors(1, 2000, dimensions=512))
    cache.close()
    assert (tmp_path / "cache.sqlite").stat().st_size < 2000 * (2 * 512 + 220)


def test_two_processes_write_and_a_killed_one_leaves_what_it_committed(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    script = """
import sys
from pathlib import Path
from memory.embedding.cache import EmbeddingCache
from tests.unit.memory.embedding.test_cache import vectors
cache = EmbeddingCache(Path(sys.argv[1]))
for start in range(int(sys.argv[2]), int(sys.argv[3])):
    cache.put_many("model", vectors(start, 50))
    print(start, flush=True)
"""
    root = str(Path(__file__).parents[4])
    environment = {**os.environ, "PYTHONPATH": root}

    def start(first: int, last: int) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", script, str(path), str(first), str(last)]
        return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)

    with start(1_000, 1_020) as orderly, start(5_000, 500_000) as killed:
        assert killed.stdout is not None
        for _ in range(5):
            killed.stdout.readline()
        killed.send_signal(signal.SIGKILL)
        said = [5_000, 5_001, 5_002, 5_003, 5_004, *map(int, killed.stdout.read().split())]
        assert orderly.wait(60) == 0
    cache = EmbeddingCache(path)
    for committed in [*range(1_000, 1_020), *said]:
        kept = vectors(committed, 50)
        found = cache.get_many("model", list(kept))
        assert all(np.array_equal(found[key], kept[key]) for key in kept)
    assert cache.entries() % 50 == 0, "a transaction is whole or absent"


def test_a_file_that_is_no_database_is_set_aside_and_a_new_one_made(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_bytes(b"not a database at all" * 1000)
    cache = EmbeddingCache(path)
    cache.put_many("model", vectors(1, 10))
    assert cache.entries() == 10
    aside = list(tmp_path.glob("cache.sqlite.corrupt-*"))
    assert len(aside) == 1
    assert aside[0].read_bytes().startswith(b"not a database")


def test_damage_under_an_open_cache_is_set_aside_and_other_openers_follow(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    cache, other = EmbeddingCache(path), EmbeddingCache(path)
    cache.put_many("model", vectors(1, 500))
    cache.close()
    kept_file.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(16384)
        file.write(os.urandom(size - 16384))
    again = EmbeddingCache(path)
    lost = vectors(1, 500)
    assert again.get_many("model", list(lost)) == {}
    again.put_many("model", vectors(2, 5))
    assert len(list(tmp_path.glob("cache.sqlite.corrupt-*[0-9]"))) == 1
    other.put_many("model", vectors(3, 5))
    assert again.entries() == 10
    other.close()
    again.put_many("model", vectors(4, 5))
    again.close()
    assert EmbeddingCache(path).entries() == 15


def test_a_vector_that_a_disk_spoilt_is_a_miss_and_can_be_kept_anew(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "cache.sqlite")
    kept = vectors(1, 3)
    cache.put_many("model", kept)
    cache._file.connection().execute("UPDATE embeddings SET vector = randomblob(128) WHERE id = 1")
    cache._file.connection().execute("UPDATE embeddings SET vector = x'00' WHERE id = 2")
    assert len(cache.get_many("model", list(kept))) == 1
    cache.put_many("model", kept)
    found = cache.get_many("model", list(kept))
    assert all(np.array_equal(found[key], kept[key]) for key in kept)


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
    assert cache.entries() <= 100
    assert len(cache.get_many("model", [*used, *new])) == 80
    assert len(cache.get_many("model", list(old))) < 60


def test_the_bound_holds_without_anybody_asking_for_it(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "cache.sqlite", max_entries=200)
    for start in range(20):
        cache.put_many("model", vectors(start, 50))
    assert cache.entries() <= 270


def test_last_use_survives_a_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.sqlite"
    today = time.time()
    monkeypatch.setattr("memory.embedding.cache.time.time", lambda: today - 9 * 86_400)
    kept = vectors(1, 3)
    EmbeddingCache(path).put_many("model", kept)
    monkeypatch.setattr("memory.embedding.cache.time.time", lambda: today)
    cache = EmbeddingCache(path)
    cache.get_many("model", list(kept))
    cache.close()
    days = kept_file.connect(path).execute("SELECT DISTINCT used FROM embeddings").fetchall()
    assert days == [(int(today) // 86_400,)]


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    cache = EmbeddingCache(path)
    cache.put_many("model", vectors(1, 10))
    connection = cache._file.connection()
    connection.execute("PRAGMA max_page_count = 8").fetchall()
    with pytest.raises(StoreFull, match="free some"):
        cache.put_many("model", vectors(2, 2000))
    assert cache.entries() == 10
    connection.execute("PRAGMA max_page_count = 100000").fetchall()
    cache.put_many("model", vectors(2, 2000))
    assert cache.entries() == 2010


def test_a_lock_that_is_held_for_too_long_is_a_passing_failure(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    cache = EmbeddingCache(path)
    cache._file.connection().set_busy_timeout(10)
    holder = kept_file.connect(path)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        cache.put_many("model", vectors(1, 1))
    holder.execute("COMMIT")
    cache.put_many("model", vectors(1, 1))
    assert wait_until(cache.entries) == 1


@pytest.mark.parametrize(("place", "words"), [("new", "another version"), ("file/in/the/way", "permissions")])
def test_what_cannot_be_opened_is_one_sentence_and_left_alone(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    if place == "new":
        with closing(apsw.Connection(str(tmp_path / place))) as foreign:
            foreign.execute("PRAGMA user_version = 99")
    before = (tmp_path / "file").read_text(), (tmp_path / place).exists()
    with pytest.raises(StoreUnreadable, match=words):
        EmbeddingCache(tmp_path / place)
    assert ((tmp_path / "file").read_text(), (tmp_path / place).exists()) == before


def test_maintenance_keeps_to_a_bound_that_was_lowered_and_empties_the_log(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    filled = EmbeddingCache(path)
    filled.put_many("model", vectors(1, 6000, dimensions=256))
    log = tmp_path / "cache.sqlite-wal"
    assert log.stat().st_size > 1_048_576
    bounded = EmbeddingCache(path, max_entries=1000)
    bounded.maintain()
    assert bounded.entries() <= 1000
    assert log.stat().st_size == 0
    kept = vectors(2, 10, dimensions=256)
    filled.put_many("model", kept)
    assert bounded.get_many("model", list(kept)).keys() == kept.keys()
