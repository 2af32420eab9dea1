"""Parts of a query that can only be meant exactly: names of documents, identifiers, quotations, the query itself. Pure.

An embedding says nothing about `FP-131` or `ECONNRESET`, so the places that hold one come first. The first of these is
the place that is about it: a heading tells that best, and the number of occurrences second best.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from memory.chunking.folding import fold
from memory.chunking.segmenting import HASH

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
