"""What a full-text index sees of a text, and what it is asked for a query. Pure functions of strings.

FTS5's `unicode61` takes a run of Chinese, Japanese or Korean characters for one word, so that a word
inside of it is never found. Here such a run becomes its overlapping pairs of characters ("bigrams"),
on both sides; everything else is left to `unicode61` and the Porter stemmer around it (which only
knows ASCII suffixes and leaves the bigrams alone).

Two things that the tokenizer drops are written out for it as well: the parts of a camelCase word
(`openReader` is also `open Reader`), and `C++`, `C#` and `F#`, which would otherwise all be one letter. A query
asks for an identifier as a whole and for its parts, for a hash also by what it begins with, and for a day
in the way in which notes are dated.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import add

from memory.asked_dates import dates_in
from memory.stop_words import CHINESE_STOP_BIGRAMS, CHINESE_STOP_CHARACTERS, ENGLISH_STOP_WORDS

#: Part of an index's fingerprint: raise it with every change of what `index_text` or `index_title` returns.
SEGMENTER_VERSION = 2

#: The FTS5 tokenizer that both sides are written for.
FTS5_TOKENIZER = "porter unicode61 remove_diacritics 2"

#: Terms of one query beyond this many are dropped; FTS5 itself gives up on expressions deeper than 256.
MAX_QUERY_TERMS = 96

#: Characters of one query beyond this many are not looked at.
MAX_QUERY_CHARACTERS = 4_000

#: Runs up to this many characters are also asked for as one phrase, which ranks the exact wording first.
MAX_PHRASE_CHARACTERS = 8

# First and last code point, ascending. NFKC comes first, so half-width kana and Hangul jamo have become
# full characters by then.
_CJK_RANGES = (
    (0x3005, 0x3005),  # the ideographic repetition mark
    (0x3007, 0x3007),  # zero
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3041, 0x3096),  # Hiragana
    (0x309D, 0x309F),
    (0x30A1, 0x30FA),  # Katakana
    (0x30FC, 0x30FF),
    (0x3105, 0x312F),  # Bopomofo
    (0x3131, 0x318E),  # Hangul letters
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xA960, 0xA97C),
    (0xAC00, 0xD7A3),  # Hangul syllables
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x1AFF0, 0x1B16F),  # Kana supplements
    (0x20000, 0x3FFFD),  # Han, extensions B and up
)


def _everything_but(ranges: tuple[tuple[int, int], ...]) -> str:
    """A regular expression class by its complement: ASCII, the most of a text, is decided by the first range."""
    edges = [-1, *(edge for first, last in ranges for edge in (first, last)), 0x110000]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return "[^" + "".join(f"{chr(last + 1)}-{chr(first - 1)}" for last, first in gaps if first - last > 1) + "]"


_CJK_RUN = re.compile(_everything_but(_CJK_RANGES) + "+")

# Chinese punctuation that NFKC maps to ASCII. Replacing it by hand first spares most Chinese texts the
# slow way through `unicodedata.normalize`, which is quick for what is normal already.
_FULL_WIDTH = tuple((chr(ord(sign) + 0xFEE0), sign) for sign in ",:;!?()")

# A capital letter after a lower-case one is where a camelCase word breaks.
_HUMP = re.compile(r"[A-Z](?<=[a-z][A-Z])")
_LETTERS_BEFORE = re.compile(r"[A-Za-z]*\Z")
_LETTERS = re.compile(r"[A-Za-z]+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Longer "words" are encoded data: their humps mean nothing.
_MAX_CAMEL_CHARACTERS = 64
_MIN_PART_CHARACTERS = 3

_SHARP = re.compile(r"\b([CFcf])(\+\+|#)(?!\w)")
_SHARP_NAMES = {"++": "plusplus", "#": "sharp"}
_SHARP_HINTS = ("C+", "c+", "C#", "c#", "F#", "f#")

# What ends a word of a query. Not `-_./:@#&+`: paths, dates, versions and ids are asked for as a whole.
_BETWEEN_WORDS = re.compile(r"[\s\x00-\x1f,;!?()\[\]{}<>\"'`|*^=~\\“”‘’«»…、。，；：！？（）【】《》「」『』〈〉·]+")
# What a sentence puts around a word, and the tokenizer does not see.
_AROUND_WORDS = "-_./:@&"
_COMPOUND_PART = re.compile(r"[^\W\d_]{3,}")
#: Digits and letters as of a commit's or a file's hash.
HASH = re.compile(r"(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}", re.IGNORECASE)
#: How much of a hash people write down, where not all of it.
_SHORT_HASHES = (7, 8, 10, 12)
_WORD_CHARACTER = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """One thing to look for. `text` holds the words of a phrase, segmented like the index, separated by blanks.

    A `prefix` term also matches words that begin with it. `typed` is the term as it stands in a text,
    for highlighting.
    """

    text: str
    typed: str
    prefix: bool = False


def index_text(text: str) -> str:
    """Return the text to hand to FTS5 for indexing."""
    if not text.isascii():
        for wide, sign in _FULL_WIDTH:
            text = text.replace(wide, sign)
        text = _CJK_RUN.sub(_spread, unicodedata.normalize("NFKC", text))
    return _spell_out(text)


def index_title(source: str, path: str) -> str:
    """Return what a note's name adds to its chunks: `projects/gateway-plan` of `memory/projects/gateway-plan.md`.

    Of an absolute path only the file's name; nothing of a transcript, whose name is a number.
    """
    if source != "memory":
        return ""
    named = path.rpartition("/")[2] if path.startswith("/") else path.removeprefix("memory/")
    stem, dot, _ = named.rpartition(".")
    return stem if dot else named


# One search asks several times.
@lru_cache(maxsize=64)
def query_terms(query: str) -> tuple[QueryTerm, ...]:
    """Return what to look for, any of it: words, phrases of bigrams, at most `MAX_QUERY_TERMS`.

    Stop words are dropped unless nothing else is left. Empty when the query has no letter or digit.
    """
    # Characters may grow under NFKC (one Arabic ligature becomes eighteen), so the cut comes after it, too.
    text = unicodedata.normalize("NFKC", query[:MAX_QUERY_CHARACTERS])[:MAX_QUERY_CHARACTERS]
    strong: dict[str, QueryTerm] = {}
    weak: dict[str, QueryTerm] = {}
    for term, is_stop_word in _terms(text):
        (weak if is_stop_word else strong).setdefault(term.text.casefold(), term)
        if len(strong) >= MAX_QUERY_TERMS:
            break
    return tuple((strong or weak).values())[:MAX_QUERY_TERMS]


def match_expression(query: str) -> str | None:
    """Return the FTS5 expression that finds any of the query's terms, None when it has none.

    Every term is a quoted string, so nothing that a person types is ever an operator.
    """
    return " OR ".join(match_terms(query)) or None


def match_terms(query: str) -> tuple[str, ...]:
    """Return the FTS5 expression of each of the query's terms, quoted; empty when it has none."""
    return tuple(_quoted(term) for term in query_terms(query))


