"""Query: the part of it that is searched, its terms, and its parts that can only be meant exactly. Pure.

The terms are those of the full-text index (`memory.chunking.segmenting`). Here they serve snippets (the place of the
match) and coverage (the share of the question that a text holds), on the text as people wrote it. So they are found as
substrings: words by their stem, runs of CJK by their bigrams.

Names of documents, identifiers, quotations and the query itself are meant exactly. An embedding says nothing about
`FP-131` or `ECONNRESET`, so the places that hold one come first. The first of these is the place that is about it: a
heading tells that best, and the number of occurrences second best.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from memory.chunking.segmenting import HASH, QueryTerm, listed_terms, query_terms
from schemas.conditions import Condition, ConditionCode

if TYPE_CHECKING:
    from memory.store.reader import TermCounts

_JOINER = "\u200d"
#: Skin tones, letters of flags, and conjoining vowels and final consonants of Hangul.
_JOINED_TO_PREVIOUS = (range(0x1F3FB, 0x1F400), range(0x1F1E6, 0x1F200), range(0x1160, 0x1200))


def splits_character(text: str, at: int) -> bool:
    """Return True if a cut before `text[at]` tears apart one visible character.

    Covers combining marks, variation selectors, joined and tinted emoji, flags, Hangul in pieces and CR LF. A row of
    flags counts as one.
    """
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if after < "\u0300":
        return before == "\r" and after == "\n"
    if before == _JOINER or after == _JOINER or unicodedata.category(after)[0] == "M":
        return True
    block = next((block for block in _JOINED_TO_PREVIOUS if ord(after) in block), None)
    # The first of two letters of a flag has another character before it.
    return block is not None and (block.start != 0x1F1E6 or ord(before) in block)


def splits_word(text: str, at: int) -> bool:
    """Return True if a cut before `text[at]` splits a word. CJK has no such words."""
    return 0 < at < len(text) and _in_word(text[at - 1]) and _in_word(text[at])


def cut_at_or_before(text: str, at: int, *, lowest: int) -> int:
    """Return the greatest allowed cut in (lowest, at].

    A single word longer than the room is cut between characters; a single character longer than the
    room (a pile of combining marks) is cut at `at`, so that a bound on the length always holds.
    """
    if at >= len(text):
        return len(text)
    for place in range(at, lowest, -1):
        if not splits_character(text, place) and not splits_word(text, place):
            return place
    for place in range(at, lowest, -1):
        if not splits_character(text, place):
            return place
    return at


def cut_at_or_after(text: str, at: int, *, highest: int) -> int:
    """Return the smallest allowed cut in [at, highest]; without one `highest`, which the caller knows to be allowed."""
    if at <= 0:
        return 0
    for place in range(at, highest):
        if not splits_character(text, place) and not splits_word(text, place):
            return place
    return highest


def _in_word(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character == "_"
    # Letters beyond ASCII make words, too (Cyrillic, Greek, accented Latin), up to where scripts without spaces begin.
    return "\u00aa" <= character < "\u0e00" and character.isalnum()


#: Characters of a query that are searched. Keywords come from far fewer
#: (`memory.chunking.segmenting.MAX_QUERY_TERMS`), and embedding this many takes a local model some 70 ms, ten times as
#: long as the rest of a search.
SEARCHED_CHARACTERS = 2_000

#: A longer word is no word, and may be cut.
_LONGEST_WORD = 256

#: Characters of a query that are redacted: more than are searched, so that a secret at the end of those is whole.
_REDACTED_CHARACTERS = 2 * SEARCHED_CHARACTERS

#: Full-width ASCII is written with these; one character each way, so positions stay true.
_NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_WIDE = re.compile("[\uff01-\uff5e\u3000]")

#: Latin letters with accents, which the full-text index ignores, too.
_PLAIN = {
    code: plain
    for code in range(0xC0, 0x250)
    if (plain := unicodedata.normalize("NFD", chr(code))[0]).isascii() and plain.isalpha()
}
_ACCENTED = re.compile("[\u00c0-\u024f]")

#: Words longer than this are looked for without their last letters: a cheap stem.
_STEM_FROM = 6

#: A rare word is in at most `_FEW` chunks, or in this share of them, and is one of the first `_MOST_LISTED` words.
_FEW, _RARE, _MOST_LISTED = 5, 0.05, 8

#: Factor of the weight of a pair of characters that no text has.
_STRADDLING = 0.3


def fold(text: str) -> str:
    """Return the text in lower case, in narrow forms and without accents, every character at its place."""
    if text.isascii():
        return text.lower()
    # Translation is slow, and few texts need it.
    narrow = text.translate(_NARROW) if _WIDE.search(text) else text
    narrow = narrow.translate(_PLAIN) if _ACCENTED.search(narrow) else narrow
    lower = narrow.lower()
    if len(lower) == len(text):
        return lower
    return "".join(low if len(low := character.lower()) == 1 else character for character in narrow)


@dataclass(frozen=True, slots=True)
class SearchedQuery:
    """Text that is searched. `cut` is the condition of a longer query, else None."""

    text: str
    cut: Condition | None


def searched_query(query: str, redact: Callable[[str], str]) -> SearchedQuery:
    """Return the searched beginning of a query, without its secrets.

    A user who pastes a whole log gets an answer to its beginning, at the price of a short question.
    """
    query = query.strip()
    looked_through = query
    if len(query) > _REDACTED_CHARACTERS:
        looked_through = _beginning(query, _REDACTED_CHARACTERS)
    text = redact(looked_through)
    if len(text) > SEARCHED_CHARACTERS:
        text = _beginning(text, SEARCHED_CHARACTERS)
    elif looked_through is query:
        return SearchedQuery(text, None)
    cut = Condition(ConditionCode.QUERY_CUT, params={"characters": len(query), "searched": len(text)})
    return SearchedQuery(text, cut)


def _beginning(text: str, length: int) -> str:
    return text[: cut_at_or_before(text, length, lowest=length - _LONGEST_WORD)]


# One search calls it several times.
@lru_cache(maxsize=64)
def sought(query: str) -> tuple[str, ...]:
    """Return the distinct pieces to look for, folded, at most 96. Empty for a query without a letter or digit.

    A phrase of Chinese, Japanese or Korean is represented by its pairs of characters.
    """
    return tuple(dict.fromkeys(_stem(fold(term.typed)) for term in _single_terms(query)))


def coverage_of(query: str, counts: TermCounts) -> Callable[[str, str], float]:
    """Return the function (text, `fold(text)`) -> share 0..1 of the query's weight that the text holds.

    A term weighs its inverse document frequency, `ln(1 + (N - n + 0.5) / (n + 0.5))`, so that words of many chunks say
    little, and a word of no chunk weighs most. But a pair of characters of no chunk probably straddles two words, as no
    text would write it: it weighs a third.
    """
    terms: list[tuple[str, float]] = []
    for term in _single_terms(query):
        holding = counts.holding.get(term.text, 0)
        weight = math.log(1 + (max(0, counts.chunks - holding) + 0.5) / (holding + 0.5))
        straddles = not holding and term.pair
        terms.append((_stem(fold(term.typed)), weight * _STRADDLING if straddles else weight))
    total = sum(weight for _, weight in terms)

    def coverage(text: str, folded: str) -> float:
        covered_weight = sum(weight for term, weight in terms if _begins_word(term, text, folded))
        return min(1.0, covered_weight / total) if total else 0.0

    return coverage


def rare_words(query: str, counts: TermCounts) -> list[str]:
    """Return the rare words of a list of words, or the only word, as the user typed them."""
    words = [term for term in listed_terms(query) if not term.pair][:_MOST_LISTED]
    most = max(_FEW, _RARE * counts.chunks) if len(words) > 1 else counts.chunks
    return [term.typed for term in words if 0 < counts.holding.get(term.text, 0) <= most]


def _single_terms(query: str) -> Iterator[QueryTerm]:
    """Return the query's terms without phrases: pairs of characters represent a phrase of CJK."""
    return (term for term in query_terms(query) if " " not in term.text)


