"""Text of notes as a terminal may show it: without the characters that command it."""

from __future__ import annotations

#: Control characters except tab and line end, and what can turn the direction of a line around.
_COMMANDS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\t\n"
}


def printable(text: str) -> str:
    """Replace what would move the cursor, set a title or ring: a note may have been written by anybody."""
    return text.replace("\r\n", "\n").translate(_COMMANDS)


def printable_name(name: str) -> str:
    """The same for a name, which has one line."""
    return printable(name).replace("\n", "\N{REPLACEMENT CHARACTER}")
