"""Patterns of the settings: the parts of a text that they hide, found within a budget of processor time.

A pattern such as `(a|aa)+$` tries all ways to cut up a line and may never end. The `regex` library gives up when the
budget is used up, and lets other threads run until then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from memory.redaction.values import Span
from schemas.errors import Permanent


class PatternBudget(NamedTuple):
    """Processor time that all patterns together may take for the texts of one document, or of one question.

    `seconds`, and `seconds_per_megabyte` more for every megabyte of text.
    """

    seconds: float
    seconds_per_megabyte: float


#: Budget of a document that is indexed. Usual patterns take 0.1 s for a megabyte and less.
INDEXING = PatternBudget(seconds=5.0, seconds_per_megabyte=5.0)

#: Budget of a question, and of a page of a document: a user waits for the answer.
ASKING = PatternBudget(seconds=0.5, seconds_per_megabyte=1.0)

#: Budget of a line that `is_costly` tries; usual patterns take a thousandth of it.
TRYING = PatternBudget(seconds=0.2, seconds_per_megabyte=0.0)

#: Characters of such a line, and the parts that lines are made of, besides the pattern's own.
TRIED_CHARACTERS = 1000
_PARTS = ("a", "0", " ", "a ", "-", "=", "a.")
_MOST_LITERALS = 12

#: Remedy for a pattern that costs too much.
REWRITING = "rewrite the pattern without parts that fit a text in many ways, such as (a+)+ or .*.*"

#: Parts of a pattern that `regex` reads differently from `re`: brackets in a set, and braces that count nothing.
#: Escapes, and comments of a verbose pattern, are matched so that their content stays as it is.
_SET = r"\[\^?\]?(?:\\.|[^\]\\])*+\]?"
_UNLIKE_RE = re.compile(rf"\\(?:N\{{[^}}]*+\}}?|.)|{_SET}|\{{(?!(?:\d+(?:,\d*)?|,\d*)\}})", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
_UNLIKE_RE_VERBOSE = re.compile(rf"#[^\n]*|{_UNLIKE_RE.pattern}", re.DOTALL)


class PatternTooCostly(Permanent):
    """Excess of a pattern over its budget for a text: nothing of the text is indexed, sent or shown.

    The message names the pattern by its number, because its words may be secret. It is worded for a document.
    `of_question` is worded for a question and has no remedy.
    """

    def __init__(self, place: int, cost: str) -> None:
        super().__init__(f"{_too_much(place, cost, 'document')}, so nothing of it is indexed or shown: {REWRITING}")
        self.place = place
        self.of_question = f"{_too_much(place, cost, 'question')}, so nothing was searched"


class UserPatterns:
    """Finder of the settings' patterns, which are valid for `re`, in the texts of one document or question.

    The budget is for all of these texts together. Not thread-safe.
    """

    def __init__(self, patterns: Sequence[str], budget: PatternBudget = INDEXING) -> None:
        self._patterns = _compiled(tuple(patterns))
        self._budget = budget
        self._remaining_seconds = budget.seconds

    def __call__(self, text: str, data: bytes) -> list[Span]:
        """Return the secret parts of a text; `data` is its UTF-8, of which spans count the bytes.

        The groups of a match are secret, or all of it if none took part. Empty matches are left out.

        Raises:
            PatternTooCostly: the budget is used up.
        """
        self._remaining_seconds += self._budget.seconds_per_megabyte * len(data) / 1e6
        parts: set[tuple[int, int]] = set()
        for place, pattern in enumerate(self._patterns, start=1):
            begin = time.thread_time()
            try:
                for match in pattern.finditer(text, timeout=self._remaining_seconds):
                    groups = [match.span(group) for group in range(1, pattern.groups + 1) if match.start(group) >= 0]
                    parts.update(groups or [match.span()])
            except TimeoutError:
                raise PatternTooCostly(place, f"more than {self._remaining_seconds:.2g} s of processor time") from None
            except MemoryError:
                raise PatternTooCostly(place, "more memory than the regex library takes") from None
            self._remaining_seconds = max(0.001, self._remaining_seconds - (time.thread_time() - begin))
        return list(_spans(text, sorted(parts)))


def is_costly(pattern: str) -> bool:
    """Return True if the pattern takes far too long for a line that is made of its own literals."""
    literals: list[str] = re.findall(r"\w+|[^\w\\]", pattern)
    parts = dict.fromkeys([*_PARTS, *literals, *"".join(literals)][: len(_PARTS) + _MOST_LITERALS])
    # The last end holds all literals of the pattern: without them, `regex` does not even begin.
    ends = ("", "!", "\x01 ", f"!\x01\n{''.join(literals)}")
    try:
        for part, end in product(parts, ends):
            UserPatterns([pattern], TRYING)(part * (TRIED_CHARACTERS // len(part)) + end, b"")
    except PatternTooCostly:
        return True
    return False


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> tuple[Any, ...]:
    import regex  # most settings have no patterns

    return tuple(regex.compile(as_regex_reads_it(pattern), regex.V0) for pattern in patterns)


def as_regex_reads_it(pattern: str) -> str:
    """Return the pattern with the same meaning for `regex`, which knows fuzzy counts `{e}` and sets `[[:alpha:]]`."""

    def escaped(part: re.Match[str]) -> str:
        if part[0][0] != "[":
            return r"\{" if part[0] == "{" else part[0]
        return "[" + re.sub(r"\\.|\[", lambda sign: sign[0] if sign[0] != "[" else r"\[", part[0][1:], flags=re.DOTALL)

    return (_UNLIKE_RE_VERBOSE if _VERBOSE.search(pattern) else _UNLIKE_RE).sub(escaped, pattern)


def _spans(text: str, parts: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """Yield the parts, which count characters, as spans of bytes."""

    def size(start: int, end: int) -> int:
        return len(text[start:end].encode("utf-8", "surrogatepass"))

    character = byte = 0
    for start, end in parts:
        if start < end:
            byte += size(character, start)
            character = start
            yield Span(byte, byte + size(start, end), "pattern")


def _too_much(place: int, cost: str, text: str) -> str:
    return f"pattern {place} of redaction.patterns needs too much for this {text} ({cost})"
