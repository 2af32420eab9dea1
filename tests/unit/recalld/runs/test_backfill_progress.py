from __future__ import annotations

import pytest

from memory.store.reader import IndexCounts
from recalld.runs.backfill_report import BackfillProgress
from recalld.runs.progress_bar import Progress


@pytest.fixture
def ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackfillProgress, "seconds", 10.0)


def said(counts: IndexCounts, *, start: IndexCounts, expected: int, embedded: int = 0, failed: int = 0) -> str:
    bar = BackfillProgress(start=start, expected=expected, embedded=lambda: embedded)
    return ", ".join(bar.parts(Progress(3, 8, counts, failed)))


def test_files_chunks_rate_cache_hits_failures_and_time_left_are_those_of_this_run(ten_seconds: None) -> None:
    counts = IndexCounts(chunks=1_100, vectors_ready=1_000, vectors_pending=100)
    start = IndexCounts(chunks=600, vectors_ready=600)
    assert said(counts, start=start, expected=2_000, embedded=150, failed=2) == (
        "files 3/8, chunks 500/2,000, 40/s, 250 from the cache, 100 wait for vectors (keywords work), "
        "2 failed, about 40 s left"
    )


def test_chunks_that_waited_for_their_vectors_already_are_a_part_of_the_work(ten_seconds: None) -> None:
    start = IndexCounts(chunks=600, vectors_ready=200, vectors_pending=400)
    counts = IndexCounts(chunks=600, vectors_ready=300, vectors_pending=300)
    assert said(counts, start=start, expected=400, embedded=100) == (
        "files 3/8, chunks 400/400, 10/s, 300 wait for vectors (keywords work), about 30 s left"
    )


def test_with_keywords_only_nothing_is_said_of_vectors(ten_seconds: None) -> None:
    assert said(IndexCounts(chunks=50), start=IndexCounts(), expected=100) == (
        "files 3/8, chunks 50/100, 5/s, about 10 s left"
    )


def test_more_than_was_estimated_is_not_more_than_everything(ten_seconds: None) -> None:
    assert said(IndexCounts(chunks=120), start=IndexCounts(), expected=100) == "files 3/8, chunks 120/120, 12/s"
