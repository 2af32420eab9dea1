"""What age takes away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from memory.search.ranking.rerank import age_in_days

NOON = datetime(2026, 11, 21, 12).timestamp()  # local time, as notes are dated


@pytest.mark.parametrize(
    ("path", "said_at", "expected"),
    [
        ("memory/2026-11-21.md", None, 0.0),
        ("memory/2026-11-20-slug.md", None, 1.0),
        ("memory/2025-11-21.md", None, 365.0),
        ("memory/2026-11-22.md", None, 0.0),
        ("memory/9999-12-31.md", None, 0.0),
        ("MEMORY.md", None, None),
        ("memory/garden.md", None, None),
        ("sessions/talk.jsonl", None, None),
        ("sessions/talk.jsonl", NOON - 36 * 3600, 1.5),
        ("sessions/talk.jsonl", NOON + 3600, 0.0),
        ("sessions/2020-01-01.jsonl", NOON - 24 * 3600, 1.0),
    ],
)
def test_notes_are_as_old_as_their_date_and_talk_is_as_old_as_its_message(
    path: str, said_at: float | None, expected: float | None
) -> None:
    assert age_in_days(path, said_at, now=NOON) == expected


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        yield
    time.tzset()


def test_days_are_those_of_local_time(far_east: None) -> None:
    early = 1_795_195_800.0  # 2026-11-20 17:30 in London, 2026-11-21 01:30 in Shanghai
    assert age_in_days("memory/2026-11-20.md", None, now=early) == 1.0
    assert age_in_days("memory/2026-11-21.md", None, now=early) == 0.0
