"""Times that a query names as of the asking, and the time that a request is limited to. Pure.

`last week`, `two months ago`, `in March`, 上周, 昨天 and 三月 are spans of whole days in the user's time zone. A week
begins on Monday. A month without a year is the latest that is not in the future.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from memory.chunking.dates import CHINESE_NUMBER, MONTH_NAMES, dates_in, number_of
from memory.chunking.folding import fold
from memory.search.ranking.fusion import Fused
from memory.search.ranking.order import SECONDS_PER_DAY
from memory.store.reader import ChunkRow, Span
from schemas.errors import UserError
from schemas.search import SearchRequest

#: Lift of a time that the query names, and of the day after a named day: people also speak of a day afterwards.
DATED, NEXT_DAY = 0.3, 0.15

#: First character of a unit -> its days. Months and years are those of the calendar.
_DAYS = {"d": 1, "天": 1, **dict.fromkeys("w周週星礼禮", 7), "m": 30, "月": 30, "y": 365, "年": 365}
_COUNTS = ("a", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
#: Word -> number of units that it goes back.
_BACK = {**{word: max(1, count) for count, word in enumerate(_COUNTS)}, "两": 2, "兩": 2, "上上": 2, "前": 2, "大前": 3}
_BACK |= {**dict.fromkeys(("今", "本", "这", "這", "this", "today"), 0), "yesterday": 1, "day before yesterday": 2}
_BACK |= dict.fromkeys(("上", "昨", "去", "last", "past", "previous", "last night"), 1)

_COUNT = rf"(?P<back>[0-9]{{1,3}}|{'|'.join(_COUNTS)})"
_CHINESE_UNIT = "(?P<unit>[个個]?(?:[周週]|星期|礼拜|禮拜)|[个個]月|天|年)"
_CHINESE_COUNT = rf"(?<![0-9])(?P<back>[0-9]{{1,3}}|[两兩]|{CHINESE_NUMBER}){_CHINESE_UNIT}"
# For a folded text with single spaces. Looking behind excludes 马上, 早上, 线上, 日本, 成本, 目前 and 以前.
_ISO_DAY = re.compile(r"(?<![0-9])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")
_ISO_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")
_PATTERNS = (
    rf"(?P<iso>{_ISO_DAY.pattern})",
    rf"\b(?:in|during|since|last|early|mid|late) (?P<month>{MONTH_NAMES})\b(?!\.?,? (?:of )?[0-9])",
    rf"(?<![0-9年个個月/.-])(?P<month>{CHINESE_NUMBER})月(?!份?(?:{CHINESE_NUMBER})[日号號])",
    rf"\b{_COUNT} (?P<unit>day|week|month|year)s? ago\b",
    rf"{_CHINESE_COUNT}[之以]?前",
    rf"\b(?P<rolling>last|past|previous) {_COUNT} ?(?P<unit>day|week|month|year|[dwmy])s?\b",
    rf"(?P<rolling>最近|过去|過去|近)的?{_CHINESE_COUNT}",
    rf"\b(?:last|past|previous) (?P<weekday>{'|'.join(_WEEKDAYS)})\b",
    r"\b(?P<back>this|last|past|previous) (?P<unit>week|month|year)\b",
    r"(?P<back>上上|(?<![马馬早晚线線网網])上|[这這今去]|(?<![日成基])本|(?<![目以之])前)(?P<unit>[个個]?[周週月星礼禮]|年)",
    r"\b(?P<back>today|yesterday|last night|day before yesterday)\b",
    r"(?P<back>大前|(?<![目以之])前|昨|今)[天日晚]",
)
_SPANS = tuple(map(re.compile, _PATTERNS))
_GOES_ON = re.compile(
    r"\b(?:last time|next|continue|latest|current|now|today|recent|so far|update|still|earlier|previous|again"
    r"|step|progress)(?:s|d|ly)?\b|上次|最近|目前|现在|現在|继续|繼續|下一步"
)


@dataclass(frozen=True, slots=True)
class NamedTimes:
    """Spans that a query names, the days after its days as texts have them, and True if it asks to go on."""

    spans: tuple[Span, ...]
    next_days: tuple[str, ...]
    goes_on: bool

    @property
    def is_dated(self) -> bool:
        """Return True if the query names a time."""
        return bool(self.spans or self.next_days)

    def lifts(
        self, rows: Mapping[int, ChunkRow], said_at: Mapping[int, float], coverage: Mapping[int, float]
    ) -> dict[int, float]:
        """Return the lifts of chunks by the times of their last messages, or by the days in notes and their paths.

        In a span, half of the best `coverage` of the query lifts a chunk above all others.
        """
        best = max(coverage.values(), default=0.0) or 1.0
        return {id_: self._lift(row, said_at.get(id_), coverage.get(id_, 0.0) / best) for id_, row in rows.items()}

    def _lift(self, row: ChunkRow, said_at: float | None, share: float) -> float:
        text = f"{row.key.path}\n{row.text}"
        days = _ISO_DAY.findall(text) if self.spans and not row.key.is_transcript else ()
        for span in self.spans:
            if span.start <= (said_at or 0.0) < span.end or any(span.first_day <= day <= span.last_day for day in days):
                return max(DATED, min(1.1, 2 * share))
        return NEXT_DAY if any(day in text for day in self.next_days) else 0.0


def times_in(query: str, *, now: float, zone: tzinfo | None) -> NamedTimes:
    """Return the times that a query names at `now`. A date, or a span that is over, does not ask to go on."""
    days, next_days = tuple(dates_in(query)), []
    for day in days:
        with suppress(ValueError):  # a month, and 31 February
            next_days.append(str(date.fromisoformat(f"2024-{day}"[-10:]) + timedelta(1))[-len(day) :])
    spans = tuple(span for words, span in _spans_in(query, now, zone) if words not in days)
    goes_on = not days and all(span.end > now for span in spans) and _GOES_ON.search(query.lower()) is not None
    return NamedTimes(spans, tuple(next_days), goes_on)


def recent_first(fused: Sequence[Fused], said_at: Mapping[int, float]) -> list[Fused]:
    """Multiply ranks of messages by `0.7 + 0.3 * 2^(-age / 30 days)`; best first, ties by id.

    Age counts from the newest message among the candidates: work goes on from there after a break of any length.
    """
    newest, half_life = max(said_at.values(), default=0.0), 30 * SECONDS_PER_DAY
    factors = {id_: 0.7 + 0.3 * 0.5 ** ((newest - time) / half_life) for id_, time in said_at.items()}
    aged = (replace(candidate, rank=candidate.rank * factors.get(candidate.id, 1.0)) for candidate in fused)
    return sorted(aged, key=lambda candidate: (-candidate.rank, candidate.id))


def zone_and_span(request: SearchRequest, now: float) -> tuple[tzinfo | None, Span | None]:
    """Return the time zone of a request and the span that it is limited to. Raise UserError for an unknown one."""
    try:
        zone = ZoneInfo(request.timezone) if request.timezone else None
    except (KeyError, ValueError, OSError):
        raise UserError(f"unknown time zone {request.timezone!r}; give an IANA name, such as Europe/Berlin") from None
    start, end = (named_span(text, now, zone) if text else Span() for text in (request.since, request.until))
    if start.start >= end.end:
        raise UserError("since is after until; swap them")
    span = Span(start.start, end.end, start.first_day, end.last_day)
    return zone, span if span != Span() else None


def named_span(text: str, now: float, zone: tzinfo | None = None) -> Span:
    """Return the time that a text is, in whole days unless it names an hour. Raise UserError for any other text."""
    plain = " ".join(fold(text).split())
    if _ISO_MONTH.fullmatch(plain):
        with suppress(ValueError):
            first = date.fromisoformat(f"{plain}-01")
            return _days(first, (first + timedelta(31)).replace(day=1), zone)
    for phrase in (plain, f"last {plain}", f"in {plain}"):
        for words, span in _spans_in(phrase, now, zone):
            if words == phrase:
                return span
    try:
        moment = datetime.fromisoformat(text.strip())
        stamp = (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp()
        day = str(datetime.fromtimestamp(stamp, zone).date())
    except (ValueError, OverflowError):
        forms = "a date (2026-11-23), a month (2026-11), a time (2026-11-23T09:00), days (7d) or words (last week)"
        raise UserError(f"{text!r} is no time that recalld understands; give {forms}", exit_code=2) from None
    return Span(stamp, stamp, day, day)


def _spans_in(text: str, now: float, zone: tzinfo | None) -> Iterator[tuple[str, Span]]:
    """Yield the words of a text that name a time, and their spans."""
    text, today = " ".join(fold(text).split()), datetime.fromtimestamp(now, zone).date()
    for match in (match for pattern in _SPANS for match in pattern.finditer(text)):
        with suppress(ValueError, OverflowError):  # 31 February, or a thousand years ago
            first, end = _period(today, match.groupdict())
            yield match.group(), _days(first, end, zone)


def _days(first: date, end: date, zone: tzinfo | None) -> Span:
    start, stop = (datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() for day in (first, end))
    return Span(start, stop, str(first), str(end - timedelta(1)))


def _period(today: date, words: Mapping[str, str]) -> tuple[date, date]:
    """Return the first day of a match with these groups, and the day after the last one."""
    days, back = _DAYS[words.get("unit", "d").lstrip("个個")[0]], words.get("back", "0")
    count = _BACK[back] if back in _BACK else number_of(back)
    if "month" in words:
        days, count = 30, (today.month - number_of(words["month"])) % 12
    elif "weekday" in words:
        count = (today.weekday() - _WEEKDAYS.index(words["weekday"]) - 1) % 7 + 1
    elif "rolling" in words:
        return today - timedelta(days * count), today + timedelta(1)
    if months := days // 30:
        first = (today.year * 12 + today.month - 1) // months * months - months * count
        return date(first // 12, first % 12 + 1, 1), date((first + months) // 12, (first + months) % 12 + 1, 1)
    week_begins = timedelta(today.weekday() if days == len(_WEEKDAYS) else 0)
    first_day = date.fromisoformat(words["iso"]) if "iso" in words else today - week_begins - timedelta(days * count)
    return first_day, first_day + timedelta(days)
