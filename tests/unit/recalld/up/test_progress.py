"""What `recalld up` says of how far indexing is."""

from __future__ import annotations

import pytest

from recalld.up.progress import Sum, line


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (Sum(files=4, vectors_ready=6), "up to date: 4 documents, 6 chunks with vectors"),
        (Sum(files=1, vectors_ready=1), "up to date: 1 document, 1 chunk with vectors"),
        (Sum(files=2, embeds=False), "up to date: 2 documents, by keyword only"),
        (
            Sum(files=4, vectors_ready=6, failed=3),
            "up to date: 4 documents, 6 chunks with vectors; 3 failed: see `recalld dead list`",
        ),
        (
            Sum(files=2, failed=1, behind=5),
            "2 documents searchable by keyword, 5 to go; 1 failed: see `recalld dead list`",
        ),
        (
            Sum(files=1, behind=1, uncounted=1),
            "1 document searchable by keyword, 1 to go; 1 agent is not counted: see `recalld status`",
        ),
        (
            Sum(files=2, vectors_ready=3, lacking=5, eta_seconds=10.0),
            "2 documents searchable by keyword; vectors 3 of 8, about 10 s left",
        ),
        (
            Sum(files=2, lacking=5, eta_seconds=10.0, rate=0.41),
            "2 documents searchable by keyword; vectors 0 of 5, 0.4 a second, about 10 s left",
        ),
    ],
)
def test_progress_is_one_line_with_what_failed_and_what_is_not_counted(known: Sum, said: str) -> None:
    assert line(known) == said
