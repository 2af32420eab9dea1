"""Snippet: the part of a chunk that is shown, around the match, cut between words, with exact lines; and its sentence
for a list, which fits into one line of a terminal. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memory.chunking.folding import begins_word, fold, places_in
from memory.chunking.text_cuts import cut_at_or_after, cut_at_or_before, splits_character, splits_word

#: Matches that are compared, at most; a chunk that repeats a word is not worth more time.
_MAX_MATCHES = 512

#: The indentation of a first line is shown if it takes at most one part in so many of the snippet.
_INDENTED_SHARE = 4


@dataclass(frozen=True, slots=True)
class Snippet:
    """Contiguous part of a chunk from its character `start`."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """Return the chunk's character after the last one of the snippet."""
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class _Match:
    """Span to be shown, and the number of different terms around it."""

    start: int
    end: int
    terms: int


def make_snippet(
    text: str, *, terms: Sequence[str], max_chars: int, overlaps: Sequence[tuple[int, int]] = ()
) -> Snippet | None:
    """Cut the best part of at most `max_chars` characters out of a chunk.

    Without a match of the `terms` the chunk's start is shown. `overlaps` are parts of the chunk (first character, and
    the one after the last) that are not shown again; None if they hold every word. Never cuts a visible character or a
    word in half, unless that alone is longer than `max_chars`.
    """
    start, end = (
        _window_beside(text, terms, max_chars, overlaps) if overlaps else _window(text, terms, max_chars, 0, len(text))
    )
    if overlaps and start == end:
        return None
    return Snippet(text[start:end], start)


