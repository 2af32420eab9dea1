"""Days and months that a question names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.chunking.dates import dates_in


@pytest.mark.parametrize(
    ("question", "dates"),
    [
        ("On April 27th, how long did I run?", ["04-27"]),
        ("the 1st of may and 3 Sept.", ["05-01", "09-03"]),
        ("in May 2023, or December, 2024", ["2023-05", "2024-12"]),
        ("April 27, 2023 and 3rd of May 2024", ["2023-04-27", "2024-05-03"]),
        ("2026/01/12, 2026.1.2 and 12.01.2026", ["2026-01-12", "2026-01-02", "2026-01-12"]),
        ("version 1.2.2026.4, 10.0.0.7, 3.6.1, 1/2", []),
        ("2026-11-09", ["2026-11-09"]),
        ("我在4月27号跑了多久", ["04-27"]),
        ("四月二十七日和十二月三十一號", ["04-27", "12-31"]),
        ("2023年十月十日，2024年5月", ["2023-10-10", "2024-05"]),
        ("He may march 45 km; 13月40日", []),
        ("in May we march", []),
    ],
)
def test_dates_are_read_as_notes_are_dated(question: str, dates: list[str]) -> None:
    assert list(dates_in(question)) == dates


@given(st.text(alphabet="一二三十0123456789月日号年 mayMAY-/.1st", max_size=40))
def test_whatever_looks_like_a_date_is_one_of_the_calendar_or_left(text: str) -> None:
    for date in dates_in(text):
        parts = [int(part) for part in date.split("-")]
        month, day = (parts[1], 1) if len(date) == 7 else parts[-2:]
        assert 1 <= month <= 12
        assert 1 <= day <= 31
