"""Both sides of a search put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.search.fusion import Calibration, descending, fuse_minmax, fuse_weighted, gate_of, relevant, with_coverage

PLAIN = Calibration(unrelated=0.0, related=1.0)
SCORES = st.dictionaries(st.integers(1, 40), st.floats(-1, 1, allow_nan=False), max_size=30)
POSITIVE = st.dictionaries(st.integers(1, 40), st.floats(0.001, 30, allow_nan=False), max_size=30)


@given(cosines=SCORES, bm25=POSITIVE, gate=st.floats(0, 1), data=st.data())
def test_the_order_in_which_candidates_arrive_changes_nothing(cosines, bm25, gate, data):
    shuffled_cosines = dict(data.draw(st.permutations(list(cosines.items()))))
    shuffled_bm25 = dict(data.draw(st.permutations(list(bm25.items()))))

    first = fuse_minmax(cosines, bm25, gate=gate, calibration=PLAIN)
    second = fuse_minmax(shuffled_cosines, shuffled_bm25, gate=gate, calibration=PLAIN)
    assert first == second
    assert {item.id for item in first} == cosines.keys() | bm25.keys()
    assert all(0 <= item.score <= 1 and 0 <= item.rank <= 1 for item in first)

    weights = {"vector_weight": 0.7, "text_weight": 0.3}
    assert fuse_weighted(cosines, bm25, **weights) == fuse_weighted(shuffled_cosines, shuffled_bm25, **weights)


def test_minmax_adds_both_scaled_sides_with_its_own_weights():
    fused = fuse_minmax({1: 0.2, 2: 0.6, 3: 1.0}, {1: 8.0, 2: 4.0}, gate=1.0, calibration=PLAIN)

    assert {item.id: round(item.rank, 6) for item in fused} == {1: 0.6, 2: 0.5, 3: 0.4}
    assert [item.id for item in fused] == [1, 2, 3]


def test_a_closed_gate_leaves_the_order_to_the_vectors():
    bm25 = {1: 9.0, 2: 1.0}
    fused = fuse_minmax({1: 0.1, 2: 0.2, 3: 0.9}, bm25, gate=0.0, calibration=PLAIN)

    assert [item.id for item in fused] == [3, 2, 1]


def test_the_gate_opens_with_what_the_best_keyword_hit_covers():
    assert [round(gate_of(share), 6) for share in (0.0, 0.1, 0.3, 0.5, 1.0)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_without_vectors_keywords_rank_alone():
    fused = fuse_minmax({}, {4: 1.0, 9: 3.0}, gate=0.1, calibration=PLAIN)

    assert [(item.id, item.vector) for item in fused] == [(9, None), (4, None)]


def test_a_chunk_that_waits_for_its_vector_is_judged_by_its_keywords():
    fused = fuse_minmax({1: 0.9, 2: 0.1}, {1: 2.0, 3: 8.0}, gate=1.0, calibration=PLAIN)

    assert fused[0].id == 3
    assert fused[0].vector is None


def test_the_reference_formula_is_cosine_and_keyword_position():
    fused = fuse_weighted({1: 0.5, 2: 0.4}, {2: 12.0, 3: 5.0}, vector_weight=0.7, text_weight=0.3)

    assert {item.id: pytest.approx(item.score) for item in fused} == {1: 0.35, 2: 0.7 * 0.4 + 0.3, 3: 0.3 / 2}
    halved = fuse_weighted({1: 0.5}, {}, vector_weight=0.0, text_weight=0.0)
    assert halved[0].score == pytest.approx(0.35)


def test_min_score_never_takes_a_keyword_hit():
    fused = fuse_weighted({1: 0.3, 2: 0.9}, {3: 5.0, 4: 4.0}, vector_weight=0.7, text_weight=0.3)

    assert [item.id for item in relevant(fused, min_score=0.35)] == [2, 3, 4]


def test_calibration_scales_cosines_to_what_they_mean():
    e5 = Calibration(unrelated=0.75, related=0.9)

    assert [round(e5.score(value), 3) for value in (0.5, 0.75, 0.825, 0.95)] == [0.0, 0.0, 0.5, 1.0]


@given(cosines=SCORES, bm25=POSITIVE)
def test_sorting_by_the_reported_score_keeps_the_order(cosines, bm25):
    fused = fuse_minmax(cosines, bm25, gate=1.0, calibration=PLAIN)
    reported = descending(fused)

    assert [item.id for item in reported] == [item.id for item in fused]
    assert [item.score for item in reported] == sorted((item.score for item in reported), reverse=True)
    assert all(after.score >= before.score for before, after in zip(fused, reported, strict=True))


def test_coverage_makes_the_keyword_score_absolute():
    [best, _] = fuse_minmax({1: 0.4, 2: 0.1}, {1: 9.0}, gate=1.0, calibration=PLAIN)

    assert (best.text, best.score) == (1.0, 0.4)
    assert (with_coverage(best, 0.7).text, with_coverage(best, 0.7).score) == (0.7, 0.7)
    assert with_coverage(best, 0.2).score == 0.4
