"""From scores to hits."""

from __future__ import annotations

from typing import Any

import pytest

from memory.search.ranking import ranked
from memory.store.stub import InMemoryStore
from schemas.memory_sections import Hybrid
from tests.storing import document, key, vector

NOTE = key("memory/a.md")


def texts(hybrid: dict[str, Any], *, by_vectors: bool) -> list[str]:
    """Three chunks, best first: the second says in other words what the first does."""
    store = InMemoryStore()
    vectors = [vector(1), vector(1), vector(2), vector(3)]
    store.write([document(NOTE, "seven boats", "sept bateaux", "green hills", "nothing", vectors=vectors)])
    scores = dict(zip((chunk.id for chunk in store.chunks_of(NOTE)), (0.9, 0.8, 0.7, 0.1), strict=True))
    hits, copies = ranked(
        store,
        scores if by_vectors else {},
        {} if by_vectors else scores,
        "boats",
        hybrid=Hybrid.model_validate(hybrid),
        model="stub",
        max_results=2,
        min_score=0.0,
        now=0.0,
    )
    assert copies == {}
    return [row.text for _, row in hits]


@pytest.mark.parametrize(
    ("by_vectors", "expected"),
    [(True, ["seven boats", "green hills"]), (False, ["seven boats", "sept bateaux"])],
)
def test_variety_is_by_meaning_where_meaning_is_searched(*, by_vectors: bool, expected: list[str]) -> None:
    assert texts({}, by_vectors=by_vectors) == ["seven boats", "sept bateaux"]
    assert texts({"mmr": {"enabled": True, "lambda": 0.5}}, by_vectors=by_vectors) == expected
