"""Wrappers: text that programs write around, or in place of, a person's words. Each format has a table of them.

A pattern counts only where a program puts it: at the start of a message or of a line. A wrapper that a person quotes
inside a sentence stays, and so does an opening tag without its closing one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto


class Cut(Enum):
    """Part of a message that is removed because of a wrapper."""

    #: The message, if it is the pattern and nothing else.
    ALL = auto()
    #: The message, if its beginning matches the pattern, a regular expression.
    MESSAGE = auto()
    #: The message, if it begins with a closed element of this name.
    ENVELOPE = auto()
    #: Closed elements of this name that begin a line.
    ELEMENT = auto()
    #: The tags of elements that begin with the pattern (`name attribute=`); the words inside stay.
    TAGS = auto()
    #: The first paragraph, if its first line is the pattern.
    PARAGRAPH = auto()
    #: Everything from the pattern on, a line of its own.
    BELOW = auto()
    #: Everything above the heading of the person's request, if the first line is the pattern.
    ABOVE_REQUEST = auto()


_BLANK_LINES = re.compile(r"\n[ \t]*\r?\n\s*")
_NEVER = "(?!)"


class Wrappers:
    """Patterns of one format, grouped by the part of the message that is removed.

    `request`: regular expression of the heading above a person's request.
    """

    def __init__(self, patterns: Mapping[Cut, Sequence[str]], *, request: str = _NEVER) -> None:
        self.patterns = {cut: tuple(patterns.get(cut, ())) for cut in Cut}
        self._all = frozenset(self.patterns[Cut.ALL])
        self._messages = re.compile("|".join(self.patterns[Cut.MESSAGE]) or _NEVER, re.DOTALL)
        self._envelopes = frozenset(self.patterns[Cut.ENVELOPE])
        names = _any_of(self.patterns[Cut.ENVELOPE] + self.patterns[Cut.ELEMENT])
        self._opening = re.compile(rf"(?:^|(?<=>))[ \t]*<({names})(?:\s[^<>]*)?>", re.MULTILINE)
        self._tag = re.compile(rf"^[ \t]*<{_any_of(self.patterns[Cut.TAGS])}[^<>\n]*>", re.MULTILINE)
        closing = _any_of([pattern.split()[0] for pattern in self.patterns[Cut.TAGS]])
        self._closing_tag = re.compile(rf"</{closing}>[ \t]*$", re.MULTILINE)
        self._paragraphs = frozenset(self.patterns[Cut.PARAGRAPH])
        self._below = re.compile(rf"^{_any_of(self.patterns[Cut.BELOW])}[ \t]*\r?$", re.MULTILINE)
        self._above = frozenset(self.patterns[Cut.ABOVE_REQUEST])
        self._request = re.compile(request, re.MULTILINE)

    def words(self, text: str) -> str:
        """Return the person's words, empty when the program wrote all of the text."""
        text = text.strip()
        if self._is_programs(text):
            return ""
        if "<" in text:
            text = self._without_tags(self._without_elements(text)).strip()
        if below := self._below.search(text):
            text = text[: below.start()].strip()
        start = 0
        while _first_line(text, start) in self._paragraphs:
            blank = _BLANK_LINES.search(text, start)
            start = blank.end() if blank else len(text)
        text = text[start:]
        find = self._request.search if _first_line(text) in self._above else self._request.match
        if request := find(text):
            text = text[request.end() :].strip()
        return "" if self._is_programs(text) else text

    def _is_programs(self, text: str) -> bool:
        return text in self._all or self._messages.match(text) is not None

    def _without_elements(self, text: str) -> str:
        parts: list[str] = []
        unclosed: set[str] = set()
        start, is_first = 0, True
        while opening := self._opening.search(text, start):
            name = opening[1]
            closing = f"</{name}>"
            end = -1 if name in unclosed else text.find(closing, opening.end())
            is_first = is_first and end >= 0 and not text[start : opening.start()].strip()
            if end < 0:
                unclosed.add(name)
                parts.append(text[start : opening.end()])
                start = opening.end()
                continue
            if is_first and name in self._envelopes:
                return ""
            parts.append(text[start : opening.start()])
            start = end + len(closing)
        return "".join([*parts, text[start:]])

    def _without_tags(self, text: str) -> str:
        if self._tag.search(text) or self._closing_tag.fullmatch(text.strip()):
            text = self._closing_tag.sub("", self._tag.sub("", text))
        return text


def _first_line(text: str, start: int = 0) -> str:
    end = text.find("\n", start)
    return text[start : end if end >= 0 else None].rstrip()


def _any_of(patterns: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(re.escape, patterns)) or _NEVER})"
