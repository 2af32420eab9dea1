"""JSON as people write it: with comments, trailing commas, unquoted names and single quotes (json5.org).

OpenClaw's settings are read so. Everything that is valid JSON5 is read; what goes beyond it (`$include`, `${NAME}`) is
left in the values for whoever knows it.
"""

from __future__ import annotations

import re
from typing import Any

#: Levels of nesting that are followed; settings have a handful.
MAX_DEPTH = 200

_SPACE = re.compile(r"(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_NAME = re.compile(r"[^\W\d][\w$\u200c\u200d]*|\$[\w$]*")
_NUMBER = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]+|Infinity|NaN|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![\w$])"
)
_PLAIN = {quote: re.compile(rf"[^{quote}\\\n\r]+") for quote in "\"'"}
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}


class NotJson5(ValueError):
    """The text is not JSON5; the message says on which line and what was expected, and repeats nothing of it."""


def read_json5(text: str) -> Any:
    """The value that a JSON5 text stands for.

    Raises:
        NotJson5: it stands for none.
    """
    reader = _Reader(text)
    value = reader.value(0)
    reader.space()
    if reader.at < len(text):
        raise reader.wrong("nothing after the end")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def wrong(self, expected: str) -> NotJson5:
        return NotJson5(f"line {self._text.count(chr(10), 0, self.at) + 1}: expected {expected}")

    def space(self) -> None:
        """Skip white space and comments."""
        match = _SPACE.match(self._text, self.at)
        assert match is not None  # noqa: S101 - it matches nothing at least
        self.at = match.end()

    def value(self, depth: int) -> Any:
        """Read one value and stop behind it."""
        if depth > MAX_DEPTH:
            raise self.wrong(f"at most {MAX_DEPTH} levels")
        self.space()
        first = self._text[self.at : self.at + 1]
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first in ("'", '"'):
            return self._string(first)
        number = _NUMBER.match(self._text, self.at)
        if number is not None:
            self.at = number.end()
            return _number(number.group())
        word = _NAME.match(self._text, self.at)
        if word is None or word.group() not in _WORDS:
            raise self.wrong("a value")
        self.at = word.end()
        return _WORDS[word.group()]

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.at += 1
        while not self._ends("}"):
            name = self._name()
            self.space()
            self._take(":", "a colon")
            found[name] = self.value(depth + 1)
            self._comma("}")
        return found

    def _array(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        while not self._ends("]"):
            found.append(self.value(depth + 1))
            self._comma("]")
        return found

    def _ends(self, closing: str) -> bool:
        self.space()
        if not self._text.startswith(closing, self.at):
            return False
        self.at += 1
        return True

    def _comma(self, closing: str) -> None:
        """After a member there is a comma or the end; the end is left for `_ends`."""
        self.space()
        if not self._text.startswith(closing, self.at):
            self._take(",", f"a comma or {closing}")

    def _take(self, sign: str, named: str) -> None:
        if not self._text.startswith(sign, self.at):
            raise self.wrong(named)
        self.at += 1

    def _name(self) -> str:
        quote = self._text[self.at : self.at + 1]
        if quote in ("'", '"'):
            return self._string(quote)
        match = _NAME.match(self._text, self.at)
        if match is None:
            raise self.wrong("a name")
        self.at = match.end()
        return match.group()

    def _string(self, quote: str) -> str:
        parts: list[str] = []
        self.at += 1
        while True:
            plain = _PLAIN[quote].match(self._text, self.at)
            if plain is not None:
                parts.append(plain.group())
                self.at = plain.end()
            sign = self._text[self.at : self.at + 1]
            if sign == quote:
                self.at += 1
                return _joined(parts)
            if sign != "\\":
                raise self.wrong("the end of a text")
            parts.append(self._escape())

    def _escape(self) -> str:
        sign = self._text[self.at + 1 : self.at + 2]
        if sign in ("\n", "\r", "\u2028", "\u2029"):  # the text goes on in the next line
            self.at += 3 if self._text.startswith("\r\n", self.at + 1) else 2
            return ""
        digits = {"x": 2, "u": 4}.get(sign)
        if digits is None:
            self.at += 2
            return _ESCAPES.get(sign, sign)
        code = self._text[self.at + 2 : self.at + 2 + digits]
        if not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", code):
            raise self.wrong(f"{digits} hexadecimal digits")
        self.at += 2 + digits
        return chr(int(code, 16))


def _joined(parts: list[str]) -> str:
    """The text; a character that was written as two halves is one, and half a character is none."""
    text = "".join(parts)
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _number(text: str) -> int | float:
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.lstrip("+"))
    if digits[:2].lower() == "0x":
        return sign * int(digits, 16)
    if digits in ("Infinity", "NaN"):
        return sign * float(digits)
    if digits.isdigit():
        return sign * int(digits) if len(digits) < 1000 else sign * float("inf")
    return sign * float(digits)