def _quoted(term: QueryTerm) -> str:
    escaped = term.text.replace('"', '""')
    return f'"{escaped}"*' if term.prefix else f'"{escaped}"'


def _bigrams(run: str) -> list[str]:
    return list(map(add, run, run[1:]))


def _spread(match: re.Match[str]) -> str:
    """`今天好` -> ` 今天 天好 好 `: the last character stands alone so that a prefix finds it."""
    run = match[0]
    return f" {' '.join(map(add, run, run[1:]))} {run[-1]} "


def _spell_out(text: str) -> str:
    """Append the parts of camelCase words, and the names of the languages that end in signs."""
    if any(hint in text for hint in _SHARP_HINTS):
        text = _SHARP.sub(_sharp_name, text)
    pieces: list[str] = []
    done = 0
    for hump in _HUMP.finditer(text):
        capital = hump.start()
        if capital < done:
            continue
        before = _LETTERS_BEFORE.search(text, max(done, capital - _MAX_CAMEL_CHARACTERS), capital)
        word = _LETTERS.match(text, before.start() if before else capital)
        if word is None:  # pragma: no cover - the capital is a letter
            continue
        pieces.append(text[done : word.end()])
        done = word.end()
        if len(word[0]) <= _MAX_CAMEL_CHARACTERS:
            parts = [part for part in _PARTS.findall(word[0]) if len(part) >= _MIN_PART_CHARACTERS]
            pieces.append(f" {' '.join(parts)}" if parts else "")
    if not pieces:
        return text
    pieces.append(text[done:])
    return "".join(pieces)