def _begins_word(term: str, text: str, folded: str) -> bool:
    """Return True if a term begins a word of a text; `Reader` begins one in `openReader`."""
    place = folded.find(term)
    if not term[0].isascii():
        return place >= 0
    while place > 0:
        before = text[place - 1]
        if not before.isalnum() or not before.isascii() or (text[place].isupper() and not before.isupper()):
            return True
        if before.isdigit() != text[place].isdigit():
            return True
        place = folded.find(term, place + 1)
    return place == 0


def _stem(word: str) -> str:
    """Drop the English ending of a word, keeping at least four letters."""
    if not word.isalpha() or len(word) < _STEM_FROM:
        return word[:-1] if len(word) > 4 and word.isalpha() and word.endswith("s") else word
    for ending in ("ations", "ation", "ingly", "ings", "edly", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word


#: Longer queries are texts of their own, which no document holds word for word.
MAX_VERBATIM_CHARACTERS = 200

#: Longer texts of Chinese, Japanese or Korean are questions, which have no spaces either.
LONGEST_WIDE_NAME = 6

# Not a quotation: the apostrophe in "don't".
_QUOTED = re.compile(r'"([^"\n]{2,200})"|“([^”\n]{2,200})”|「([^」\n]{2,200})」|『([^』\n]{2,200})』|`([^`\n]{2,200})`')
_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:#@+-]*[A-Za-z0-9_+#]")
#: `27th`, `1990s`, `10km`, `5pm`, `3.5`, `2-3`: numbers are no identifiers.
_NUMBER = re.compile(r"[\d.,:/-]+[A-Za-z]{0,3}")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?")
_CONSTANT = re.compile(r"[A-Z]{6,}")
_ABBREVIATION = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]?")
_DIGIT_AND_LETTER = re.compile(r"(?=.*\d)(?=.*[A-Za-z])")
_JOINED = re.compile(r"[A-Za-z0-9][_/.:@][A-Za-z0-9]|[a-z][A-Z]")
_SPACES = re.compile(r"\s+")
_HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)

