"""Times in a question and in a request, as of Monday, 23 November 2026."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from memory.search.ranking.fusion import Fused
from memory.search.ranking.times import DATED, NEXT_DAY, recent_first, times_in, zone_and_span
from memory.store.reader import ChunkRow, Span
from schemas.documents import DocumentKey
from schemas.errors import UserError
from schemas.search import SearchRequest

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 23, 0, 30, tzinfo=BERLIN).timestamp()


def days_of(query: str, zone: ZoneInfo = BERLIN) -> list[tuple[str, str]]:
    return [(span.first_day[2:], span.last_day[2:]) for span in times_in(query, now=NOW, zone=zone).spans]


#: First and last day -> questions and words that name them.
SPANS = {
    ("26-11-16", "26-11-22"): ("what did we decide last week", "a week ago", "上周我们决定了什么"),
    ("26-11-22", "26-11-22"): ("Yesterday's standup", "昨天做了什么"),
    ("26-11-21", "26-11-21"): ("the day before  yesterday", "前天"),
    ("26-11-20", "26-11-20"): ("three days ago", "last friday", "３天前"),
    ("26-11-16", "26-11-16"): ("last Monday",),
    ("26-09-01", "26-09-30"): ("two months ago", "两个月前"),
    ("26-03-01", "26-03-31"): ("what happened in March?", "三月的计划"),
    ("25-12-01", "25-12-31"): ("in December", "十二月份"),
    ("26-11-01", "26-11-30"): ("in November", "this month"),
    ("26-10-01", "26-10-31"): ("上个月",),
    ("25-01-01", "25-12-31"): ("last year", "去年"),
    ("26-11-20", "26-11-23"): ("the last 3 days",),
    ("26-11-09", "26-11-15"): ("上上个星期",),
    ("26-11-09", "26-11-23"): ("最近两周",),
}
OTHER = "may we march|in May 2025|march the 3rd|the last mile|马上开早上周会|日本周边|目前天气|三个月|5月3日|2026-11-18"
#: First and last day -> limits of a request.
LIMITS = {
    ("2026-11-18", "2026-11-18"): ("2026-11-18", "2026-11-18T09:00"),
    ("2026-11-16", "2026-11-22"): (" Last   week ", "上周"),
    ("2026-11-16", "2026-11-23"): ("7d",),
    ("2026-11-09", "2026-11-23"): ("2W",),
    ("2026-03-01", "2026-03-31"): ("march",),
    ("2026-11-20", "2026-11-20"): ("friday",),
    ("2026-11-23", "2026-11-23"): ("today",),
}


@pytest.mark.parametrize(("span", "query"), [(span, query) for span, queries in SPANS.items() for query in queries])
def test_a_question_names_a_span_as_of_its_asking(span: tuple[str, str], query: str) -> None:
    assert days_of(query) == [span]


@pytest.mark.parametrize("query", OTHER.split("|"))
def test_other_words_name_no_span(query: str) -> None:
    assert days_of(query) == []


def test_days_are_those_of_the_time_zone() -> None:
    assert days_of("yesterday", ZoneInfo("America/New_York")) == [("26-11-21", "26-11-21")]
    span = times_in("yesterday", now=NOW, zone=BERLIN).spans[0]
    assert (span.start, span.end) == (NOW - 24.5 * 3600, NOW - 0.5 * 3600)


def span_of(timezone: str = "Europe/Berlin", **limits: str) -> Span:
    _, span = zone_and_span(SearchRequest(query="q", timezone=timezone, **limits), NOW)
    assert span is not None
    return span


def lift_of(query: str, path: str, text: str = "", said_at: float | None = None, *, coverage: float = 0.0) -> float:
    row = ChunkRow(1, DocumentKey("sessions" if path.endswith(".jsonl") else "memory", path), 0, 1, 1, text)
    times = {1: said_at} if said_at is not None else {}
    return times_in(query, now=NOW, zone=BERLIN).lifts({1: row}, times, {1: coverage, 2: 0.8})[1]


def test_passages_of_a_named_span_are_lifted_by_message_note_and_heading() -> None:
    assert lift_of("last week", "sessions/a.jsonl", said_at=NOW - 5 * 86_400) == DATED
    assert lift_of("last week", "sessions/a.jsonl", said_at=NOW - 9 * 86_400) == 0
    assert lift_of("last week", "memory/2026-11-18.md") == DATED
    assert lift_of("last week", "memory/log.md", "# 2026-11-18\nThree retries.") == DATED
    assert lift_of("last week", "memory/2026-11-23.md", "# 2026-11-09") == 0
    # Half of the best coverage is enough to stand before every passage of another time.
    lifts = [lift_of("last week", "memory/2026-11-18.md", coverage=coverage) for coverage in (0.4, 0.3, 0.0)]
    assert lifts == [1, pytest.approx(0.75), DATED]
    # The label of a message is in UTC.
    assert lift_of("yesterday", "sessions/a.jsonl", "[2026-11-22 23:10] User: hi", NOW - 60) == 0


def test_the_day_after_a_named_day_is_lifted_by_half() -> None:
    assert lift_of("on 14 October", "memory/2026-10-15.md") == NEXT_DAY == DATED / 2
    assert lift_of("on 31 October", "sessions/a.jsonl", "[2025-11-01 09:00] User: yes") == NEXT_DAY
    assert lift_of("2026-12-31", "memory/2027-01-01.md") == NEXT_DAY
    assert lift_of("in October 2026", "memory/2026-11-01.md") == lift_of("31 February", "memory/a.md") == 0


def test_a_question_with_such_a_word_and_without_a_date_asks_to_go_on() -> None:
    words = ("What is the next step?", "so far", "Continue, please", "recently", "上次说到哪", "下一步", "today")
    others = ("the next step on 14 October", "progress last week", "which port", "knowing", "昨天的进展")
    asking = [query for query in words + others if times_in(query, now=NOW, zone=BERLIN).goes_on]
    assert asking == [*words]


def test_ranks_of_older_messages_sink_and_those_of_notes_do_not() -> None:
    fused = [Fused(id_, 1.0, 0.0, None, 0.5) for id_ in (1, 2, 3)]
    newest = 1_000_000_000.0
    ranks = {item.id: item.rank for item in recent_first(fused, {1: newest - 30 * 86_400, 2: newest})}
    assert list(ranks.items()) == [(2, 1.0), (3, 1.0), (1, pytest.approx(0.85))]


@pytest.mark.parametrize(("days", "text"), [(days, text) for days, texts in LIMITS.items() for text in texts])
def test_a_request_is_limited_by_dates_and_words(days: tuple[str, str], text: str) -> None:
    since, until = span_of(since=text), span_of(until=text)
    assert (since.first_day, until.last_day) == days
    assert (since.end, until.start) == (Span().end, Span().start)


def test_a_time_of_day_counts_in_its_own_zone_or_that_of_the_request() -> None:
    span = span_of(since="2026-11-18T09:00", until="2026-11-18T09:00Z", timezone="Asia/Tokyo")
    assert span.end - span.start == 9 * 3600


@pytest.mark.parametrize(
    "text", ["someday", "7d before launch", "march x", "2026-13-01", "last", "10000-01-01", "x" * 64]
)
def test_an_unknown_time_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(UserError, match=text):
        span_of(since=text)


@pytest.mark.parametrize("name", ["Europe/Atlantis", "../../etc/passwd", "/etc/passwd", "America", "a\0b"])
def test_an_unknown_time_zone_and_swapped_times_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="time zone"):
        span_of(timezone=name)
    with pytest.raises(UserError, match="swap"):
        span_of(since="today", until="yesterday")
    assert zone_and_span(SearchRequest(query="q", until=""), NOW) == (None, None)
