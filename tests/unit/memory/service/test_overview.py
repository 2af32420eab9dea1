"""The owner's views: days of notes."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from memory.service.overview import timeline_of
from schemas.service import DatedNote

CHUNKS = {
    "MEMORY.md": 9,
    "memory/2026-01-16-topic.md": 2,
    "memory/2026-01-16.md": 3,
    "memory/deep/2025-12-31.md": 1,
    "/elsewhere/2026-03-01.md": 0,
    "memory/2026-02-30.md": 5,
    "memory/2026-01-160.md": 5,
    "memory/topic-2026-01-16.md": 4,
}


def test_the_latest_year_is_shown_where_none_is_asked_for() -> None:
    answer = timeline_of("main", CHUNKS, year=None)

    assert [(year.year, year.days, year.notes, year.chunks) for year in answer.years] == [
        (2025, 1, 1, 1),
        (2026, 2, 4, 9),
    ]
    assert answer.year == 2026
    assert [day.date for day in answer.days] == ["2026-01-16", "2026-03-01"]
    assert answer.days[0].notes == (
        DatedNote(path="memory/2026-01-16-topic.md", chunks=2),
        DatedNote(path="memory/2026-01-16.md", chunks=3),
        DatedNote(path="memory/topic-2026-01-16.md", chunks=4),
    )
    assert [day.date for day in timeline_of("main", CHUNKS, year=2025).days] == ["2025-12-31"]


@given(st.dictionaries(st.dates(), st.integers(0, 5), max_size=40))
def test_years_add_up_to_what_their_days_hold(noted: dict[date, int]) -> None:
    notes = {f"memory/{day.isoformat()}.md": chunks for day, chunks in noted.items()}

    answer = timeline_of("main", notes, year=None)
    shown = [day for year in answer.years for day in timeline_of("main", notes, year=year.year).days]
    assert [day.date for day in shown] == sorted(day.isoformat() for day in noted)
    assert sum(year.chunks for year in answer.years) == sum(noted.values())
    assert sum(year.days for year in answer.years) == len(noted)
