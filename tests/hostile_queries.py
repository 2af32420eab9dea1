"""Hostile queries, as programs send them: made from a seed, each with a number of its own.

    hostile_queries(20_000, seed=1)     (kind, query), kinds in turn

What looks like an operator or like garbage is mixed with words of the index that is asked, which stand in thousands of
places.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence

Maker = Callable[[random.Random, Sequence[str]], str]

#: Common characters.
HAN = "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道"

#: Kind -> pieces that stand between words.
PIECES: dict[str, Sequence[str]] = {
    "operators": [
        *("AND", "OR", "NOT", "NEAR", "NEAR(", "NEAR/3", "MATCH", "text:", "rowid:", "chunks_fts:", "rank:", "a*b"),
        *(")", "(", "*", "^", ":", "-", "+", "{", "}", "||", "&&", "!", "~2", '"', "''", "\\", "[1 TO 2]"),
    ],
    "quotes": ['"', "'", "`", "“", "”", "«", "''''", '""""', '\\"', "„"],
    "control characters": [*"\0\x01\x7f\x85\u2028\ufeff\ufffe\ud7ff", "\0\0", "\x1b[31m", "\r\n"],
    "halves of surrogate pairs": ["\ud83d", "\udd8a", "\ud83d\ud83d", "\udfff\ud800", "\ud83e\udd8a"],
    "emoji": [
        "👩\u200d👩\u200d👧\u200d👦",
        "🏳️\u200d🌈",
        "👍🏽",
        "🇩🇪",
        "🇨🇳🇩🇪",
        "❤️\u200d🔥",
        "0️⃣",
        "🦊",
        "\u200d",
        "\ufe0f",
    ],
    "right to left": ["שלום עולם", "مرحبا بالعالم", "\u202egateway", "\u2067قاعدة\u2069", "\u200f123\u200e", "ﷺ", "ﷻ"],
    "regular expressions": [
        "(a+)+$",
        "(.*a){25}",
        "^(([a-z])+.)+$",
        "(x+x+)+y",
        "a{1,65535}",
        "\\1(a)",
        "a" * 600 + "!",
    ],
    "SQL": [
        "'; DROP TABLE chunks; --",
        '" OR 1=1 --',
        "') UNION SELECT text FROM chunks WHERE ('1'='1",
        "1; ATTACH DATABASE '/tmp/x' AS x",
        "%' ESCAPE '\\' --",
        "?1 ?2 :name @name $name",
        "PRAGMA user_version = 0",
    ],
    "compounds": ["/", ".", "_", "-", "::", "->", "@", "#", "\\", "C++", "Camel"],
    "structures": [
        "</script>",
        "{{7*7}}",
        "${jndi:ldap://x}",
        "%s%n%x",
        "../../etc/passwd",
        json.dumps([[{"a": [1]}]]),
    ],
}


def _mixed(pieces: Sequence[str]) -> Maker:
    def make(source: random.Random, words: Sequence[str]) -> str:
        chosen = [*source.choices(pieces, k=source.randint(1, 20)), *source.choices(words, k=source.randint(0, 8))]
        source.shuffle(chosen)
        return source.choice(["", " "]).join(chosen)

    return make


def _towers(source: random.Random, words: Sequence[str]) -> str:
    marks = [chr(source.randint(0x300, 0x36F)) for _ in range(60)]
    return "".join(letter + "".join(marks[: source.randint(0, 60)]) for letter in source.choice(words))


def _numbers(source: random.Random, _: Sequence[str]) -> str:
    huge, digit = source.randint(-(10**30), 10**30), chr(source.randint(0x660, 0x669))
    forms = [
        f"{huge}",
        f"{source.random():.17g}e{huge % 400}",
        f"0x{huge:x}",
        digit * 30,
        f"²³¹½{huge}Ⅷ㊿①",
        f"{huge} " * 9,
    ]
    return source.choice(forms)


def _one_character(source: random.Random, _: Sequence[str]) -> str:
    any_one = chr(source.choice([source.randint(0x20, 0xD7FF), source.randint(0xE000, 0x10FFFF)]))
    return source.choice([source.choice(HAN), any_one]) + source.choice(["", "?", " ", "*", "？"]) * source.randint(
        0, 40
    )


def _any_text(source: random.Random, _: Sequence[str]) -> str:
    planes = [(0x20, 0x7F), (0xA0, 0x2FF), (0x370, 0xFFF), (0x1100, 0x2FFF), (0x3000, 0xD7FF), (0xF900, 0xFFFD)]
    planes += [(0x10000, 0x1FFFF), (0x20000, 0x3FFFF), (0xE0000, 0xE01EF)]
    return "".join(chr(source.randint(*source.choice(planes))) for _ in range(source.randint(1, 120)))


def _hundred_kilobytes(source: random.Random, words: Sequence[str]) -> str:
    units = [f"{source.choice(words)} ", source.choice(HAN), "🦊", "\u0301", source.choice(' "(*-\t\n'), "key7="]
    unit = source.choice(units)
    return unit * (100_000 // len(unit.encode()) + 1)


def _thousands_of_terms(source: random.Random, words: Sequence[str]) -> str:
    count = source.randint(1_000, 5_000)
    return source.choice([" ".join(source.choices(words, k=count)), "".join(source.choices(HAN, k=count))])


KINDS: dict[str, Maker] = {kind: _mixed(pieces) for kind, pieces in PIECES.items()}
KINDS |= {"towers of marks": _towers, "numbers": _numbers, "one character": _one_character, "any text": _any_text}

#: Each costs as much as many others: one in so many queries is one of these.
LARGE_KINDS: dict[str, Maker] = {"100 kB": _hundred_kilobytes, "thousands of terms": _thousands_of_terms}
_LARGE_EVERY = 200


def hostile_queries(count: int, *, seed: int, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """So many queries, each with its kind. `words` are found in the index, the commonest first."""
    source = random.Random(seed)
    makers, large = itertools.cycle(KINDS.items()), itertools.cycle(LARGE_KINDS.items())
    for place in range(count):
        kind, make = next(large if place % _LARGE_EVERY == _LARGE_EVERY - 1 else makers)
        yield kind, make(source, words)
