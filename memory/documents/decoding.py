"""Bytes of a note become text, whatever they are; what had to be replaced is noted."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

_REPLACEMENT = "\ufffd"

#: Byte order marks of UTF-16, which some editors still write.
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class DecodedText:
    """`text` holds no byte order mark at its start and no NUL. `notes`: one phrase for each kind of replacement."""

    text: str
    notes: tuple[str, ...] = ()


def decode(data: bytes) -> DecodedText:
    """Decode a file's bytes: UTF-16 if they start with its byte order mark, else UTF-8. Never fails.

    Invalid sequences and NUL characters become U+FFFD. Line ends stay as they are.
    """
    notes: list[str] = []
    encoding, name = ("utf-16", "UTF-16") if data.startswith(_UTF16_MARKS) else ("utf-8-sig", "UTF-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode(encoding, errors="replace")
        notes.append(f"invalid {name} was replaced")
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
        notes.append("NUL characters were replaced")
    return DecodedText(text, tuple(notes))
