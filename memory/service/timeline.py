"""Dated notes by year and day. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from memory.documents.roots import note_date
from schemas.overview import DatedNote, Day, TimelineAnswer, Year


def days_of(chunks: Mapping[str, int]) -> dict[str, Day]:
    """ISO date -> what there is of that day, ascending.

    Args:
        chunks: path -> number of chunks, of all notes; those without a date in their name are left out.
    """
    notes: dict[str, list[DatedNote]] = defaultdict(list)
    for path, count in chunks.items():
        noted = note_date(path)
        if noted is not None:
            notes[noted.isoformat()].append(DatedNote(path=path, chunks=count))
    return {
        iso: Day(
            date=iso,
            chunks=sum(note.chunks for note in notes[iso]),
            notes=tuple(sorted(notes[iso], key=lambda note: note.path)),
        )
        for iso in sorted(notes)
    }


def timeline(agent: str, days: Mapping[str, Day], *, year: int | None) -> TimelineAnswer:
    """All years, and the days of one: of `year`, else of the latest."""
    by_year: dict[int, list[Day]] = defaultdict(list)
    for iso, day in days.items():
        by_year[int(iso[:4])].append(day)
    years = tuple(
        Year(
            year=number,
            days=len(by_year[number]),
            notes=sum(len(day.notes) for day in by_year[number]),
            chunks=sum(day.chunks for day in by_year[number]),
        )
        for number in sorted(by_year)
    )
    shown = year if year is not None else (years[-1].year if years else None)
    found = tuple(by_year.get(shown, ())) if shown is not None else ()
    return TimelineAnswer(agent=agent, years=years, year=shown, days=found)
