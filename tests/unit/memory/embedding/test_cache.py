"""The embedding cache: a real file, and rows of a tenant in a real PostgreSQL."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psycopg
import pytest

from memory.chunking.chunker import text_hash
from memory.embedding.cache import KIND, EmbeddingCache
from memory.embedding.cache_reader import EmbeddingCacheReader
from memory.embedding.postgres_tables import PostgresTables
from memory.embedding.vectors import round_rows
from memory.store.errors import StoreAway
from memory.store.postgres.connection import Database
from memory.store.reader import Vector
from schemas.settings import Settings
from tests.postgres_server import PostgresServer, Urls
from tests.storing import cache_at, cache_reader_at
from tests.unit.memory.embedding.conftest import OpenTables
from tests.waiting import wait_until


def vectors(start: int, count: int, *, dimensions: int = 64) -> dict[str, Vector]:
    raw = np.random.default_rng(start).standard_normal((count, dimensions)).astype(np.float32)
    rows = round_rows(raw, expected=count, dimensions=dimensions)[0]
    return {text_hash(f"{start} {i}"): row for i, row in enumerate(rows)}


def test_what_is_put_comes_back_the_same_in_another_process_s_cache(open_tables: OpenTables) -> None:
    put = vectors(1, 1000)
    EmbeddingCache(open_tables(KIND)).put_many("model a", put)
    for cache in (EmbeddingCache(open_tables(KIND)), EmbeddingCacheReader(open_tables(KIND).read)):
        cached = cache.get_many("model a", [*put, text_hash("never seen"), "of another form"])
        assert cached.keys() == put.keys()
        assert all(np.array_equal(cached[key], put[key]) for key in put)
        assert cache.get_many("model b", list(put)) == {}
    assert EmbeddingCacheReader(open_tables(KIND).read).holds("model a", [*put, "of another form"]) == put.keys()


def test_the_least_recently_used_go_first(open_tables: OpenTables, monkeypatch: pytest.MonkeyPatch) -> None:
    today = time.time()
    cache = EmbeddingCache(open_tables(KIND), max_entries=100)
    old, used, new = vectors(1, 60), vectors(2, 40), vectors(3, 40)
    monkeypatch.setattr("memory.embedding.cache.time.time", lambda: today - 5 * 86_400)
    cache.put_many("model", old)
    cache.put_many("model", used)
    monkeypatch.setattr("memory.embedding.cache.time.time", lambda: today)
    cache.get_many("model", list(used))
    cache.put_many("model", new)
    cache.evict()
    assert EmbeddingCacheReader(open_tables(KIND).read).entries() <= 100
    assert len(cache.get_many("model", [*used, *new])) == 80
    assert len(cache.get_many("model", list(old))) < 60


def test_a_tenant_sees_and_evicts_its_own_vectors_alone(database: Database) -> None:
    acme, other = (EmbeddingCache(PostgresTables(database, name), max_entries=50) for name in ("acme", "other"))
    shared = vectors(1, 50)
    acme.put_many("model", shared)
    assert other.get_many("model", list(shared)) == {}
    other.put_many("model", vectors(2, 200))
    other.maintain()
    assert EmbeddingCacheReader(PostgresTables(database, "other").read).entries() <= 50
    assert acme.get_many("model", list(shared)).keys() == shared.keys()


@pytest.mark.parametrize("is_shared", [False, True])
def test_tenants_share_a_cache_if_the_settings_say_so(tmp_path: Path, fleet_urls: Urls, *, is_shared: bool) -> None:
    store, agent = {"url": fleet_urls.writer}, {"id": "acme/anna", "workspace": tmp_path}
    settings = Settings.model_validate(
        {"home": tmp_path, "store": store, "cache": {"shared": is_shared}, "agents": [agent]}
    )
    cache, paid = EmbeddingCache.of(settings, "acme"), vectors(1, 5)
    assert cache is not None
    cache.put_many("model", paid)
    cached = EmbeddingCacheReader.of(settings, "other").get_many("model", list(paid))
    assert len(cached) == (5 if is_shared else 0)
    assert not list(tmp_path.rglob("*.sqlite"))


def test_a_server_that_dies_while_it_takes_vectors_loses_none(own_server: PostgresServer) -> None:
    urls, first, second = own_server.urls(), vectors(1, 10), vectors(2, 10)
    database = Database(urls.writer)
    cache, reader = (EmbeddingCache(PostgresTables(database, "acme")) for _ in range(2))
    cache.keep("model", first)
    blocking, looking = (psycopg.connect(urls.superuser, autocommit=autocommit) for autocommit in (False, True))
    with closing(blocking), closing(looking):
        blocking.execute("LOCK TABLE recalld.embeddings IN SHARE MODE")
        keeping = threading.Thread(target=cache.keep, args=("model", second))
        keeping.start()
        waiting = "SELECT FROM pg_stat_activity WHERE usename = 'worker1' AND wait_event_type = 'Lock'"
        wait_until(lambda: looking.execute(waiting).rowcount == 1)
        own_server.kill()
    keeping.join()
    assert isinstance(cache.flush(), StoreAway)
    with pytest.raises(StoreAway):
        cache.get_many("model", list(second))
    own_server.start()
    assert cache.get_many("model", [*first, *second]).keys() == first.keys() | second.keys()
    assert reader.get_many("model", [*first, *second]).keys() == first.keys()
    cache.maintain()
    assert reader.get_many("model", [*first, *second]).keys() == first.keys() | second.keys()
    database.close()


def test_a_file_that_is_no_database_is_set_aside_and_a_new_one_made(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_bytes(b"not a database at all" * 1000)
    cache = cache_at(path)
    cache.put_many("model", vectors(1, 10))
    assert cache_reader_at(path).entries() == 10
    aside = list(tmp_path.glob("cache.sqlite.corrupt-*"))
    assert len(aside) == 1
    assert aside[0].read_bytes().startswith(b"not a database")


def test_maintenance_keeps_to_a_bound_that_was_lowered_and_empties_the_log(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    filled = cache_at(path)
    filled.put_many("model", vectors(1, 6000, dimensions=256))
    log = tmp_path / "cache.sqlite-wal"
    assert log.stat().st_size > 1_048_576
    bounded = cache_at(path, max_entries=1000)
    bounded.maintain()
    assert cache_reader_at(path).entries() <= 1000
    assert log.stat().st_size == 0
    kept = vectors(2, 10, dimensions=256)
    filled.put_many("model", kept)
    assert bounded.get_many("model", list(kept)).keys() == kept.keys()