def _window_beside(
    text: str, terms: Sequence[str], max_chars: int, overlaps: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Return the best window between and around the shown parts; an empty one if no word is left."""
    best = (0, 0)
    most = (-1, 0)
    for low, high in _gaps(len(text), overlaps):
        start, end = _stripped(text, low, high, indented=0)
        if not any(map(str.isalnum, text[start:end])):
            continue
        match = _best_match(text, terms, start, end, max_chars)
        worth = (match.terms, min(end - start, max_chars))
        if worth > most:
            most, best = worth, _window(text, terms, max_chars, start, end)
    return best


def _gaps(length: int, overlaps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the spans that no part covers, from left to right."""
    free = 0
    for start, end in sorted(overlaps):
        if start > free:
            yield free, start
        free = max(free, end)
    if free < length:
        yield free, length


def _window(text: str, terms: Sequence[str], max_chars: int, low: int, high: int) -> tuple[int, int]:
    start, end = _stripped(text, low, high, indented=max_chars // _INDENTED_SHARE)
    if end - start <= max_chars:
        return start, end
    match = _best_match(text, terms, start, end, max_chars)
    begin = _beginning(text, match.start, match.end, start, max_chars)
    if begin > end - max_chars:
        # Room is left after the chunk's end: show more before the match, if possible from the start of a line.
        begin = max(start, end - max_chars)
        line_end = text.find("\n", begin, min(match.start, begin + max_chars // 3))
        begin = line_end + 1 if line_end >= 0 else begin
    begin = _allowed_beginning(text, begin, match.start, start, max_chars)
    finish = min(end, begin + max_chars)
    if finish < end:
        finish = cut_at_or_before(text, finish, lowest=begin)
    return _stripped(text, begin, finish, indented=max_chars // _INDENTED_SHARE)


def _best_match(text: str, terms: Sequence[str], start: int, end: int, max_chars: int) -> _Match:
    """Return the shortest span with most different terms within `max_chars`; the chunk's start without a match."""
    best = (0, 0, start)
    nearest: dict[int, int] = {}
    # From right to left, `nearest` is where the next match of each term ends.
    for begin, finish, term in reversed(_matches(text, terms, start, end)):
        nearest[term] = finish
        within = [place for place in nearest.values() if place - begin <= max_chars]
        span = (len(within), begin - max(within, default=begin + max_chars), begin)
        if span[:2] >= best[:2] or not best[0]:
            best = span
    return _Match(best[2], min(best[2] - best[1], best[2] + max_chars), best[0])


def _matches(text: str, terms: Sequence[str], start: int, end: int) -> list[tuple[int, int, int]]:
    """Return (start, end, term number) of matches in order of place."""
    matches = []
    bound = max(2, _MAX_MATCHES // max(1, len(terms)))
    folded, places = fold(text), places_in(text)
    low, high = bisect_left(places, start), bisect_left(places, end)
    for number, term in enumerate(terms):
        place = folded.find(term, low, high)
        for _ in range(bound):
            if place < 0:
                break
            matches.append((places[place], places[place + len(term)], number))
            place = folded.find(term, place + len(term), high)
    matches.sort()
    return matches


def _beginning(text: str, first: int, last: int, start: int, max_chars: int) -> int:
    """Return the start of the window: a line's start before the match if there is room, else a little before it."""
    room = max_chars - (last - first)
    lead = max(start, first - room // 2)
    line_end = text.find("\n", lead, first)
    if line_end >= 0:
        return line_end + 1
    line = max(start, text.rfind("\n", start, first) + 1)
    return line if first - line <= room * 3 // 4 else lead


def _allowed_beginning(text: str, begin: int, first: int, start: int, max_chars: int) -> int:
    """Return the first allowed cut from `begin` to the match; else the start of the match's word."""
    place = cut_at_or_after(text, begin, highest=max(begin, first))
    word = place
    while word > start and (splits_word(text, word) or splits_character(text, word)):
        word -= 1
    if not splits_word(text, word + max_chars) or cut_at_or_before(text, word + max_chars, lowest=word) >= first:
        # The word fits, or its shown part holds the match.
        return word
    while place > start and splits_character(text, place):
        place -= 1
    return place


def _stripped(text: str, start: int, end: int, *, indented: int) -> tuple[int, int]:
    """Leave out white space at both ends, except below a combining mark.

    A whole first line keeps an indentation of at most `indented` characters.
    """
    low = start
    while start < end and text[start].isspace() and not _carries_mark(text, start):
        start += 1
    line = max(low, text.rfind("\n", 0, start) + 1)
    if 0 < start - line <= indented and start < end and (line == 0 or text[line - 1] == "\n"):
        start = line
    while end > start and text[end - 1].isspace() and not _carries_mark(text, end - 1):
        end -= 1
    return start, end


def _carries_mark(text: str, at: int) -> bool:
    return text[at + 1 : at + 2] > "\u02ff" and splits_character(text, at + 1)


#: Marks before the text of a Markdown line: heading, quotation, list, task. Time of a message of a transcript.
_MARKS = re.compile(r"(?:(?:[-*+>]|#{1,6}|\d{1,3}[.)]|\[[ xX]\]) )+|\[\d{4}-\d\d-\d\d \d\d:\d\d\] ")

#: Asterisks around words. Those of a path (`memory/**/*.md`) and of a product (`3 * 4`) stay.
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9_*/])\*{1,3}(?=[^\s*/.])|(?<=[^\s*/_])\*{1,3}(?![A-Za-z0-9_*/])")

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?![a-z])|(?<=[。！？])")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Sentence of a snippet, without the marks of Markdown. `matches` are the spans of its matched words."""

    text: str
    matches: tuple[tuple[int, int], ...]


def best_sentence(snippet: str, *, terms: Sequence[str], columns: int) -> Sentence:
    """Return the sentence with most of the `terms`, cut between words to `columns` of a terminal.

    The terms of the heading above a sentence count for it. Of equals the first one is the best.
    """
    best, most = "", (-1, 0)
    for heading, text in _paragraphs(snippet):
        for sentence in _SENTENCE_END.split(text):
            matched = {term for _, _, term in _word_matches(sentence, terms)}
            headed = {term for _, _, term in _word_matches(heading, terms)}
            if (worth := (len(matched | headed), len(matched))) > most and any(map(str.isalnum, sentence)):
                best, most = sentence, worth
    text = _around_match(best, terms, columns)
    return Sentence(text, _merged([match[:2] for match in _word_matches(text, terms)]))


def shortened(text: str, columns: int) -> str:
    """Return the beginning of a text that fits into `columns` of a terminal, cut between words."""
    if columns_of(text) <= columns:
        return text
    room, end = columns - 1, 0
    while (room := room - columns_of(text[end])) >= 0:
        end += 1
    return f"{text[: cut_at_or_before(text, end, lowest=0)].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def columns_of(text: str) -> int:
    """Return the width of a text on a terminal, in columns."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )


def _paragraphs(snippet: str) -> Iterator[tuple[str, str]]:
    """Yield the heading above each paragraph, list item or row of a table, and its text in one line.

    Headings are paragraphs only of a snippet without other text.
    """
    headings, lines, has_text = [""], list[str](), False
    for line in (*snippet.split("\n"), ""):
        text = " ".join(line.split()) + " "
        mark = _MARKS.match(text)
        if lines and (mark or not text.strip() or text[0] == "|"):
            yield headings[-1], " ".join(lines)
            has_text, lines = True, []
        plain = _EMPHASIS.sub("", text[mark.end() if mark else 0 :]).strip()
        if text[0] == "|":
            plain = ", ".join(filter(None, map(str.strip, plain.split("|"))))
        if mark and text[0] == "#":
            headings.append(plain)
        elif not plain.startswith("```") and any(map(str.isalnum, plain)):
            lines.append(plain)
    yield from () if has_text else (("", heading) for heading in headings)


def _word_matches(text: str, terms: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return (start, end, term number) of the words that begin with a term."""
    matches = []
    for start, end, term in _matches(text, terms, 0, len(text)):
        begin = start
        while splits_word(text, begin):
            begin -= 1
        if begin == start or begins_word(fold(text[begin:end]), len(fold(text[begin:start]))):
            matches.append((begin, cut_at_or_after(text, end, highest=len(text)), term))
    return matches


def _merged(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _around_match(sentence: str, terms: Sequence[str], columns: int) -> str:
    """Return the part of a sentence around its matches that fits into `columns`, with an ellipsis at each cut.

    That is its beginning, unless another part holds more of the terms.
    """
    beginning, width = shortened(sentence, columns), columns_of(sentence)
    if width <= columns:
        return sentence
    snippet = make_snippet(sentence, terms=terms, max_chars=max(1, (columns - 1) * len(sentence) // width))
    assert snippet is not None  # noqa: S101 - without overlaps there is always one
    middle = shortened("\N{HORIZONTAL ELLIPSIS}" + sentence[snippet.start :].lstrip(" ,;:.)，；：、"), columns)
    counts = [len({term for *_, term in _word_matches(part, terms)}) for part in (beginning, middle)]
    return middle if counts[1] > counts[0] else beginning
