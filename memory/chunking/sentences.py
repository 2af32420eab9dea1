"""Sentences of a message or a note, for the parts of the ranking that compare less than a chunk. Pure."""

from __future__ import annotations

import re

#: Fewest and most characters of a sentence.
_FEWEST, _MOST = 40, 240

#: The same in Chinese, Japanese and Korean.
_FEWEST_CJK, _MOST_CJK = 12, 80

_END = re.compile(r"\n+|[.!?…][\"'”’)\]]*\s+|[。！？；｡][”’」』）]*\s*")
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


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text in their order, without those that hold no letter or digit.

    A sentence of fewer characters than the least joins the next one. A longer one than the most is cut, between words
    if possible.
    """
    fewest, most = (_FEWEST_CJK, _MOST_CJK) if is_cjk(text) else (_FEWEST, _MOST)
    pieces: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if match.end() - start >= fewest:
            pieces += _cut(text[start : match.end()].strip(), most)
            start = match.end()
    rest = text[start:].strip()
    if pieces and len(rest) < fewest and len(pieces[-1]) + len(rest) < most:
        pieces[-1] = f"{pieces[-1]} {rest}".strip()
    else:
        pieces += _cut(rest, most)
    return [piece for piece in pieces if _WORD.search(piece)]


def _cut(sentence: str, most: int) -> list[str]:
    pieces = []
    while len(sentence) > most:
        space = sentence.rfind(" ", most // 2, most)
        end = space if space > 0 else most
        pieces.append(sentence[:end].strip())
        sentence = sentence[end:].strip()
    return [*pieces, sentence]
