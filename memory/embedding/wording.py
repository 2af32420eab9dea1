"""Texts made fit to be sent: what no provider can take is replaced, what is too long is cut."""

from __future__ import annotations

import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace lone surrogates (no UTF-8 can hold them) by U+FFFD and NUL (it ends a C string) by a space."""
    if "\0" in text:
        text = text.replace("\0", " ")
    if not text.isascii():
        text = _LONE_SURROGATE.sub("\ufffd", text)
    return text


def cut_to_bytes(text: str, limit: int) -> str:
    """The longest start of a clean text that takes at most `limit` bytes of UTF-8."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore")
