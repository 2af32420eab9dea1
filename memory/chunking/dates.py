"""Days and months in a question, in the form of dated notes and transcripts, and days in names of files. Pure.

`On April 27th` and `4月27号` become `04-27`, `in May 2023` and `2023年5月` become `2023-05`. That is part of a
dated note's name (`2023-04-27.md`) and of the time before every message of a transcript (`[2023-04-27 09:00]`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
MONTH_NAMES = "|".join([*_MONTHS, *(month[:3] for month in _MONTHS), "sept"])
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_NUMERAL = "一二三四五六七八九"
CHINESE_NUMBER = "[0-9]{1,2}|[二三]?十[一二三四五六七八九]?|[一二三四五六七八九]"

# In the order of trial: a later pattern skips the matches of an earlier one.
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<![\d.]){_YEAR}([-/.])(?P<month>\d{{1,2}})\2(?P<day>\d{{1,2}})(?![\d.]\d)(?!\d)",
        rf"(?<![\d.])(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.{_YEAR}(?!\.?\d)",
        rf"(?:{_YEAR}年)?(?P<month>{CHINESE_NUMBER})月(?P<day>{CHINESE_NUMBER})[日号號]",
        rf"\b(?P<month>{MONTH_NAMES})\b\.?\s+(?:the\s+)?{_DAY}\b(?:,?\s+{_YEAR}\b)?",
        rf"\b{_DAY}\s+(?:of\s+)?(?P<month>{MONTH_NAMES})\b(?:\.?,?\s+(?:of\s+)?{_YEAR}\b)?",
        rf"\b(?P<month>{MONTH_NAMES})\b\.?,?\s+(?:of\s+)?{_YEAR}\b",
        rf"{_YEAR}年(?P<month>{CHINESE_NUMBER})月",
    )
)

#: Characters of every date: a quick search before the patterns.
_HINTS = re.compile(r"\d|月")


def dates_in(text: str) -> Iterator[str]:
    """Yield `MM-DD` or `YYYY-MM-DD` for every day and `YYYY-MM` for every month of a year in the text."""
    if not _HINTS.search(text):
        return
    read: list[tuple[int, int]] = []
    for pattern in _DATES:
        for match in pattern.finditer(text):
            if any(match.start() < end and start < match.end() for start, end in read):
                continue
            numbers = _date(**match.groupdict())
            if numbers is not None:
                read.append(match.span())
                yield numbers


def _date(month: str, day: str | None = None, year: str | None = None) -> str | None:
    number = number_of(month)
    if not 1 <= number <= 12 or (day is not None and not 1 <= number_of(day) <= 31):
        return None
    parts = [year, f"{number:02d}", f"{number_of(day):02d}" if day is not None else None]
    return "-".join(part for part in parts if part is not None)


def number_of(text: str) -> int:
    """Return the number of a month by its name, or of digits or Chinese numerals."""
    if text[0].isalpha() and text.isascii():
        return [month[:3] for month in _MONTHS].index(text[:3].lower()) + 1
    if text.isascii():
        return int(text)
    tens, ten, units = text.rpartition("十")
    unit = _NUMERAL.index(units) + 1 if units else 0
    return unit + (10 * (_NUMERAL.index(tens) + 1 if tens else 1) if ten else 0)


#: 2026-03-01, 2026_03_01 (Logseq's journals) and 20260301, the last of this century and the one before.
_NAME_DATE = re.compile(r"(?<![0-9])([0-9]{4}(?=[-_])|(?:19|20)[0-9]{2})([-_]?)([0-9]{2})\2([0-9]{2})(?![0-9])")


def note_date(path: str) -> date | None:
    """Return the first date of the calendar in a file's name; None when it has none. Longer numbers are no dates."""
    for match in _NAME_DATE.finditer(path, path.rfind("/") + 1):
        with suppress(ValueError):
            return date.fromisoformat("".join(match.group(1, 3, 4)))
    return None
