from __future__ import annotations

import pytest

from memory.store.reader import IndexCounts
from recalld.runs.progress_bar import Progress

WAITED = IndexCounts(chunks=600, vectors_ready=200, vectors_pending=400)


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (
            Progress(
                *(3, 8, IndexCounts(chunks=1_100, vectors_ready=1_000, vectors_pending=100)),
                start=IndexCounts(chunks=600, vectors_ready=600),
                expected=2_000,
                embedded=150,
                failed=2,
                jobs="1 batch job at openai 0/7",
                waits_for="5 documents",
            ),
            (
                "documents 3/8  chunks 500/2,000  40/s  250 from the cache  100 wait for vectors (keywords work)  "
                "2 failed  about 40 s left  1 batch job at openai 0/7  waits for 5 documents"
            ),
        ),
        # Chunks that waited for their vectors already are a part of the work.
        (
            Progress(
                0,
                0,
                IndexCounts(chunks=600, vectors_ready=300, vectors_pending=300),
                WAITED,
                expected=400,
                embedded=100,
            ),
            "documents 0/0  chunks 400/400  10/s  300 wait for vectors (keywords work)  about 30 s left",
        ),
        # Keywords only.
        (Progress(3, 8, IndexCounts(chunks=50), expected=100), "documents 3/8  chunks 50/100  5/s  about 10 s left"),
        # More than was estimated is not more than everything.
        (Progress(3, 8, IndexCounts(chunks=120), expected=100), "documents 3/8  chunks 120/120  12/s"),
    ],
)
def test_the_line_has_the_figures_of_this_run(progress: Progress, line: str) -> None:
    assert progress.line(10.0) == line
