"""The filter of a flush's answer, for programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.context.flush import SILENT_TOKEN
from recalld.context import SilentFilter

SILENT = ["NO_REPLY", " no_reply\n", "NO_REPLY\nI saved three notes.", "No_Reply.", "\n\nNO_REPLY 好"]
SPOKEN = [
    "",
    " ",
    "NO",
    "NO_REPL",
    "NO_REPLYING is rude",
    "NO_REPLY2",
    "Nothing. NO_REPLY",
    "No, reply!",
    "NO_REPLYé",
    "N",
]


def streamed(pieces: list[str]) -> str:
    filtered = SilentFilter(SILENT_TOKEN)
    return "".join([*map(filtered.feed, pieces), filtered.end()])


@pytest.mark.parametrize("text", SILENT)
def test_a_silent_answer_is_held_back_in_any_split(text: str) -> None:
    assert {streamed([text[:cut], text[cut:]]) for cut in range(len(text) + 1)} == {""}
    assert streamed(list(text)) == ""


@pytest.mark.parametrize("text", SPOKEN)
def test_any_other_answer_passes_unchanged_in_any_split(text: str) -> None:
    assert {streamed([text[:cut], text[cut:]]) for cut in range(len(text) + 1)} == {text}
    assert streamed(list(text)) == text


@given(st.lists(st.text(st.sampled_from("NO_REPLYno reply.\n好İ"), max_size=6)))
def test_the_filter_is_silent_or_changes_nothing_and_does_not_depend_on_the_split(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert streamed(pieces) == streamed([text])
    assert streamed(pieces) in {text, ""}


def test_an_ordinary_answer_is_not_delayed() -> None:
    filtered = SilentFilter(SILENT_TOKEN)
    assert filtered.feed("I ") == "I "
    assert filtered.feed("NO_REPLY") == "NO_REPLY"
