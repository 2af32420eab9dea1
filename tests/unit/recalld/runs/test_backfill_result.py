"""What became of the transcripts that a backfill wanted."""

from __future__ import annotations

import pytest

from recalld.runs.backfill_report import is_behind
from schemas.documents import FileStat


@pytest.mark.parametrize(
    ("known", "behind"),
    [
        (FileStat(9, 100, 1, 100), False),
        (FileStat(5, 99, 1, 99), True),
        (FileStat(5, 0, 1, -1), True),  # a part of it
        (FileStat(12, 101, 1, 101), False),  # it grew meanwhile
        (FileStat(9, 100, 1, 99), True),  # changed in place, its time set back
        (FileStat(9, 100, 1, 102), False),  # somebody changed its permissions meanwhile
        (FileStat(9, 100, 1, 0), False),  # where change times say nothing
    ],
)
def test_a_transcript_counts_as_soon_as_the_index_has_what_was_there(known: FileStat, *, behind: bool) -> None:
    assert is_behind(known, FileStat(9, 100, 1, 100)) is behind
