"""Each row of each format's table, and what a person writes that only looks like one."""

from __future__ import annotations

import pytest

from memory.transcripts import claude_code as claude_code_format
from memory.transcripts import codex as codex_format
from memory.transcripts import openclaw as openclaw_format
from memory.transcripts.wrappers import Cut, Wrappers

TABLES = {
    "openclaw": openclaw_format.USER_WRAPPERS,
    "openclaw, assistant": openclaw_format.ASSISTANT_WRAPPERS,
    "claude-code": claude_code_format.USER_WRAPPERS,
    "claude-code, assistant": claude_code_format.ASSISTANT_WRAPPERS,
    "codex": codex_format.USER_WRAPPERS,
    "codex, assistant": codex_format.ASSISTANT_WRAPPERS,
}
WORDS = "Please look.\nIt is <b>broken</b>."


def example(cut: Cut, mark: str) -> tuple[str, str]:
    """A message with the wrapper, and what the person wrote of it."""
    name = mark.split()[0]
    return {
        Cut.ALL: (f"\n{mark}\n", ""),
        Cut.ENVELOPE: (f"<{mark}>\nx\n</{mark}>\n{WORDS}", ""),
        Cut.ELEMENT: (f"{WORDS}\n<{mark} a='b'>\nx\n</{mark}><{mark}>y</{mark}>\n", WORDS),
        Cut.TAGS: (f"<{mark}x>\n{WORDS}\n</{name}>", WORDS),
        Cut.PARAGRAPH: (f"{mark}\nx\ny\n \n{WORDS}", WORDS),
        Cut.BELOW: (f"{WORDS}\n\n{mark}\nx\n\ny", WORDS),
        Cut.ABOVE_REQUEST: (f"{mark}\n\n## x\ny\n\n## My request for Codex:\n{WORDS}", WORDS),
    }[cut]


@pytest.mark.parametrize(
    ("table", "cut", "mark"),
    [
        pytest.param(table, cut, mark, id=f"{name}: {mark[:40]}")
        for name, table in TABLES.items()
        for cut, marks in table.marks.items()
        for mark in marks
        if cut is not Cut.MESSAGE
    ],
)
def test_what_a_wrapper_adds_goes_and_the_words_of_the_person_stay(table: Wrappers, cut: Cut, mark: str) -> None:
    message, words = example(cut, mark)
    assert table.words(message) == words
    for quoted in (f"What does {mark} mean?", f"What does <{mark}> mean?\n{WORDS}"):
        assert table.words(quoted) == quoted
    if cut in (Cut.ELEMENT, Cut.ENVELOPE):
        for written in (f"<{mark}> is there.\n{WORDS}", f"{WORDS}\n<{mark}>\n{WORDS}"):
            assert table.words(written) == written


def test_a_hundred_thousand_opening_tags_that_are_never_closed_are_kept() -> None:
    table = TABLES["claude-code"]
    text = "<system-reminder>\n<bash-stdout>\n" * 100_000
    assert table.words(text) == text.strip()
