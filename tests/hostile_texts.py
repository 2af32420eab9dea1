"""Texts that make a program slow which looks for a part again and again, and the growth of the time that it takes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import Any

#: Returns a text of about so many characters.
Maker = Callable[[int], str]

#: Power of a text's size with which a time may grow: 1 is linear, 2 quadratic.
MOST_GROWTH = 1.45


def seconds(run: Callable[[str], object], text: str) -> float:
    """Return the processor time of a call."""
    begun = time.thread_time()
    run(text)
    return time.thread_time() - begun


def is_superlinear(run: Callable[[str], object], make: Maker, size: int, *, factor: int = 8) -> bool:
    """Return True if the time grows faster than the text, up to a size.

    The machine's other work can only spoil a measurement: one good one of several counts.
    """
    for _ in range(8):
        short = min(seconds(run, make(size // factor)) for _ in range(3))
        if log(seconds(run, make(size)) / short, factor) <= MOST_GROWTH:
            return False
    return True


#: Parts of a pattern's source. References and flags match nothing here.
_PART = re.compile(
    r"(?P<empty>\\[1-9bBAZ]|\(\?P=\w+\)|\(\?#[^)]*\)|\(\?[a-zA-Z]+\)|[\^$])"
    r"|(?P<atom>\[\^?\]?(?:\\.|[^\]\\])*\]|\\x..|\\u....|\\U........|\\.|\.)"
    r"|(?P<look>\(\?<?[=!])|(?P<open>\((?:\?(?:P<\w+>|[a-zA-Z-]*:|>|\(\w+\)))?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<count>[*+?]|\{(?=[\d,]+\})(?P<least>\d*),?\d*\})[?+]?"
    r"|(?P<sign>.)",
    re.DOTALL,
)
_COMMENT = re.compile(r"((?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\])+)|\s+|#[^\n]*", re.DOTALL)

#: Signs that patterns tell apart.
_SIGNS = "a 0-\n#\"A_.:/<>()[]{}=,;!'`~*+@|\\$%&?\t\rzé的。\u1039\ud800"

#: Endings of texts. A match fails at the last step before \x01, which no pattern expects.
_ENDS = ("", "\x01", "\n\x01")

#: Repetitions of a counted part, and texts for one pattern, at most.
_MOST_COUNTED, _MOST_TEXTS = 200, 400


def makers(pattern: re.Pattern[Any]) -> Iterator[Maker]:
    """Yield makers of texts: a beginning of a match many times; once, before a part of the pattern many times.

    A part is one sign of each kind that the pattern tells apart, or the text of a group that the pattern repeats.
    """
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    if pattern.flags & re.VERBOSE:
        source = _COMMENT.sub(lambda comment: comment[1] or "", source)
    parts = list(_PART.finditer(source))
    flags = pattern.flags & (re.IGNORECASE | re.ASCII | re.DOTALL)
    atoms = {part["atom"] or re.escape(part["sign"]): None for part in parts if part["atom"] or part["sign"]}
    fits = {atom: re.compile(atom, flags).fullmatch for atom in atoms}
    sets = [fits[part["atom"]] for part in parts if part["atom"]]
    kinds = {tuple(bool(matches(sign)) for matches in sets): sign for sign in reversed(_SIGNS)}
    signs = sorted(kinds.values(), key=_SIGNS.index)
    fillers, beginnings = dict.fromkeys(signs), {"": None}
    for variant in range(3):
        _walk(parts, [*signs[variant:], *_SIGNS], fits, variant, beginnings, fillers)
    texts = [
        (begin, filler, end) for begin in beginnings for filler in ("", *fillers) for end in _ENDS if begin or filler
    ]
    for begin, filler, end in texts[:: len(texts) // _MOST_TEXTS + 1]:
        yield _maker(begin, filler, end)


def _maker(begin: str, filler: str, end: str) -> Maker:
    once, many = (begin, filler) if filler else ("", begin)
    return lambda size: f"{once}{many * (size // len(many))}{end}"


def _walk(
    parts: Sequence[re.Match[str]],
    signs: Sequence[str],
    fits: dict[str, Any],
    variant: int,
    beginnings: dict[str, None],
    fillers: dict[str, None],
) -> None:
    """Add the beginnings of a match, and what is repeated in it. The `variant` chooses signs and alternatives."""
    text = last = start = ""
    alternatives: list[str] = []
    groups: list[tuple[str, list[str], bool]] = []
    looks = False
    for part in parts:
        if part["sign"] or part["atom"]:
            matches = fits[part["atom"] or re.escape(part["sign"])]
            last = part["sign"] or next(filter(matches, signs), "")
            text += last
            if part["sign"]:
                continue
        elif part["open"] or part["look"]:
            groups.append((start, alternatives, looks))
            start, alternatives, looks = text, [], bool(part["look"])
        elif part["or"]:
            alternatives.append(text)
        elif part["close"] and groups:
            alternatives.append(text)
            beginnings.setdefault(text)
            text = start if looks else alternatives[min(variant, len(alternatives) - 1)]
            last = text[len(start) :]
            start, alternatives, looks = groups.pop()
        elif part["count"]:
            if last and part["count"] != "?":
                fillers.setdefault(last)
            text += last * (min(int(part["least"] or 1), _MOST_COUNTED) - 1)
        beginnings.setdefault(text)
        if part["or"]:
            text = start
    beginnings.setdefault(text)
