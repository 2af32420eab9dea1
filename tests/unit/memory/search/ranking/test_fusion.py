"""Both sides of a search put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.search.ranking.fusion import Fused, descending, fuse_minmax, fuse_weighted

WEIGHTS = {"vector_weight": 0.4, "text_weight": 0.6}
SCORES = st.dictionaries(st.integers(1, 40), st.floats(-1, 1, allow_nan=False), max_size=30)
POSITIVE = st.dictionaries(st.integers(1, 40), st.floats(0.001, 30, allow_nan=False), max_size=30)
SHARES = st.dictionaries(st.integers(1, 40), st.floats(0, 1), max_size=30)


@given(cosines=SCORES, bm25=POSITIVE, coverage=SHARES, data=st.data())
def test_the_order_in_which_candidates_arrive_changes_nothing(cosines, bm25, coverage, data):
    shuffled_cosines = dict(data.draw(st.permutations(list(cosines.items()))))
    shuffled_bm25 = dict(data.draw(st.permutations(list(bm25.items()))))

    first = fuse_minmax(cosines, bm25, coverage, **WEIGHTS)
    second = fuse_minmax(shuffled_cosines, shuffled_bm25, coverage, **WEIGHTS)
    assert first == second
    assert {item.id for item in first} == cosines.keys() | bm25.keys()
    assert all(0 <= item.rank <= 1 for item in first)

    weights = {"vector_weight": 0.7, "text_weight": 0.3}
    assert fuse_weighted(cosines, bm25, **weights) == fuse_weighted(shuffled_cosines, shuffled_bm25, **weights)


def test_minmax_adds_both_scaled_sides():
    fused = fuse_minmax({1: 0.2, 2: 0.6, 3: 1.0}, {1: 8.0, 2: 4.0}, {1: 1.0, 2: 1.0}, **WEIGHTS)

    assert {item.id: round(item.rank, 6) for item in fused} == {1: 0.6, 2: 0.5, 3: 0.4}
    assert [item.id for item in fused] == [1, 2, 3]
    other_way = fuse_minmax({1: 0.2, 3: 1.0}, {1: 8.0}, {1: 1.0}, vector_weight=0.9, text_weight=0.1)
    assert [item.id for item in other_way] == [3, 1]


def test_the_reference_formula_is_cosine_and_keyword_position():
    fused = fuse_weighted({1: 0.5, 2: 0.4}, {2: 12.0, 3: 5.0}, vector_weight=0.7, text_weight=0.3)

    assert {item.id: pytest.approx(item.score) for item in fused} == {1: 0.35, 2: 0.7 * 0.4 + 0.3, 3: 0.3 / 2}
    halved = fuse_weighted({1: 0.5}, {}, vector_weight=0.0, text_weight=0.0)
    assert halved[0].score == pytest.approx(0.35)


@given(
    scores=st.lists(st.floats(0, 1), max_size=20), top=st.integers(1, 12), more=st.lists(st.floats(0, 1), max_size=9)
)
def test_scores_keep_the_order_and_a_longer_list_begins_like_a_shorter_one(scores, top, more):
    fused = [
        Fused(id=place, rank=-place, score=score, vector=None, text=None) for place, score in enumerate(scores + more)
    ]
    reported = descending(fused, top)

    assert [item.id for item in reported] == [item.id for item in fused]
    assert [item.score for item in reported] == sorted((item.score for item in reported), reverse=True)
    assert all(after.score >= before.score for before, after in list(zip(fused, reported, strict=True))[:top])
    if len(scores) >= top:
        assert descending(fused[: len(scores)], top) == reported[: len(scores)]
