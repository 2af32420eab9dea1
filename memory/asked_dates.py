"""Days and months that a question names, as dated notes and transcripts write them. Pure.

`On April 27th` and `4月27号` become `04-27`, `in May 2023` and `2023年5月` become `2023-05`: part of the name of a
dated note (`2023-04-27.md`) and of the time before every message of a transcript (`[2023-04-27 09:00]`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_NAMES = "|".join([*_MONTHS, *(month[:3] for month in _MONTHS), "sept"])
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?"

_MONTH_DAY = re.compile(rf"\b({_NAMES})\b\.?\s+(?:the\s+)?{_DAY}\b", re.IGNORECASE)
_DAY_MONTH = re.compile(rf"\b{_DAY}\s+(?:of\s+)?({_NAMES})\b", re.IGNORECASE)
_MONTH_YEAR = re.compile(rf"\b({_NAMES})\b\.?,?\s+(?:of\s+)?((?:19|20)\d\d)\b", re.IGNORECASE)

_NUMERAL = "一二三四五六七八九"
_CHINESE_NUMBER = "[0-9]{1,2}|[二三]?十[一二三四五六七八九]?|[一二三四五六七八九]"
_CHINESE_DAY = re.compile(f"({_CHINESE_NUMBER})月({_CHINESE_NUMBER})[日号號]")
_WRITTEN = re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])(?![0-9])")
_CHINESE_MONTH = re.compile(f"((?:19|20)[0-9]{{2}})年({_CHINESE_NUMBER})月")

#: Without one of these there is no date; looking costs less than the expressions.
_HINTS = re.compile(r"\d|月")


def dates_in(text: str) -> Iterator[str]:
    """Yield `MM-DD` for every day and `YYYY-MM` for every month of a year that the text names.

    A date that is written so already is yielded as it is.
    """
    if not _HINTS.search(text):
        return
    for match in _WRITTEN.finditer(text):
        yield match[0]
    for match in _MONTH_DAY.finditer(text):
        yield from _day(_month(match[1]), int(match[2]))
    for match in _DAY_MONTH.finditer(text):
        yield from _day(_month(match[2]), int(match[1]))
    for match in _CHINESE_DAY.finditer(text):
        yield from _day(_number(match[1]), _number(match[2]))
    for match in _MONTH_YEAR.finditer(text):
        yield f"{match[2]}-{_month(match[1]):02d}"
    for match in _CHINESE_MONTH.finditer(text):
        if 1 <= (month := _number(match[2])) <= 12:
            yield f"{match[1]}-{month:02d}"


def _day(month: int, day: int) -> Iterator[str]:
    if 1 <= month <= 12 and 1 <= day <= 31:
        yield f"{month:02d}-{day:02d}"


def _month(name: str) -> int:
    return [month[:3] for month in _MONTHS].index(name[:3].lower()) + 1


def _number(text: str) -> int:
    if text.isascii():
        return int(text)
    tens, ten, ones = text.rpartition("十")
    unit = _NUMERAL.index(ones) + 1 if ones else 0
    return unit + (10 * (_NUMERAL.index(tens) + 1 if tens else 1) if ten else 0)
