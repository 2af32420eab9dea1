"""Repetitions among results: overlapping chunks of one file, and copies of documents. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from memory.chunking.folding import fold
from memory.chunking.text_cuts import splits_word
from memory.search.ranking.snippets import make_snippet
from memory.store.reader import ChunkRow
from memory.transcripts.packing import QUOTED_LABEL, messages_of

#: A chunk is dropped when this share of the shorter of the two is text of the better one, too.
REPEATED_SHARE = 0.5

#: Each part of a message that was cut begins with who spoke (`memory.transcripts.packing.label`).
_LABEL = re.compile(r"(?:\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}\] )?[^\n:]{1,80}: ")


#: Time of a message, before its speaker: copies of a conversation may have other times.
_SAID_AT = re.compile(r"^\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}\] ", re.MULTILINE)

#: Characters of the first line by which chunks of transcripts may be of one conversation.
_FIRST_CHARACTERS = 80

#: Characters around a match that are compared between copies which go on differently.
_MATCH_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class Overlap:
    """Text of the file in two chunks: its `length`, and its first character in each chunk."""

    first_start: int
    second_start: int
    length: int


def overlap_of(first: ChunkRow, second: ChunkRow) -> Overlap | None:
    """Return the text that two chunks share because they overlap; None if they do not.

    Measured in text, not in lines: the pieces of one very long line share their line number and nothing else.
    """
    if first.key != second.key or first.start_line > second.end_line or second.start_line > first.end_line:
        return None
    if first.ordinal > second.ordinal:
        swapped = _common(second, first)
        return Overlap(swapped.second_start, swapped.first_start, swapped.length) if swapped is not None else None
    return _common(first, second)


def repeats(row: ChunkRow, better: Iterable[ChunkRow]) -> bool:
    """Return True if a better chunk shows most of this one: of the same document, or a transcript and its note."""
    for better_row in better:
        if row.key.is_transcript != better_row.key.is_transcript and _is_in_its_note(row, better_row):
            return True
        if row.key == better_row.key and row.text == better_row.text:
            return True
        overlap = overlap_of(row, better_row)
        if overlap is not None and overlap.length > REPEATED_SHARE * min(len(row.text), len(better_row.text)):
            return True
    return False


def _is_in_its_note(row: ChunkRow, better: ChunkRow) -> bool:
    """Return True if half of the words of a transcript's chunk are quoted in the better note, or the other way."""
    note = better if row.key.is_transcript else row
    if not QUOTED_LABEL.search(note.text):
        return False
    messages, others = (
        {message.text.strip() for message in messages_of(QUOTED_LABEL.sub(r"\1: ", chunk.text))}
        for chunk in (row, better)
    )
    return sum(map(len, messages & others)) > REPEATED_SHARE * sum(map(len, messages))


def _common(earlier: ChunkRow, later: ChunkRow) -> Overlap | None:
    """Return the longest end of the earlier chunk with which the later one begins, or the one inside the other."""
    earlier_text, later_text = earlier.text, later.text
    if later_text in earlier_text:
        return Overlap(earlier_text.index(later_text), 0, len(later_text))
    if earlier_text in later_text:
        return Overlap(0, later_text.index(earlier_text), len(earlier_text))
    for start in _beginnings(later):
        head = later_text[start : start + 1]
        place = earlier_text.find(head)
        while head and place >= 0:
            if later_text.startswith(earlier_text[place:], start) and _is_there(earlier, later, place):
                return Overlap(place, start, len(earlier_text) - place)
            place = earlier_text.find(head, place + 1)
    return None


def _beginnings(later: ChunkRow) -> Iterator[int]:
    """Yield the places at which the later chunk may go on with the earlier one's text."""
    yield 0
    if later.key.is_transcript and (label := _LABEL.match(later.text)) is not None:
        yield label.end()


def _is_there(earlier: ChunkRow, later: ChunkRow, place: int) -> bool:
    """Return True if the end of the earlier chunk, from `place` on, is the place at which the later chunk begins.

    It is not if the letters are the same by chance.
    """
    if earlier.key.is_transcript:
        return True  # lines are messages there
    between = earlier.end_line - later.start_line + earlier.text.endswith("\n")
    return earlier.text.count("\n", place) == between and not splits_word(earlier.text, place)


def comparable_texts(rows: Collection[ChunkRow], terms: Sequence[str]) -> dict[int, str]:
    """Return chunk id -> text by which copies are recognized: the same for a text and its copies.

    The times of messages do not count. Copies of a conversation go on differently after a while. So chunks of different
    transcripts that begin alike are compared by the place that holds all `terms` of the chunk, if there is one.
    """
    whole_texts = {row.id: row.text for row in rows}
    talks = [(row, _first_line(row.text)) for row in rows if row.key.is_transcript]
    alike = Counter(first for first, _ in {(first, row.key) for row, first in talks})
    # Most copies are of one text, which is matched once.
    texts = {row.id: _SAID_AT.sub("", row.text) for row, first in talks if alike[first] > 1}
    matching = {text: _matching(text, tuple(terms)) for text in set(texts.values())}
    return whole_texts | {id_: matching[text] for id_, text in texts.items()}


def _first_line(text: str) -> str:
    """Return the beginning of a chunk's first line, without its time."""
    return _SAID_AT.sub("", text[:_FIRST_CHARACTERS].partition("\n")[0])


# A search compares its candidates several times.
@lru_cache(maxsize=512)
def _matching(text: str, terms: tuple[str, ...]) -> str:
    """Return the place of a text that holds all terms that the text has; the whole text if there is none."""
    folded = fold(text)
    present_terms = [term for term in terms if term in folded]
    snippet = make_snippet(text, terms=present_terms, max_chars=_MATCH_CHARACTERS) if present_terms else None
    if snippet is None or not all(term in fold(snippet.text) for term in present_terms):
        return text
    return snippet.text
