"""Each row of each format's table, and what a person writes that only looks like one."""

from __future__ import annotations

import pytest

from memory.transcripts import claude_code as claude_code_format
from memory.transcripts import codex as codex_format
from memory.transcripts import openclaw as openclaw_format
from memory.transcripts.wrappers import Cut, Wrapper, Wrappers

TABLES = {
    "openclaw": openclaw_format.USER_WRAPPERS,
    "openclaw, assistant": openclaw_format.ASSISTANT_WRAPPERS,
    "claude-code": claude_code_format.USER_WRAPPERS,
    "claude-code, assistant": claude_code_format.ASSISTANT_WRAPPERS,
    "codex": codex_format.USER_WRAPPERS,
    "codex, assistant": codex_format.ASSISTANT_WRAPPERS,
}
WORDS = "Please look.\nIt is <b>broken</b>."


def example(row: Wrapper) -> tuple[str, str]:
    """A message with the wrapper, and what the person wrote of it."""
    mark = row.mark
    name = mark.split()[0]
    return {
        Cut.ALL: (f"\n{mark}\n", ""),
        Cut.ENVELOPE: (f"<{mark}>\nx\n</{mark}>\n{WORDS}", ""),
        Cut.ELEMENT: (f"{WORDS}\n<{mark} a='b'>\nx\n</{mark}><{mark}>y</{mark}>\n", WORDS),
        Cut.TAGS: (f"<{mark}x>\n{WORDS}\n</{name}>", WORDS),
        Cut.PARAGRAPH: (f"{mark}\nx\ny\n \n{WORDS}", WORDS),
        Cut.BELOW: (f"{WORDS}\n\n{mark}\nx\n\ny", WORDS),
        Cut.ABOVE_REQUEST: (f"{mark}\n\n## x\ny\n\n## My request for Codex:\n{WORDS}", WORDS),
    }[row.cut]


ROWS = [
    pytest.param(table, row, id=f"{name}: {row.mark[:40]}")
    for name, table in TABLES.items()
    for row in table.rows
    if row.cut is not Cut.MESSAGE
]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_what_a_wrapper_adds_goes_and_the_words_stay(table: Wrappers, row: Wrapper) -> None:
    message, words = example(row)
    assert table.words(message) == words


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_person_who_quotes_a_mark_inside_a_sentence_keeps_it(table: Wrappers, row: Wrapper) -> None:
    for quoted in (f"What does {row.mark} mean?", f"What does <{row.mark}> mean?\n{WORDS}"):
        assert table.words(quoted) == quoted


@pytest.mark.parametrize(
    ("table", "row"),
    [each for each in ROWS if each.values[1].cut in (Cut.ELEMENT, Cut.ENVELOPE)],  # type: ignore[union-attr]
)
def test_a_person_who_writes_an_opening_tag_keeps_the_rest(table: Wrappers, row: Wrapper) -> None:
    for written in (f"<{row.mark}> is there.\n{WORDS}", f"{WORDS}\n<{row.mark}>\n{WORDS}"):
        assert table.words(written) == written


def test_a_hundred_thousand_opening_tags_that_are_never_closed_are_kept() -> None:
    table = TABLES["claude-code"]
    text = "<system-reminder>\n<bash-stdout>\n" * 100_000
    assert table.words(text) == text.strip()
