"""Segmenting of texts and queries for full-text search. Pure functions of strings.

FTS5's `unicode61` takes a run of Chinese, Japanese or Korean characters for one word, so that a search cannot find a
word inside. Here such a run becomes its overlapping pairs of characters ("bigrams"), in texts and in queries. So does a
run of Thai, Lao, Burmese or Khmer, whose pairs consist of consonants with their vowels and tone marks. `unicode61` and
the Porter stemmer around it process everything else. The stemmer knows ASCII suffixes only and leaves bigrams alone.

Two details that the tokenizer drops are written out: the parts of a camelCase word (`openReader` is also `open
Reader`), and `C++`, `C#` and `F#`, which would otherwise be one letter. A query searches for an identifier as a whole
and for its parts, for a hash also by its beginning, and for a day in the form of dated notes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add
from string import ascii_letters

from memory.chunking.dates import dates_in
from memory.chunking.folding import fold, without_prefixes
from memory.chunking.stop_words import (
    CHINESE_STOP_BIGRAMS,
    CHINESE_STOP_CHARACTERS,
    is_plainly_english,
    stop_words_for,
    stop_words_of,
)

#: Part of an index's fingerprint. Raise it with every change of the results of `index_text` or `index_title`.
SEGMENTER_VERSION = 3

#: FTS5 tokenizer of texts and queries. Vowel signs of India are marks, and parts of words.
FTS5_TOKENIZER = "porter unicode61 remove_diacritics 2 categories ''L* N* Co M*''"

#: Largest number of terms in a query; FTS5 refuses expressions deeper than 256.
MAX_QUERY_TERMS = 96

#: Largest number of characters of a query.
MAX_QUERY_CHARACTERS = 4_000

#: Longest run that is also one phrase of the query, which ranks the exact wording first.
MAX_PHRASE_CHARACTERS = 8

# First and last characters of ranges, ascending: the repetition mark, zero, Hangzhou numerals, Hiragana, Katakana,
# Bopomofo, Hangul letters, Han, Hangul syllables, supplements. NFKC comes first, so half-width kana and Hangul jamo
# have become full characters by then. The class is made of the gaps: the first decides ASCII, most of a text.
_CJK_EDGES = (
    "々々〇〇〡〩ぁゖゝゟァヺーヿㄅㄯㄱㆎㆠㆿㇰㇿ㐀䶿一\u9fff\ua960\ua97c가힣"
    "\uf900\ufaff\U0001aff0\U0001b16f\U00020000\U0003fffd"
)
_AFTER = ["\0", *(chr(ord(last) + 1) for last in _CJK_EDGES[1::2])]
_GAPS = (f"{first}-{chr(ord(edge) - 1)}" for first, edge in zip(_AFTER, _CJK_EDGES[::2], strict=False) if first < edge)
_CJK_RUN = re.compile(f"[^{''.join(_GAPS)}{_AFTER[-1]}-\U0010ffff]+")

# Letters and marks of Thai, Lao, Burmese, Khmer. The tokenizer takes marks for the ends of words, and code points for
# private use for letters. Marks therefore become such code points.
_UNSPACED = "ก-\u0e3aเ-\u0e4eກ-\u0eceໜ-ໟက-\u103fၐ-\u108fႚ-\u109dក-\u17d3ៜ\u17dd"
_BLOCKS = map(chr, (*range(0x0E00, 0x0F00), *range(0x1000, 0x10A0), *range(0x1780, 0x1800)))
_MARKS = "".join(sign for sign in _BLOCKS if unicodedata.category(sign)[0] == "M")
_MARKS_AS_LETTERS = {ord(mark): 0xE000 + ord(mark) % 0x1000 for mark in _MARKS}
_UNIT_END = "\uefff"
# A vowel that is written first; a letter, others that are stacked below it, and marks; vowels that are letters.
_UNIT = re.compile(f"[เ-ไເ-ໄ]?[^{_MARKS}](?:[\u1039\u17d2][^{_MARKS}]|[{_MARKS}])*[ะาๅະາ]*|[{_MARKS}]+")
# People put characters without width between words, or not, and type the ring of SARA AM before or after a tone mark.
_NO_WIDTH = re.compile("[\u200b-\u200d\u2060]*")
_RING_FIRST = re.compile("([\u0e4d\u0ecd])([\u0e48-\u0e4b\u0ec8-\u0ecb])")

_UNSPACED_RUN = re.compile(f"[{_UNSPACED}](?:{_NO_WIDTH.pattern}[{_UNSPACED}])*")
_UNSPACED_SIGN = re.compile(f"[{_UNSPACED}]")
_RUN = re.compile(f"{_CJK_RUN.pattern}|{_UNSPACED_RUN.pattern}")
_HIRAGANA = re.compile("[\u3041-\u309f]+")

# Chinese punctuation that NFKC maps to ASCII. Replacing it by hand first spares most Chinese texts the
# slow way through `unicodedata.normalize`, which is quick for what is normal already.
_FULL_WIDTH = tuple((chr(ord(sign) + 0xFEE0), sign) for sign in ",:;!?()")

# A capital letter after a lower-case one is where a camelCase word breaks.
_HUMP = re.compile(r"[A-Z](?<=[a-z][A-Z])")
_LETTERS = re.compile(r"[A-Za-z]+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Longer "words" are encoded data: their humps mean nothing.
_MAX_CAMEL_CHARACTERS = 64
_MIN_PART_CHARACTERS = 3

_SHARP = re.compile(r"\b([CFcf])(\+\+|#)(?!\w)")
_SHARP_NAMES = {"++": "plusplus", "#": "sharp"}
_SHARP_HINTS = ("C+", "c+", "C#", "c#", "F#", "f#")

# Separators of words in a query. Not `-_./:@#&+`: paths, dates, versions and ids stay whole.
_BETWEEN_WORDS = re.compile(
    r"[\s\x00-\x1f,;!?()\[\]{}<>\"'`|*^=~\\“”‘’„‚‹›«»¿¡…،؛؟।、。，；：！？（）【】《》「」『』〈〉·]+"
)
# Punctuation around a word that the tokenizer ignores.
_AROUND_WORDS = "-_./:@&"
_COMPOUND_PART = re.compile(r"[^\W\d_]{3,}")
#: Digits and letters as of a commit's or a file's hash.
HASH = re.compile(r"(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}", re.IGNORECASE)
#: Usual lengths of a shortened hash.
_SHORT_HASHES = (7, 8, 10, 12)
_WORD_CHARACTER = re.compile(r"[^\W_]")
#: Letters with their marks. No character is of both kinds, or a long word would be matched in as many ways.
_WORD_OF_LETTERS = re.compile("(?:[^\\W\\d_\u0900-\u0dff]|[\u0900-\u0dff])+")
#: Short word of an Indian script, which other forms begin with.
_STEM_OF_INDIA = re.compile("[\u0900-\u0dff]{3,4}")
#: Vietnamese letters that tones tell apart; a word has a term with them and one without, as people type it in haste.
_TONED = re.compile("[\u1ea0-\u1ef9]")
_TONES_AS_LETTERS = {code: 0xF000 + code % 0x800 for code in (*range(0xC0, 0x1C0), *range(0x1EA0, 0x1EFA))}
_LETTER_RUN = re.compile(r"[^\W\d_]+")
_QUESTION_MARK = re.compile("[?？؟]")


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """Term of a query. `text` holds the words of a phrase, segmented like the index, separated by blanks.

    A `prefix` term also matches words that begin with it. `typed` is the term as written in a text, for highlighting. A
    `pair` may straddle two words. `form` is the folded beginning of the word's other forms, "" if they do not count.
    """

    text: str
    typed: str
    prefix: bool = False
    pair: bool = False
    form: str = ""


def index_text(text: str) -> str:
    """Return the text for FTS5 to index."""
    if not text.isascii():
        for wide, sign in _FULL_WIDTH:
            text = text.replace(wide, sign)
        text = _CJK_RUN.sub(_spread, unicodedata.normalize("NFKC", text))
        if _UNSPACED_SIGN.search(text):
            text = _UNSPACED_RUN.sub(_spread_units, text)
        text = _spell_out(text)
        if _TONED.search(text):
            text += _toned(f" {' '.join(filter(_TONED.search, _LETTER_RUN.findall(text)))}")
        return without_prefixes(fold(text))
    return _spell_out(text)


def index_title(source: str, path: str) -> str:
    """Return the part of a note's name that its chunks include, `projects/gateway-plan` of
    `memory/projects/gateway-plan.md`.

    For an absolute path, that is only the file's name. A transcript has none, because its name is a number.
    """
    if source != "memory":
        return ""
    name = path.rpartition("/")[2] if path.startswith("/") else path.removeprefix("memory/")
    stem, dot, _ = name.rpartition(".")
    return stem if dot else name


def query_terms(query: str) -> tuple[QueryTerm, ...]:
    """Return the terms to search for, any of them: words, phrases of bigrams, at most `MAX_QUERY_TERMS`.

    Stop words are dropped unless no other term is left. Empty if the query has no letter or digit.
    """
    strong, weak = _strong_and_weak(query)
    return strong or weak


def listed_terms(query: str) -> tuple[QueryTerm, ...]:
    """Return the terms of a query that is a list of words; none for a question or a query with stop words."""
    strong, weak = _strong_and_weak(query)
    return strong if not weak and not _QUESTION_MARK.search(query) else ()


# One search calls it several times.
@lru_cache(maxsize=64)
def _strong_and_weak(query: str) -> tuple[tuple[QueryTerm, ...], tuple[QueryTerm, ...]]:
    """Return the terms of a query, and separately its stop words."""
    # Characters may grow under NFKC (one Arabic ligature becomes eighteen), so the cut comes after it, too.
    text = unicodedata.normalize("NFKC", query[:MAX_QUERY_CHARACTERS])[:MAX_QUERY_CHARACTERS]
    strong: dict[str, QueryTerm] = {}
    weak: dict[str, QueryTerm] = {}
    for term, is_stop_word in _terms(text):
        (weak if is_stop_word else strong).setdefault(term.text.casefold(), term)
        if len(strong) >= MAX_QUERY_TERMS:
            break
    return tuple(strong.values())[:MAX_QUERY_TERMS], tuple(weak.values())[:MAX_QUERY_TERMS]


def match_terms(query: str) -> dict[str, str]:
    """Return the FTS5 expression of each of the query's terms by its text, and of each form by the form and `*`.

    Every term is a quoted string, so that no typed text is ever an operator.
    """
    expressions = {}
    for term in query_terms(query):
        escaped = without_prefixes(fold(term.text)).replace('"', '""')
        expressions[term.text] = f'"{escaped}"*' if term.prefix else f'"{escaped}"'
        if _TONED.search(term.text) and _LETTER_RUN.fullmatch(term.text):
            expressions[_toned(term.text)] = f'"{_toned(term.text)}"'
        if term.form:
            expressions[f"{term.form}*"] = f'"{term.form}"*'
    return expressions


def _toned(text: str) -> str:
    """Return Vietnamese words with their tones, which the tokenizer ignores, in letters for private use."""
    return text.lower().translate(_TONES_AS_LETTERS)


def _form(word: str) -> str:
    """Return the beginning that a word has in common with its other forms; "" for a word too short to have some.

    Five letters of a longer word tell it from others, four in Arabic and Hebrew, whose words are short. A shorter word
    loses its last letter at most. Letters of India are followed by their vowels.
    """
    folded = without_prefixes(fold(word))
    if not _WORD_OF_LETTERS.fullmatch(folded):
        return ""
    longest = 4 if "\u0590" <= folded[0] < "\u0700" else 5
    least = longest if "\u0900" <= folded[0] < "\u0e00" else longest - 1
    return folded[: longest if len(folded) > longest else least] if len(folded) >= least else ""


def _spread(match: re.Match[str]) -> str:
    """`今天好` -> ` 今天 天好 好 `: the last character stands alone so that a prefix finds it."""
    run = match[0]
    return f" {' '.join(map(add, run, run[1:]))} {run[-1]} "


def _spread_units(match: re.Match[str]) -> str:
    """Do the same with the units of a run of Thai, Lao, Burmese or Khmer."""
    units = [_written(unit) for unit in _units(match[0])]
    return f" {' '.join(map(add, units, units[1:]))} {units[-1]} "


def _units(run: str) -> Sequence[str]:
    """Return the units of pairs: characters, or clusters of them in Thai, Lao, Burmese and Khmer."""
    if not _UNSPACED_SIGN.match(run):
        return run
    return _UNIT.findall(_RING_FIRST.sub(r"\2\1", _NO_WIDTH.sub("", run)))


def _written(unit: str) -> str:
    """Return a cluster in its indexed form: with an end mark, so that a prefix does not match a longer cluster."""
    return f"{unit.translate(_MARKS_AS_LETTERS)}{_UNIT_END}"


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
        before = text[max(done, capital - _MAX_CAMEL_CHARACTERS) : capital]
        word = _LETTERS.match(text, capital - len(before) + len(before.rstrip(ascii_letters)))
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
    """Yield terms in the order of the text, each with True for a stop word."""
    between = _RUN.sub(" ", text)
    words = [word.strip(_AROUND_WORDS).casefold() for word in _BETWEEN_WORDS.split(between)]
    stops, form_of = stop_words_for(words), (lambda _: "") if is_plainly_english(words) else _form
    position = 0
    for run in _RUN.finditer(text):
        yield from _word_terms(text[position : run.start()], stops, form_of)
        yield from _run_terms(run[0])
        position = run.end()
    yield from _word_terms(text[position:], stops, form_of)
    for date in dates_in(text):
        yield QueryTerm(text=date, typed=date), False


def _run_terms(run: str) -> Iterator[tuple[QueryTerm, bool]]:
    typed = _units(run)
    units = typed if typed is run else [_written(unit) for unit in typed]
    silent = _silent(run)
    if len(units) == 1:
        yield QueryTerm(text=units[0], typed=_composed(typed[0]), prefix=True), any(silent)
    pairs = list(map(add, units, units[1:]))
    written = map(add, typed, typed[1:])
    stops = [pair in CHINESE_STOP_BIGRAMS or any(silent[at : at + 2]) for at, pair in enumerate(written)]
    if 2 < len(units) <= MAX_PHRASE_CHARACTERS and not all(stops):
        yield QueryTerm(text=" ".join(pairs), typed=_composed("".join(typed))), False
    for at, is_stop in enumerate(stops):
        # A run of two is a word.
        is_single = len(stops) == 1
        yield QueryTerm(text=pairs[at], typed=_composed(typed[at] + typed[at + 1]), pair=not is_single), is_stop


def _composed(text: str) -> str:
    """Return a text as people type it, with the vowels that NFKC takes apart."""
    return text.replace("\u0e4d\u0e32", "\u0e33").replace("\u0ecd\u0eb2", "\u0eb3")


def _silent(run: str) -> list[bool]:
    """Return True for each character of a run that is a particle, or part of a stop word between others."""
    japanese = stop_words_of("japanese")
    if run in japanese or run in stop_words_of("korean"):
        return [True] * len(run)
    silent = [character in CHINESE_STOP_CHARACTERS for character in run]
    for match in _HIRAGANA.finditer(run):
        kana, first = match[0], match.start()
        # One, or two of which the first is longer than a particle.
        if kana in japanese or any(kana[:at] in japanese and kana[at:] in japanese for at in range(2, len(kana))):
            silent[first : match.end()] = [True] * len(kana)
    return silent


def _word_terms(text: str, stops: Collection[str], form_of: Callable[[str], str]) -> Iterator[tuple[QueryTerm, bool]]:
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
        for part in (word, *_identifier_parts(word)):
            is_stem = _STEM_OF_INDIA.fullmatch(part) is not None
            yield QueryTerm(text=part, typed=part, prefix=is_stem, form=form_of(part)), part.casefold() in stops


def _identifier_parts(word: str) -> Iterator[str]:
    """Yield the words of `open_reader`, `store/reader.py` and `openReader`."""
    for part in _COMPOUND_PART.findall(word):
        if part != word:
            yield part
        if _HUMP.search(part) and len(part) <= _MAX_CAMEL_CHARACTERS:
            yield from (hump for hump in _PARTS.findall(part) if len(hump) >= _MIN_PART_CHARACTERS)
