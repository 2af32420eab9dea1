"""What age and variety read from a store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory.search.ranking.fusion import Fused
from memory.search.ranking.rerank import age_factors, varied_hits
from memory.store.reader import ChunkRow
from tests.storing import TALK, TemporaryStore, chunk, document, key, mark, piece, vector

NOTE = key("memory/a.md")


def hits(store: TemporaryStore) -> list[tuple[Fused, ChunkRow]]:
    """All chunks, ranked by their place."""
    rows = store.chunk_rows([chunk.id for chunk in store.chunks_of(NOTE)])
    return [(Fused(id_, 1 - 0.1 * place, 0.9, None, None), row) for place, (id_, row) in enumerate(rows.items())]


@pytest.mark.parametrize(
    ("unrelated", "expected"),
    [(0.0, ["Seven boats", "green hills", "sept bateaux"]), (None, ["Seven boats", "sept bateaux", "green hills"])],
)
def test_vectors_know_what_words_do_not(unrelated: float | None, expected: list[str]) -> None:
    store = TemporaryStore()
    vectors = [vector(1), vector(1), vector(2)]
    store.write([document(NOTE, "Seven boats", "sept bateaux", "green hills", vectors=vectors)])

    chosen = varied_hits(store, hits(store), share=0.5, limit=3, unrelated=unrelated)

    assert [row.text for _, row in chosen] == expected


def test_what_waits_for_its_vector_is_compared_by_words() -> None:
    store = TemporaryStore()
    store.write([document(NOTE, "seven boats", "Seven boats!", "green hills", vectors=[vector(1)])])

    chosen = varied_hits(store, hits(store), share=0.5, limit=2, unrelated=0.0)

    assert [row.text for _, row in chosen] == ["seven boats", "green hills"]


def test_factors_are_those_of_messages_and_dates() -> None:
    store = TemporaryStore()
    day = 86_400.0
    store.write([piece(replace(chunk("said"), said_at=100 * day), continues=None, to=mark(1))])
    store.write([document(NOTE, "undated"), document(key("memory/1970-01-02-b.md"), "dated")])
    ids = [chunk.id for of in (TALK, NOTE, key("memory/1970-01-02-b.md")) for chunk in store.chunks_of(of)]

    factors = age_factors(store, store.chunk_rows(ids), half_life_days=10, now=120 * day)

    said, undated, dated = (factors[id_] for id_ in ids)
    assert (said, undated) == (0.25, 1.0)
    assert 0 < dated < 0.001
