"""What notes may do to a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recalld.terminal_text import printable, printable_answer, printable_name, typed_name


def test_text_of_a_note_gives_a_terminal_no_commands():
    assert (
        printable("red \x1b[31m title \x1b]0;x\x07 \x9b2J back\r now\u202e") == "red �[31m title �]0;x� �2J back� now�"
    )
    assert printable("one\r\ntwo\n\tthree 网关 🦊 é") == "one\ntwo\n\tthree 网关 🦊 é"


def test_a_name_cannot_forge_a_line():
    assert printable_name("memory/a\nMEMORY.md:1-9.md") == "memory/a\\nMEMORY.md:1-9.md"


def test_every_text_of_an_answer_is_shown_in_a_line_of_its_own():
    answer = {"agents": [{"path": "a\n\x1b[2J.md", "count": 1, "none": None, "lost": "\udcff\ud800"}]}
    assert printable_answer(answer) == {
        "agents": [{"path": "a\\n\\x1b[2J.md", "count": 1, "none": None, "lost": "\\xff\\ud800"}]
    }


@given(st.text())
def test_whatever_is_shown_has_no_control_character(text: str):
    assert not {"\x1b", "\x07", "\x9b", "\r"} & set(printable(text))
    printable(text).encode()


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\")))
def test_a_name_that_is_typed_as_it_was_shown_is_the_name(name: str):
    shown = printable_name(name)
    assert typed_name(shown) == name
    assert not {"\x1b", "\x07", "\x9b", "\r", "\n", "\u202e"} & set(shown)