def _sharp_name(match: re.Match[str]) -> str:
    return f"{match[0]} {match[1]}{_SHARP_NAMES[match[2]]}"


def _terms(text: str) -> Iterator[tuple[QueryTerm, bool]]:
    """Yield terms in the order of the text, each with whether it is a stop word."""
    position = 0
    for run in _CJK_RUN.finditer(text):
        yield from _word_terms(text[position : run.start()])
        yield from _run_terms(run[0])
        position = run.end()
    yield from _word_terms(text[position:])
    for date in dates_in(text):
        yield QueryTerm(text=date, typed=date), False


def _run_terms(run: str) -> Iterator[tuple[QueryTerm, bool]]:
    if len(run) == 1:
        yield QueryTerm(text=run, typed=run, prefix=True), run in CHINESE_STOP_CHARACTERS
        return
    bigrams = _bigrams(run)
    stops = [_is_stop_bigram(bigram) for bigram in bigrams]
    if 2 < len(run) <= MAX_PHRASE_CHARACTERS and not all(stops):
        yield QueryTerm(text=" ".join(bigrams), typed=run), False
    for bigram, is_stop in zip(bigrams, stops, strict=True):
        yield QueryTerm(text=bigram, typed=bigram), is_stop


def _is_stop_bigram(bigram: str) -> bool:
    return (
        bigram in CHINESE_STOP_BIGRAMS or bigram[0] in CHINESE_STOP_CHARACTERS or bigram[1] in CHINESE_STOP_CHARACTERS
    )


def _word_terms(text: str) -> Iterator[tuple[QueryTerm, bool]]:
    for written in _BETWEEN_WORDS.split(text):
        word = written.strip(_AROUND_WORDS)
        if not _WORD_CHARACTER.search(word):
            continue
        if sharp := _SHARP.fullmatch(word):
            yield QueryTerm(text=f"{sharp[1]}{_SHARP_NAMES[sharp[2]]}", typed=word), False
            continue
        word = word.strip("#+")
        if HASH.fullmatch(word):
            yield QueryTerm(text=word, typed=word, prefix=True), False
            for length in _SHORT_HASHES:
                if length < len(word):
                    yield QueryTerm(text=word[:length], typed=word[:length]), False
            continue
        yield QueryTerm(text=word, typed=word), _is_stop_word(word)
        for part in _identifier_parts(word):
            yield QueryTerm(text=part, typed=part), _is_stop_word(part)


def _identifier_parts(word: str) -> Iterator[str]:
    """The words of `open_reader`, `store/reader.py` and `openReader`."""
    for part in _COMPOUND_PART.findall(word):
        if part != word:
            yield part
        if _HUMP.search(part) and len(part) <= _MAX_CAMEL_CHARACTERS:
            yield from (hump for hump in _PARTS.findall(part) if len(hump) >= _MIN_PART_CHARACTERS)


def _is_stop_word(word: str) -> bool:
    return word.casefold() in ENGLISH_STOP_WORDS
