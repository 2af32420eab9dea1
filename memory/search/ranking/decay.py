"""Older memory counts less, when that is wanted: a factor for every candidate, by its age. Pure.

Three kinds of memory, three ways to know their age:

* what was said is as old as its message;
* a dated note is as old as the date in its file name (`2026-01-16.md`, `standup-2026-01-16.md`), in whole days of
  local time, since a person dates notes by the calendar on the wall;
* everything else (MEMORY.md, USER.md, notes about a topic) is evergreen.

The factor multiplies `Fused.rank` before results are cut, and the reported score at the end. `min_score` looks at the
score before: what is old sinks in the list, and is never lost for its age alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date

from memory.documents.roots import note_date
from memory.search.ranking.fusion import Fused

SECONDS_PER_DAY = 86_400.0


def age_in_days(path: str, said_at: float | None, *, now: float) -> float | None:
    """How old a chunk is, at least 0; None when it is evergreen.

    Args:
        path: the document's path.
        said_at: when it was said, in Unix seconds; None for notes, and for messages without a time.
        now: Unix seconds. What lies in the future counts as of now.
    """
    if said_at is not None:
        return max(0.0, (now - said_at) / SECONDS_PER_DAY)
    noted = note_date(path)
    if noted is None:
        return None
    return float(max(0, (date.fromtimestamp(now) - noted).days))


def factor(age_days: float | None, *, half_life_days: float) -> float:
    """`exp(-ln 2 * age / half-life)`: 1 for what is new or evergreen, 0.5 after `half_life_days`."""
    return 1.0 if age_days is None else float(0.5 ** (age_days / half_life_days))


def decayed(fused: Iterable[Fused], factors: Mapping[int, float]) -> list[Fused]:
    """Rank by relevance times factor, best first, ties by id. Scores stay: `min_score` has to see them as they were."""
    aged = [replace(item, rank=item.rank * factors.get(item.id, 1.0)) for item in fused]
    return sorted(aged, key=lambda item: (-item.rank, item.id))
