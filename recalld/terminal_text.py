"""Text of notes as a terminal may show it: without the characters that command it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: Control characters except tab and line end, what can turn the direction of a line around, and halves of
#: surrogate pairs, which no output takes.
_RANGES = (range(0x20), range(0x7F, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000))
_COMMANDS = {code: "\N{REPLACEMENT CHARACTER}" for codes in _RANGES for code in codes if chr(code) not in "\t\n"}

#: What stands for them in a name. A byte that is no UTF-8 is half of a surrogate pair in Python's strings.
_ESCAPED = {
    code: f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code < 0xDD00 else chr(code).encode("unicode_escape").decode()
    for code in (*_COMMANDS, ord("\t"), ord("\n"))
}

#: The same in JSON, where it means what stood there.
_IN_JSON = {code: f"\\u{code:04x}" for code in _COMMANDS}

#: The way back; of names that are kept, none holds halves of surrogate pairs.
_ESCAPES = {shown: chr(code) for code, shown in _ESCAPED.items() if not 0xD800 <= code < 0xE000}
_ESCAPE = re.compile("|".join(map(re.escape, _ESCAPES)))


def printable(text: str) -> str:
    """Replace what would move the cursor, set a title or ring: a note may have been written by anybody."""
    return text.replace("\r\n", "\n").translate(_COMMANDS)


def printable_name(name: str) -> str:
    """A name in one line: what commands a terminal is escaped (\\n, \\x1b), as is a byte that is not UTF-8 (\\xff)."""
    return name if name.isprintable() else name.translate(_ESCAPED)


def typed_name(shown: str) -> str:
    """The name that `printable_name` shows so, for whoever types what was shown; others stay as they are."""
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], shown)


def printable_answer(answer: Any) -> Any:
    """The same for every text in a JSON value: each is shown in one line."""
    if isinstance(answer, str):
        return printable_name(answer)
    if isinstance(answer, Mapping):
        return {name: printable_answer(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [printable_answer(value) for value in answer]
    return answer


def printable_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that commands no terminal: what would is escaped, and reads back as it was."""
    return json.dumps(value, ensure_ascii=False, indent=indent).translate(_IN_JSON)