#: Occurrences that count, so that a place which repeats a word stays below a place with the word as its heading.
_MOST_OCCURRENCES = 9

#: Names of one query that are looked up, and characters of one name.
_MOST_FILE_NAMES, _LONGEST_FILE_NAME = 8, 255

# Characters that people write around a path, and the lines that a citation adds to it.
_BETWEEN_FILE_NAMES = re.compile(r"[\s\"'`“”‘’「」『』，。？！()\[\]<>]+")
_LINES = re.compile(r"(?:#L\d+(?:-L\d+)?|:\d+(?:-\d+)?)$", re.IGNORECASE)
_ROLLOUT_TIME = re.compile(r"^rollout-....-..-..T..-..-..-", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileName:
    """Possible name of a document: a query, or a piece with an ending or a slash. `rest` is the query without it."""

    path: str
    rest: str

    @property
    def places(self) -> set[tuple[str, str]]:
        """Return folders and names for `StoreReader.named`, which folds the case of ASCII letters only."""
        cases = (str, str.lower, str.upper, str.title)
        written = {unicodedata.normalize(form, case(self.path)) for form in ("NFC", "NFD") for case in cases}
        parted = (path.rpartition("/") for path in ({self.path} if self.path.isascii() else written))
        absolute = self.path.startswith(("/", "~"))
        return {(f"/{at}/" if at and not absolute else "/", _ROLLOUT_TIME.sub("", name)) for at, _, name in parted}

    def fits(self, path: str) -> int:
        """Return the quality of the match: 3 by the whole path, 2 by its end, 1 without its ending, 0 for no match."""
        typed, stored = (f"/{unicodedata.normalize('NFC', path_text).casefold()}" for path_text in (self.path, path))
        if typed == stored or (typed.startswith(("//", "/~")) and typed.endswith(stored)):
            return 3
        if stored.endswith(typed):
            return 2
        folders, _, name = stored.rpartition("/")
        stems = (name.rpartition(".")[0], name.partition(".jsonl")[0])
        ends = {f"{folders}/{end}" for stem in stems if stem for end in (stem, _ROLLOUT_TIME.sub("", stem))}
        # A word of a question is no name without its ending.
        return int(any(end.endswith(typed) for end in ends) and (not self.rest or "/" in self.path))


def file_names(query: str) -> list[FileName]:
    """Return the possible names of documents: the whole query, and pieces with an ending or a slash."""
    pieces = [piece for piece in _BETWEEN_FILE_NAMES.split(query) if "/" in piece or "." in piece or "\\" in piece]
    names: dict[str, FileName] = {}
    for written, rest in [(query, ""), *((piece, query.replace(piece, " ").strip()) for piece in pieces)]:
        path = _LINES.sub("", written.strip(" \t\n.,;:!?()[]<>\"'`“”‘’「」『』，。？！")).replace("\\", "/").rstrip("/")
        if path and len(path) <= _LONGEST_FILE_NAME and path.isprintable():
            names.setdefault(path, FileName(path, rest))
    return list(names.values())[:_MOST_FILE_NAMES]


@dataclass(frozen=True, slots=True)
class ExactPieces:
    """Texts to look for, folded. `verbatim` is the whole query, empty if it is one of the pieces or too long.

    `looked_up` is the whole query if it is a single word or piece: a name that a person looks up; else empty.
    """

    pieces: tuple[str, ...]
    verbatim: str
    looked_up: str = ""

    def share(self, folded: str) -> float:
        """Return the share 0..1 of the pieces that a folded text holds; 1 if it holds the whole query verbatim."""
        if self.verbatim and self.verbatim in folded and _stands_alone(self.verbatim, folded):
            return 1.0
        if not self.pieces:
            return 0.0
        count = sum(piece in folded and _stands_alone(piece, folded) for piece in self.pieces)
        return count / len(self.pieces)

    def standing(self, folded: str) -> float:
        """Return the prominence 0..1 of the looked-up name in a folded text.

        A heading with it is above 0.9, and 1 if it is only the name. Else each occurrence after the first is 0.1.
        """
        name = self.looked_up
        if not name or name not in folded or not _stands_alone(name, folded):
            return 0.0
        heading = _heading_share((name,), folded)
        return 0.9 + 0.1 * heading if heading else 0.1 * (min(folded.count(name), _MOST_OCCURRENCES) - 1)

    def headed(self, folded: str) -> bool:
        """Return True if a heading of a folded text holds one of the pieces."""
        return _heading_share(self.pieces, folded) > 0


@lru_cache(maxsize=64)
def exact_pieces(query: str) -> ExactPieces:
    """Return the parts of a query that are meant exactly."""
    quoted = [next(filter(None, match.groups())).strip() for match in _QUOTED.finditer(query)]
    names = [token for token in _TOKEN.findall(query) if _is_identifier(token)]
    pieces = tuple(dict.fromkeys(fold(piece) for piece in [*quoted, *names] if len(piece) > 1))
    phrase = _SPACES.sub(" ", fold(query)).strip(" \t\n?!.。？！\"'`“”「」『』")
    # A single word is in many places; several words in this order name one.
    several = " " in phrase or (not phrase.isascii() and len(phrase) >= 4)
    verbatim = phrase if several and len(phrase) <= MAX_VERBATIM_CHARACTERS and phrase not in pieces else ""
    is_word = " " not in phrase and (phrase.isascii() or len(phrase) <= LONGEST_WIDE_NAME)
    is_name = phrase in pieces or (is_word and not pieces)
    return ExactPieces(pieces, verbatim, phrase if is_name else "")


def _is_identifier(token: str) -> bool:
    if _ADDRESS.fullmatch(token) or _CONSTANT.fullmatch(token):
        return True
    if len(token) < 4 or _NUMBER.fullmatch(token) or _ABBREVIATION.fullmatch(token):
        return False
    return bool(_DIGIT_AND_LETTER.match(token) or _JOINED.search(token))


def _heading_share(pieces: Sequence[str], folded: str) -> float:
    """Return the largest share 0..1 of a heading of a folded text that is one of the pieces."""
    shares = [0.0]
    for heading in _HEADING.findall(folded) if pieces and "# " in folded else ():
        shares += [len(piece) / len(heading) for piece in pieces if piece in heading and _stands_alone(piece, heading)]
    return max(shares)


def _stands_alone(piece: str, folded: str) -> bool:
    """Return True if a piece occurs outside of longer words: `fp-13` does not in `fp-131`. A hash may be cut."""
    needs_end = not HASH.fullmatch(piece)
    place = folded.find(piece)
    while place >= 0:
        before, after = folded[place - 1 : place], folded[place + len(piece) : place + len(piece) + 1]
        if not (_joins(before) and _joins(piece[0])) and not (needs_end and _joins(after) and _joins(piece[-1])):
            return True
        place = folded.find(piece, place + 1)
    return False


def _joins(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")
