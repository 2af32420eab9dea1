"""Results that do not all say the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.search.ranking.rerank import similarity_by_meaning, similarity_by_words, varied

SHARES = st.floats(0, 1, allow_nan=False)
SIMILARITIES = st.floats(0, 1, allow_nan=False)


class Table:
    """Similarities that a test writes down."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self.rows = rows
        self.asked: list[int] = []

    def __call__(self, place: int) -> Sequence[float]:
        self.asked.append(place)
        return self.rows[place]


@st.composite
def candidates(draw: st.DrawFn, *, distinct: bool = True) -> tuple[list[float], list[list[float]]]:
    """Relevance, best first, and a symmetrical table of similarities."""
    relevance = draw(st.lists(st.floats(0, 1, allow_nan=False), max_size=9, unique=distinct))
    size = len(relevance)
    rows = [[1.0] * size for _ in range(size)]
    for one in range(size):
        for other in range(one):
            rows[one][other] = rows[other][one] = draw(SIMILARITIES)
    return sorted(relevance, reverse=True), rows


#: The second is the first again, the third says something else.
AGAIN = Table([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("share", "limit", "expected"),
    [
        (1.0, 3, [0, 1, 2]),
        (0.7, 3, [0, 2, 1]),
        (0.7, 2, [0, 2]),
        (0.7, 1, [0]),
        (0.0, 3, [0, 2, 1]),
        (0.95, 2, [0, 1]),
        (0.5, 0, []),
    ],
)
def test_what_repeats_waits_for_what_is_new(share: float, limit: int, expected: list[int]) -> None:
    assert varied([1.0, 0.9, 0.6], AGAIN, share=share, limit=limit) == expected


def test_the_values_are_those_of_the_formula() -> None:
    # After 0: place 1 is worth .5 * .8 - .5 * .5 = .15, place 2 is worth .5 * .6 - .5 * .2 = .2;
    # then place 1 is as near to 2 as .9: it is worth -.05, and 3 is worth .5 * .1 - .5 * .1 = 0.
    rows = [[1, 0.5, 0.2, 0.1], [0.5, 1, 0.9, 0], [0.2, 0.9, 1, 0], [0.1, 0, 0, 1]]
    assert varied([1.0, 0.8, 0.6, 0.1], Table(rows), share=0.5, limit=4) == [0, 2, 3, 1]


@given(given_=candidates(distinct=False), share=SHARES, limit=st.integers(0, 12))
def test_every_choice_is_made_once_and_the_most_relevant_is_the_first(
    given_: tuple[list[float], list[list[float]]], share: float, limit: int
) -> None:
    relevance, rows = given_
    table = Table(rows)
    chosen = varied(relevance, table, share=share, limit=limit)
    assert len(set(chosen)) == len(chosen) == min(limit, len(relevance))
    assert chosen[:1] == ([0] if relevance and limit else [])
    assert len(table.asked) <= limit


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("The pump was repaired on Friday", "Pump repaired; on Friday.", 1.0),
        ("pump repaired", "pump replaced", 1 / 3),
        ("The dentist is in this street", "The garden is in this valley", 0.0),
        ("数据库周五迁移", "数据库周五迁移", 1.0),
        ("数据库周五迁移完成", "我们决定数据库周五迁移", 6 / 13),
        ("数据库迁移", "牙医预约", 0.0),
        ("ﾃﾞｰﾀﾍﾞｰｽ", "データベース", 1.0),
        ("", "", 0.0),
        ("---", "***", 0.0),
    ],
)
def test_words_in_common_are_counted_in_every_script(one: str, other: str, expected: float) -> None:
    similarity = similarity_by_words([one, other])
    assert similarity(0)[1] == similarity(1)[0] == pytest.approx(expected)


def test_cosines_are_scaled_from_unrelated_to_the_same() -> None:
    vectors = [np.array(v, dtype=np.float32) for v in ([1, 0], [0.8, 0.6], [0, 1], [1, 0])]
    similarity = similarity_by_meaning(vectors, ["", "", "", ""], unrelated=0.6)
    assert similarity(0) == pytest.approx([1.0, 0.5, 0.0, 1.0])


def test_without_a_vector_words_are_compared() -> None:
    vectors = [np.array([1, 0], dtype=np.float32), None, np.array([0, 1], dtype=np.float32)]
    similarity = similarity_by_meaning(vectors, ["周五迁移", "周五迁移", "周五迁移"], unrelated=0.0)
    assert similarity(0) == pytest.approx([1.0, 1.0, 0.0])
    assert similarity(1) == pytest.approx([1.0, 1.0, 1.0])
    assert similarity_by_meaning([None, None], ["one", "one"], unrelated=0.0)(0) == [1.0, 1.0]
