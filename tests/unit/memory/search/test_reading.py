"""Reading a document page by page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memory.search.get import DEFAULT_LINES, MAX_CHARACTERS, lines_of, page

DOCUMENTS = st.lists(st.text(st.characters(exclude_characters="\r\n"), max_size=20), max_size=40)


@given(lines=DOCUMENTS, ending=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), count=st.integers(1, 9))
def test_pages_joined_are_the_document(lines: list[str], ending: str, last: bool, count: int):
    text = ending.join(lines) + (ending if last else "")
    expected = lines if last and lines else lines_of(text)

    pages, start = [], 1
    while True:
        answer = page("a.md", text, first=start, count=count)
        assert answer.total_lines == len(expected)
        assert answer.from_ == start
        pages += answer.text.split("\n") if answer.lines else []
        if answer.next_from is None:
            assert not answer.truncated
            break
        assert answer.truncated
        start = answer.next_from
    assert pages == expected


def test_the_last_line_counts_with_and_without_an_end():
    assert page("a", "one\ntwo", first=None, count=None).total_lines == 2
    assert page("a", "one\ntwo\n", first=None, count=None).total_lines == 2
    assert page("a", "one\r\ntwo\r\n", first=2, count=None).text == "two"
    empty = page("a", "", first=None, count=None)
    assert (empty.text, empty.lines, empty.total_lines, empty.truncated) == ("", 0, 0, False)


def test_a_page_has_at_most_120_lines_when_nobody_says_how_many():
    text = "".join(f"line {n}\n" for n in range(1, 301))

    first = page("a", text, first=None, count=None)
    assert (first.lines, first.truncated, first.next_from) == (DEFAULT_LINES, True, 121)
    assert page("a", text, first=None, count=300).lines == 300


def test_a_page_stops_before_it_gets_too_long():
    text = "".join(f"{'x' * 999}\n" for _ in range(30))

    answer = page("a", text, first=5, count=30)
    assert len(answer.text) <= MAX_CHARACTERS
    assert answer.lines == 12
    assert answer.next_from == 17


def test_one_line_longer_than_a_page_is_cut_and_that_is_said():
    answer = page("a", "first\n" + "word " * 10_000 + "\nlast", first=2, count=1)

    assert len(answer.text) <= MAX_CHARACTERS
    assert answer.truncated
    assert answer.next_from == 3
    assert answer.warning is not None
    assert "line 2 has 50000 characters" in answer.warning


def test_past_the_end_there_is_nothing():
    answer = page("a", "one\ntwo\n", first=9, count=None)

    assert (answer.text, answer.lines, answer.total_lines, answer.from_) == ("", 0, 2, 9)
    assert not answer.truncated
