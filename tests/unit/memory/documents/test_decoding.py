from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.documents.content import decode


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")))
def test_utf8_comes_back_as_it_was_written(text: str) -> None:
    decoded = decode(text.encode())
    assert decoded.text == text
    assert decoded.notes == ()


@given(st.binary())
def test_any_bytes_become_text_without_nul_that_utf8_can_hold(data: bytes) -> None:
    decoded = decode(data)
    assert "\0" not in decoded.text
    decoded.text.encode()


def test_a_byte_order_mark_is_dropped() -> None:
    assert decode(codecs.BOM_UTF8 + b"# Day\n").text == "# Day\n"
    assert decode(codecs.BOM_UTF8 + b"# Day\n").notes == ()


@pytest.mark.parametrize(("mark", "encoding"), [(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")])
def test_utf16_with_its_mark_is_read(mark: bytes, encoding: str) -> None:
    decoded = decode(mark + "# 今天\r\n".encode(encoding))
    assert decoded.text == "# 今天\r\n"
    assert decoded.notes == ()


def test_invalid_utf8_is_replaced_and_noted() -> None:
    decoded = decode(b"before \xff after")
    assert decoded.text == "before \ufffd after"
    assert decoded.notes == ("invalid UTF-8 was replaced",)


def test_invalid_utf16_is_replaced_and_noted() -> None:
    decoded = decode(codecs.BOM_UTF16_LE + b"a\0b")
    assert decoded.text == "a\ufffd"
    assert decoded.notes == ("invalid UTF-16 was replaced",)


def test_nul_is_replaced_and_noted() -> None:
    decoded = decode(b"a\0b\n")
    assert decoded.text == "a\ufffdb\n"
    assert decoded.notes == ("NUL characters were replaced",)


def test_line_ends_stay_as_they_are() -> None:
    assert decode(b"a\r\nb\rc\n").text == "a\r\nb\rc\n"


def test_a_replacement_character_that_was_written_so_is_not_noted() -> None:
    assert decode("\ufffd".encode()).notes == ()
