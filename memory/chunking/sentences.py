"""Scripts of a text; and sentences, for the parts of the ranking that compare less than a chunk. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache

#: Fewest and most characters of a sentence.
_FEWEST, _MOST = 40, 240

#: The same in Chinese, Japanese and Korean.
_FEWEST_CJK, _MOST_CJK = 12, 80

# It begins with a set of characters, which makes it eight times faster.
_END = re.compile(r"[\n.!?…。！？；｡](?:[\"'”’)\]」』）]*\s+|(?<=[\n。！？；｡])[\"'”’」』）]*)")
_WORD = re.compile(r"[^\W_]")
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_SPACES = re.compile(r"\s+")

#: Characters of a text by which its script is recognized.
_SCRIPT_SAMPLE = 400


def is_cjk(text: str) -> bool:
    """Return True if the beginning of a text is Chinese, Japanese or Korean."""
    if text.isascii():
        return False
    sample = _SPACES.sub("", text[:_SCRIPT_SAMPLE])
    return len(_CJK.findall(sample)) > 0.25 * len(sample)


def letters_by_script(text: str) -> Counter[str]:
    """Return the number of letters of each script, named as in Unicode: LATIN, GREEK, CJK, HIRAGANA."""
    letters: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if character.isalpha():
            letters[_script_of(character)] += count
    return letters


@lru_cache(maxsize=8_192)
def _script_of(letter: str) -> str:
    """Return the first word of a letter's name. A letter of full width counts as the usual one."""
    name = unicodedata.name(unicodedata.normalize("NFKC", letter)[0], "")
    return name.replace("-", " ").partition(" ")[0]


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text in their order, without those that hold no letter or digit.

    A sentence of fewer characters than the least joins the next one. A longer one than the most is cut, between words
    if possible.
    """
    cjk = is_cjk(text)
    most = _MOST_CJK if cjk else _MOST
    pieces = [piece for start, end in sentence_spans(text, cjk=cjk) for piece in _cut(text[start:end].strip(), most)]
    return [piece for piece in pieces if _WORD.search(piece)]


def sentence_spans(text: str, *, cjk: bool) -> list[tuple[int, int]]:
    """Return the first character of each sentence, and the one after its last; together they cover the text."""
    fewest, most = (_FEWEST_CJK, _MOST_CJK) if cjk else (_FEWEST, _MOST)
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _END.finditer(text):
        if match.end() - start >= fewest:
            spans.append((start, match.end()))
            start = match.end()
    if start == len(text):
        return spans
    if spans and len(text) - start < fewest and len(text) - spans[-1][0] < most:
        spans[-1] = (spans[-1][0], len(text))
    else:
        spans.append((start, len(text)))
    return spans


def _cut(sentence: str, most: int) -> list[str]:
    pieces = []
    while len(sentence) > most:
        space = sentence.rfind(" ", most // 2, most)
        end = space if space > 0 else most
        pieces.append(sentence[:end].strip())
        sentence = sentence[end:].strip()
    return [*pieces, sentence]
