"""Effects of notes on a terminal."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from recalld.terminal_text import ProgressLine, printable, printable_answer, printable_json, printable_name, typed_name
from tests.waiting import Clock


def test_text_of_a_note_gives_a_terminal_no_commands():
    assert printable("red \x1b[31m title \x1b]0;x\x07 \x9b2J\r\u202e") == "red �[31m title �]0;x� �2J��"
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


def test_json_on_a_terminal_commands_nothing_and_means_the_same():
    answer = {"pa\x9bth": "a\x9b2J\u202eb\u2066\x7f\udcff\x1b.md", "text": "网关 🦊 é"}
    shown = printable_json(answer, indent=2)
    assert json.loads(shown) == answer
    assert "a\\u009b2J\\u202eb\\u2066\\u007f\\udcff\\u001b.md" in shown
    assert "网关 🦊 é" in shown


@given(st.dictionaries(st.text(), st.text()))
def test_whatever_is_shown_as_json_reads_back_and_has_no_control_character(answer: dict[str, str]):
    shown = printable_json(answer)
    assert json.loads(shown) == answer
    assert not set(shown) & {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x2069)}
    shown.encode()


def test_a_terminal_gets_rate_and_time_left_after_two_seconds_and_a_pipe_the_text() -> None:
    for terminal in (True, False):
        drawn, clock = list[str](), Clock(0)
        line = ProgressLine(lambda text, nl=True, to=drawn: to.append(text), terminal=terminal, clock=clock)
        for seconds, done in ((0, 100), (1, 150), (2, 200), (10, 850)):
            clock.now = seconds
            line.draw(f"{done} read", amount=(done, 1000, "documents"))
        line.end()
        if terminal:
            assert drawn[0] == f"\r[{'#' * 3}{'.' * 27}] 100 read  0 s"
            assert drawn[1].rstrip().endswith("150 read  1 s")
            assert [re.findall(r"\d+", text) for text in drawn[2:4]] == [["200", "50", "16"], ["850", "75", "2"]]
            assert len(drawn[2]) == len(drawn[3]), "nothing of the longer line before stays"
            assert drawn[4].strip("\r ") == ""
        else:
            assert drawn == ["100 read", "150 read", "200 read", "850 read"]
