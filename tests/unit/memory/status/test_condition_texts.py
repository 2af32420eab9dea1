"""Every condition has one sentence, made in one place."""

from __future__ import annotations

import pytest

from memory.status.condition_texts import TEXTS, text_of
from schemas.conditions import Condition, ConditionCode


@pytest.mark.parametrize("code", ConditionCode)
def test_every_code_has_a_sentence_that_says_what_to_do(code: ConditionCode) -> None:
    what_happened, semicolon, what_to_do = TEXTS[code].partition("; ")
    assert what_happened
    assert semicolon
    assert what_to_do


def test_the_sentence_shows_the_params() -> None:
    params = {"documents": "18 documents", "reason": "OPENAI_API_KEY is not set", "remedy": "set it"}
    condition = Condition(ConditionCode.VECTORS_UNAVAILABLE, "main", params=params)
    assert text_of(condition) == "18 documents by keyword only: OPENAI_API_KEY is not set; set it"


def test_a_missing_param_is_an_error_of_the_code() -> None:
    with pytest.raises(KeyError):
        text_of(Condition(ConditionCode.VECTORS_UNAVAILABLE, "main"))
