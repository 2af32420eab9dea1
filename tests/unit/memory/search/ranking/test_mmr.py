"""Results that do not all say the same."""

from __future__ import annotations

import numpy as np
import pytest

from memory.search.ranking.order import similarity_by_meaning, similarity_by_words, varied

#: The second is the first again, the third says something else.
AGAIN = [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


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
    assert varied([1.0, 0.9, 0.6], AGAIN.__getitem__, share=share, limit=limit) == expected


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


def test_without_a_vector_words_are_compared() -> None:
    vectors = [np.array([1, 0], dtype=np.float32), None, np.array([0, 1], dtype=np.float32)]
    similarity = similarity_by_meaning(vectors, ["周五迁移", "周五迁移", "周五迁移"], unrelated=0.0)
    assert similarity(0) == pytest.approx([1.0, 1.0, 0.0])
    assert similarity(1) == pytest.approx([1.0, 1.0, 1.0])
    assert similarity_by_meaning([None, None], ["one", "one"], unrelated=0.0)(0) == [1.0, 1.0]
