"""Pages of documents: lines of a note, and what was said on lines of a transcript."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.search.get import MAX_CHARACTERS, indexed_page, lines_of, message_texts, page
from schemas.documents import DocumentKey
from schemas.search import GetAnswer
from tests.storing import TemporaryStore, chunk, piece, position
from tests.transcript_files import FORMATS, UNSAID, conversation, damaged, message_line, transcript
from tests.transcript_folds import raw_lines

DOCUMENTS = st.lists(st.text(st.characters(exclude_characters="\r\n"), max_size=20), max_size=40)


def note(text: str, first: int | None = None, count: int | None = None) -> GetAnswer:
    return page("a.md", lines_of(text), first=first, count=count, text_of=lambda line, _: line)


def talk(data: bytes, first: int = 1, count: int = 10_000) -> list[str]:
    """The lines of a transcript, from as many pages as it takes."""
    shown: list[str] = []
    while True:
        answer = page("t", raw_lines(data), first=first, count=count, text_of=message_texts(None, str))
        shown += answer.text.split("\n") if answer.lines else []
        count -= answer.lines
        if answer.next_from is None or not count:
            return shown
        first = answer.next_from


@given(lines=DOCUMENTS, ending=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), count=st.integers(1, 9))
def test_pages_joined_are_the_document(lines: list[str], ending: str, last: bool, count: int):
    text = ending.join(lines) + (ending if last else "")
    expected = lines if last and lines else lines_of(text)

    pages, start = [], 1
    while True:
        answer = note(text, start, count)
        assert (answer.total_lines, answer.from_) == (len(expected), start)
        pages += answer.text.split("\n") if answer.lines else []
        assert answer.truncated == (answer.next_from is not None)
        if answer.next_from is None:
            break
        start = answer.next_from
    assert pages == expected


LONG = "first\n" + "word " * 10_000 + "\nlast"
MANY = "".join(f"line {number}\n" for number in range(1, 301))
WIDE = "".join(f"{'x' * 999}\n" for _ in range(30))


@pytest.mark.parametrize(
    ("text", "first", "count", "lines", "total", "following"),
    [
        pytest.param("one\ntwo", None, None, 2, 2, None, id="the last line counts without an end"),
        pytest.param("one\r\ntwo\r\n", 2, None, 1, 2, None, id="the last line counts with an end"),
        pytest.param("", None, None, 0, 0, None, id="an empty note has no line"),
        pytest.param("one\ntwo\n", 9, None, 0, 2, None, id="past the end there is nothing"),
        pytest.param(MANY, None, None, 120, 300, 121, id="a page has 120 lines by itself"),
        pytest.param(MANY, None, 300, 300, 300, None, id="and as many as are asked for"),
        pytest.param(WIDE, 5, 30, 12, 30, 17, id="it stops before it gets too long"),
        pytest.param(LONG, 2, 1, 1, 3, 3, id="a line longer than a page is cut"),
    ],
)
def test_a_page_of_a_note(text: str, first: int | None, count: int | None, lines: int, total: int, following):
    answer = note(text, first, count)
    assert (answer.lines, answer.total_lines, answer.next_from) == (lines, total, following)
    assert answer.from_ == (first or 1)
    assert len(answer.text) <= MAX_CHARACTERS
    cut = "line 2 has 50000 characters" in (answer.warning or "")
    assert cut is (text is LONG)
    assert answer.truncated is (cut or following is not None)


@pytest.mark.parametrize("name", FORMATS)
def test_a_line_of_a_transcript_shows_what_was_said_in_that_line_of_the_file(name: str):
    data = damaged(transcript(name))
    shown = talk(data)
    assert len(shown) == len(raw_lines(data))
    assert [line for line in shown if line] == [
        f"[{said.at:%Y-%m-%d %H:%M}] {'User' if said.role == 'user' else 'Assistant'}: {' '.join(said.text.split())}"
        for said in conversation()
    ]
    assert UNSAID not in "".join(shown)


def test_odd_lines_of_a_transcript():
    line, half = message_line("plain", "user", "hi"), message_line("plain", "user", "open\nsesame")
    assert [bool(text) for text in talk(line + line[:-1])] == [True, True], "an unterminated line is a line"
    assert [bool(text) for text in talk(line + line[:-5])] == [True, False], "half of a line says nothing"
    assert talk(line, first=5) == talk(b"") == []
    hidden = message_texts(None, lambda text: text.replace("sesame", "***"))
    assert hidden(raw_lines(half)[0], True) == "[2026-02-03 09:00] User: open ***"
    too_long = replace(raw_lines(line)[0], data=None, size=5_000_000)
    assert "5 MB" in hidden(too_long, True)


def test_of_a_transcript_whose_file_is_gone_what_the_index_kept_is_shown():
    key = DocumentKey("sessions", "sessions/talk.jsonl")
    store = TemporaryStore()
    texts = ["User: one\nAssistant: two", "Assistant: two\nUser: three\nwith a second line", "User: four"]
    spans = [(2, 4), (4, 7), (9, 9)]
    chunks = [
        replace(chunk(text, ordinal), start_line=first, end_line=last)
        for ordinal, (text, (first, last)) in enumerate(zip(texts, spans, strict=True))
    ]
    store.write([piece(*chunks, continues=None, to=position(9), of=key)])

    def kept(first: int | None = None, count: int | None = None) -> GetAnswer:
        answer = indexed_page(store, key, first=first, count=count)
        assert answer is not None
        return answer

    whole = kept()
    assert whole.text == "User: one\nAssistant: two\nUser: three\nwith a second line\nUser: four"
    assert (whole.total_lines, whole.truncated) == (9, False)
    assert "gone" in (whole.warning or "")
    part = kept(4, 2)
    assert "User: four" not in part.text
    assert (part.from_, part.lines, part.next_from) == (4, 2, 8)
    assert kept(20).text == ""
    assert indexed_page(store, replace(key, path="sessions/other.jsonl"), first=None, count=None) is None
