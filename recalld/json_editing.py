"""Change a JSON file that belongs to somebody else: only the characters that have to change do.

Every change is an `Edit` of the text, so that it can be shown without showing anything of what was there before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: A member's name, an item's number.
Step = str | int

_SPACE = re.compile(r"[ \t\n\r]*")
_INDENTED = re.compile(r"^[{\[][ \t]*\r?\n([ \t]+)\S")


@dataclass(frozen=True, slots=True)
class Edit:
    """`removed` at `at`, in characters, becomes `inserted`."""

    at: int
    removed: str
    inserted: str

    def apply(self, text: str) -> str:
        """The text after it."""
        return text[: self.at] + self.inserted + text[self.at + len(self.removed) :]


@dataclass(frozen=True, slots=True)
class _Part:
    """A member or item: its value is text[value:end], `after` is behind its comma, if it has one."""

    step: Step
    value: int
    end: int
    after: int


def insert_member(text: str, path: Sequence[Step], name: str, value: Any) -> Edit:
    """Make `name: value` the first member of the object at `path`. In front, so that no other line gets a comma.

    The value is one line; the members of an object are one line each.
    """
    return _insert(text, path, json.dumps(name, ensure_ascii=False) + ": ", value)


def insert_item(text: str, path: Sequence[Step], value: Any) -> Edit:
    """Make a value the first item of the array at `path`."""
    return _insert(text, path, "", value)


def remove(text: str, path: Sequence[Step]) -> Edit:
    """Take out the member or item at `path`, with its comma."""
    *above, last = path
    at = _value_at(text, above)
    parts = _parts(text, at)
    index = next(index for index in reversed(range(len(parts))) if parts[index].step == last)
    part = parts[index]
    if index + 1 < len(parts):
        # With the space before it: just what `insert_item` put there.
        start, end = parts[index - 1].after if index else at + 1, part.after
    elif index:
        start, end = parts[index - 1].end, part.end
    else:
        start, end = at + 1, _after_space(text, part.end)
    return Edit(start, text[start:end], "")


def shown(text: str, edit: Edit) -> list[str]:
    """The edit as lines of a difference: where, what goes, what comes."""
    lines = [f"@@ line {text.count(chr(10), 0, edit.at) + 1} @@"]
    lines += [f"-{line}" for line in edit.removed.splitlines() if line.strip()]
    lines += [f"+{line}" for line in edit.inserted.splitlines() if line.strip()]
    return lines


def _insert(text: str, path: Sequence[Step], prefix: str, value: Any) -> Edit:
    at = _value_at(text, path)
    parts = _parts(text, at)
    indent = _indent(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    outer = newline + indent * len(path)
    inner = outer + indent
    body = prefix + _rendered(value, inner, indent)
    if parts:
        return Edit(at + 1, "", f"{inner}{body},")
    end = _after_space(text, at + 1)
    return Edit(at + 1, text[at + 1 : end], f"{inner}{body}{outer}")


def _rendered(value: Any, newline: str, indent: str) -> str:
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    members = (f"{json.dumps(name)}: {json.dumps(below, ensure_ascii=False)}" for name, below in value.items())
    return "{" + newline + indent + f",{newline}{indent}".join(members) + newline + "}"


def _indent(text: str) -> str:
    found = _INDENTED.match(text[_after_space(text, 0) :])
    return found[1] if found else "  "


def _value_at(text: str, path: Sequence[Step]) -> int:
    at = _after_space(text, 0)
    for step in path:
        # Of two members of one name the last one counts, as for everybody who reads JSON.
        at = next(part.value for part in reversed(_parts(text, at)) if part.step == step)
    return at


def _parts(text: str, at: int) -> list[_Part]:
    """The members of the object, or the items of the array, that begins at `at`. The text is valid JSON."""
    is_object = text[at] == "{"
    parts: list[_Part] = []
    at = _after_space(text, at + 1)
    while text[at] not in "]}":
        name: Step = len(parts)
        if is_object:
            name, at = _decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)  # the colon
        _, end = _decode(text, at)
        comma = _after_space(text, end)
        after = comma + 1 if text[comma] == "," else end
        parts.append(_Part(name, at, end, after))
        at = _after_space(text, after)
    return parts


_decode: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
