"""Text of notes as a terminal may show it: without the characters that command it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Control characters except tab and line end, what can turn the direction of a line around, and halves of
#: surrogate pairs, which no output takes.
_RANGES = (range(0x20), range(0x7F, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
_COMMANDS = {code: "\N{REPLACEMENT CHARACTER}" for codes in _RANGES for code in codes if chr(code) not in "\t\n"}


def printable(text: str) -> str:
    """Replace what would move the cursor, set a title or ring: a note may have been written by anybody."""
    return text.replace("\r\n", "\n").translate(_COMMANDS)


def printable_name(name: str) -> str:
    """The same for a name, which has one line."""
    return printable(name).replace("\n", "\N{REPLACEMENT CHARACTER}")


def printable_answer(answer: Any) -> Any:
    """The same for every text in a JSON value: each is shown in one line."""
    if isinstance(answer, str):
        return printable_name(answer)
    if isinstance(answer, Mapping):
        return {name: printable_answer(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [printable_answer(value) for value in answer]
    return answer
