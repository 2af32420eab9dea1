"""Lines of a transcript that were skipped: counted, so that status can say so."""

from __future__ import annotations

import re
from typing import Any

#: Numbers of skipped lines that are kept, the first ones.
_NUMBERS = 10

#: Types of unknown lines that are kept by name.
_KINDS = 20

#: What a type's name looks like; anything else is not repeated.
_NAME = re.compile(r"[A-Za-z][\w./:-]{0,39}", re.ASCII)

_UNNAMED = ""
_OTHERS = "*"


class SkippedLines:
    """Counts of lines that are not JSON, too long, or of an unknown type."""

    def __init__(self) -> None:
        self._broken = 0
        self._broken_numbers: list[int] = []
        self._too_long = 0
        self._too_long_numbers: list[int] = []
        self._unknown: dict[str, int] = {}

    @property
    def any_unknown(self) -> bool:
        """Whether a line of an unknown type was counted."""
        return bool(self._unknown)

    def broken(self, number: int) -> None:
        """Count a line that is not a JSON object; `number` is 1-based."""
        self._broken += 1
        if len(self._broken_numbers) < _NUMBERS:
            self._broken_numbers.append(number)

    def too_long(self, number: int) -> None:
        """Count a line that was too long to be read."""
        self._too_long += 1
        if len(self._too_long_numbers) < _NUMBERS:
            self._too_long_numbers.append(number)

    def unknown(self, kind: str) -> None:
        """Count a line of an unknown type."""
        name = kind if _NAME.fullmatch(kind) else _UNNAMED
        if name not in self._unknown and len(self._unknown) >= _KINDS:
            name = _OTHERS
        self._unknown[name] = self._unknown.get(name, 0) + 1

    def notes(self) -> tuple[str, ...]:
        """A sentence for each kind of skipped line."""
        notes: list[str] = []
        if self._broken:
            notes.append(_sentence(self._broken, "not JSON", self._broken_numbers))
        if self._too_long:
            notes.append(_sentence(self._too_long, "too long to be read", self._too_long_numbers))
        for name, count in self._unknown.items():
            lines = f"{count} line{'s' if count > 1 else ''}"
            were = "were" if count > 1 else "was"
            if name == _OTHERS:
                notes.append(f"{lines} of further unknown types {were} skipped")
            elif name == _UNNAMED:
                notes.append(f"{lines} without a type that is known {were} skipped")
            else:
                notes.append(f"{lines} of unknown type {name} {were} skipped")
        return tuple(notes)

    def state(self) -> list[Any]:
        """JSON values for `restore`."""
        return [self._broken, self._broken_numbers, self._too_long, self._too_long_numbers, self._unknown]

    def restore(self, state: list[Any]) -> None:
        """Go on counting from there."""
        self._broken, self._broken_numbers, self._too_long, self._too_long_numbers, self._unknown = state


def _sentence(count: int, what: str, numbers: list[int]) -> str:
    if count == 1:
        return f"1 line is {what} and was skipped (line {numbers[0]})"
    first = "first: " if count > len(numbers) else ""
    return f"{count} lines are {what} and were skipped ({first}lines {', '.join(map(str, numbers))})"
