"""What is counted of the embedding cache."""

from __future__ import annotations

from pathlib import Path

from memory.embedding.cache import EmbeddingCache
from memory.embedding.selection import ProviderChoice
from memory.embedding.stub import StubProvider
from memory.embedding.supply import CacheLooks, EmbeddingSupply
from schemas.documents import Lane


def test_a_text_counts_once_however_often_it_is_looked_up_while_its_vector_waits(tmp_path: Path) -> None:
    supply = EmbeddingSupply(
        ProviderChoice(StubProvider(), "stub", "stub", None, None), EmbeddingCache(tmp_path / "cache.sqlite")
    )
    try:
        assert supply.lookup(["a"]) == supply.lookup(["a"]) == {}
        assert supply.take_cache_looks() == CacheLooks()
        assert supply.request({"a": "the walrus"}, lane=Lane.LIVE, agent="main").wait(30)
        assert supply.take_cache_looks() == CacheLooks(hits=0, misses=1)
        assert list(supply.lookup(["a", "b"])) == ["a"]
        assert supply.take_cache_looks() == CacheLooks(hits=1, misses=0)
    finally:
        supply.close()
        assert supply.cache is not None
        supply.cache.close()
