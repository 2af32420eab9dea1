from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.content import decode


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")))
def test_utf8_comes_back_as_it_was_written(text: str) -> None:
    assert decode(text.encode()) == (text, ())


@given(st.binary())
def test_any_bytes_become_text_without_nul_that_utf8_can_hold(data: bytes) -> None:
    text, _ = decode(data)
    assert "\0" not in text
    text.encode()


@pytest.mark.parametrize(
    ("data", "text", "notes"),
    [
        (codecs.BOM_UTF8 + b"# Day\n", "# Day\n", ()),
        (codecs.BOM_UTF16_LE + "# 今天\r\n".encode("utf-16-le"), "# 今天\r\n", ()),
        (codecs.BOM_UTF16_BE + "# 今天\r\n".encode("utf-16-be"), "# 今天\r\n", ()),
        (b"before \xff after", "before \ufffd after", ("invalid UTF-8 was replaced",)),
        (codecs.BOM_UTF16_LE + b"a\0b", "a\ufffd", ("invalid UTF-16 was replaced",)),
        (b"a\0b\n", "a\ufffdb\n", ("NUL characters were replaced",)),
        (b"a\r\nb\rc\n", "a\r\nb\rc\n", ()),
        ("\ufffd".encode(), "\ufffd", ()),
    ],
)
def test_marks_go_line_ends_stay_and_replacements_are_noted(data: bytes, text: str, notes: tuple[str, ...]) -> None:
    assert decode(data) == (text, notes)
