"""The day of a note is the date in its name, wherever it stands there, for its age, its order and the time line."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest

from memory.documents.roots import priority
from memory.search.ranking.order import age_in_days
from memory.service.overview import timeline_of
from schemas.documents import DocumentKey

TODAY = date(2026, 11, 21)
NOON = datetime(2026, 11, 21, 12).timestamp()  # local time, as notes are dated

DATED = {
    "memory/2026-01-16.md": date(2026, 1, 16),
    "memory/2026-01-16-billing.md": date(2026, 1, 16),
    "memory/2026-03-01-1430.md": date(2026, 3, 1),
    "memory/2026-03-01-1430-2.md": date(2026, 3, 1),
    "memory/2026-01-16T0930.md": date(2026, 1, 16),
    "memory/2026-01-16 周会.md": date(2026, 1, 16),
    "memory/周会2026-01-16.md": date(2026, 1, 16),
    "memory/meeting-2026-03-01.md": date(2026, 3, 1),
    "memory/deep/retro_2024-02-29_notes.md": date(2024, 2, 29),
    "memory/journals/2026_03_01.md": date(2026, 3, 1),
    "memory/notes_20260301.md": date(2026, 3, 1),
    "memory/call-20260301T1430.md": date(2026, 3, 1),
    "memory/2026-02-30-moved-to-2026-03-02.md": date(2026, 3, 2),
    "memory/2026-03-01-to-2026-03-05.md": date(2026, 3, 1),
    "notes/2025-01-01/2026-03-01.md": date(2026, 3, 1),
}

UNDATED = [
    "MEMORY.md",
    "USER.md",
    "memory/garden.md",
    "memory/2026-01-16/notes.md",
    "memory/2026-02-30.md",
    "memory/2026-13-01.md",
    "memory/20261301.md",
    "memory/0000-01-01.md",
    "memory/2026-1-6.md",
    "memory/2026-01_16.md",
    "memory/2026-01-160.md",
    "memory/12026-01-16.md",
    "memory/ticket-120260301.md",
    "memory/202603011430.md",
    "memory/order-18260301.md",
    "memory/２０２６-01-16.md",
]


@pytest.mark.parametrize(("path", "day"), DATED.items())
def test_a_date_anywhere_in_the_name_is_the_notes_day(path: str, day: date) -> None:
    assert age_in_days(path, None, now=NOON) == (TODAY - day).days
    assert [one.date for one in timeline_of("main", {path: 1}, year=day.year).days] == [day.isoformat()]
    assert priority(DocumentKey("memory", path), today=day) < priority(DocumentKey("memory", "memory/a.md"), today=day)
    later = DocumentKey("memory", f"memory/{day + timedelta(days=1)}.md")
    assert priority(later, today=TODAY) < priority(DocumentKey("memory", path), today=TODAY)


@pytest.mark.parametrize("path", UNDATED)
def test_a_note_without_a_day_of_the_calendar_in_its_name_never_ages(path: str) -> None:
    assert age_in_days(path, None, now=NOON) is None
    assert timeline_of("main", {path: 1}, year=None).days == ()
