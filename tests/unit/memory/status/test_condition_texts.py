"""Every condition has one sentence, made in one place. The only test that reads English."""

from __future__ import annotations

import string
from typing import Any

import pytest

from memory.status.condition_texts import TEXTS, duration, part_of, remedy_of, text_of, what_happened
from schemas.conditions import Condition, ConditionCode, Param


def condition(code: ConditionCode, subject: str = "it", **params: Param) -> Condition:
    return Condition(code, subject, params=params)


def any_condition(code: ConditionCode) -> Condition:
    """A condition with a value for every param that its words show."""
    text = TEXTS[code]
    fields = [
        (name, spec)
        for template in (text.happened, text.remedy, text.part)
        for _, name, spec, _ in string.Formatter().parse(template)
        if name
    ]
    params: dict[str, Any] = {
        name: "FILE_IS_LINK".lower() if spec == "kind" else 2.0 if spec else "x" for name, spec in fields
    }
    return Condition(code, "it", params={"pid": 7, **params})


@pytest.mark.parametrize("code", ConditionCode)
def test_every_code_has_words_for_all_that_it_shows(code: ConditionCode) -> None:
    found = any_condition(code)
    assert what_happened(found)
    assert part_of(found)
    assert text_of(found).startswith(what_happened(found))


def test_the_sentence_shows_the_params() -> None:
    params: dict[str, Param] = {"documents": "18 documents", "reason": "OPENAI_API_KEY is not set", "remedy": "set it"}
    found = Condition(ConditionCode.VECTORS_UNAVAILABLE, "main", params=params)
    assert text_of(found) == "18 documents by keyword only: OPENAI_API_KEY is not set; set it"
    assert remedy_of(found) == "set it"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (condition(ConditionCode.PROCESS_GONE, "work", pid=7), "process 7 exited unexpectedly, and documents wait"),
        (condition(ConditionCode.PROCESS_STOPPED, "watch", pid=7), "resume it with `kill -CONT 7`"),
        (condition(ConditionCode.PROCESS_SILENT, "serve", pid=7, host="there"), "process 7 on there does not respond"),
        (condition(ConditionCode.PROCESS_SILENT, "serve", pid=7, host="there"), "its log on there"),
        (condition(ConditionCode.VECTORS_STUCK, chunks=1, minutes=5), "1 chunk waits for its vector, and none arrived"),
        (condition(ConditionCode.VECTORS_STUCK, chunks=1200, minutes=5), "1,200 chunks wait for their vectors"),
        (
            condition(ConditionCode.FOLDER_EMPTIED, "/n", notes=1),
            "/n is gone or empty, and the index still has 1 note from it",
        ),
        (condition(ConditionCode.MORE_FILES, count=1080, kind="file_is_link"), "and 1,080 more symbolic links"),
        (
            condition(ConditionCode.QUERY_CUT, characters=5000, searched=2000),
            "only the first 2,000",
        ),
        (condition(ConditionCode.DOCUMENTS_WAIT, documents=3, seconds=95.0), "the oldest for 1 min 35 s"),
        (
            condition(ConditionCode.SETTINGS_INVALID, "/r.toml", changed_at=1.0, read_at=0.5, commands="`recalld up`"),
            "was changed at 1970-01-01",
        ),
    ],
)
def test_values_are_shown_as_people_say_them(found: Condition, said: str) -> None:
    assert said in text_of(found)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (95, "1 min 35 s"), (120, "2 min"), (3700, "1 h 1 min"), (90_000, "1 d 1 h")]
)
def test_durations_are_shown_short(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
