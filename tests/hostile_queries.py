"""Queries that nobody should send, and programs do: made from a seed, every one unlike the others.

    hostile_queries(20_000, seed=1)     (kind, query), kinds in turn

Each kind is a function of a random source and of words of the index that is asked, so that what looks like an operator
or like garbage is mixed with what is found in thousands of places.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence

Maker = Callable[[random.Random, Sequence[str]], str]

_OPERATORS = ["AND", "OR", "NOT", "NEAR", "NEAR(", ")", "(", "*", "^", ":", "-", "+", '"', "''", "{", "}", "text:"]
_OPERATORS += ["rowid:", "chunks_fts:", "rank:", "NEAR/3", "MATCH", "\\", "||", "&&", "!", "~2", "[1 TO 2]", "a*b"]

_SQL = [
    "'; DROP TABLE chunks; --",
    "' OR '1'='1",
    '" OR 1=1 --',
    "') UNION SELECT text FROM chunks WHERE ('1'='1",
    "1; ATTACH DATABASE '/tmp/x' AS x",
    "%' ESCAPE '\\' --",
    "?1 ?2 :name @name $name",
    "json_each(?)",
    "PRAGMA user_version = 0",
]

_BOMBS = [
    "(a+)+$",
    "(.*a){25}",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(x+x+)+y",
    "a{1,65535}",
    "(?:(?:a?){30}){30}",
    "\\1(a)",
]

_EMOJI = ["👩\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "👍🏽", "🇩🇪", "🇨🇳🇩🇪", "❤️\u200d🔥", "🧑🏿\u200d🚀", "0️⃣", "🦊"]

_RIGHT_TO_LEFT = [
    "שלום עולם",
    "مرحبا بالعالم",
    "\u202egateway",
    "\u2067قاعدة\u2069",
    "\u200f123\u200e",
    "ﷺ",
    "ﷻ",
    "پاسخ",
]

#: Common characters.
HAN = "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道"


def _words(source: random.Random, words: Sequence[str], most: int) -> list[str]:
    return source.choices(words, k=source.randint(1, most))


def _operators(source: random.Random, words: Sequence[str]) -> str:
    pieces = [*source.choices(_OPERATORS, k=source.randint(2, 12)), *_words(source, words, 5)]
    source.shuffle(pieces)
    return source.choice([" ", ""]).join(pieces)


def _quotes(source: random.Random, words: Sequence[str]) -> str:
    marks = source.choices(['"', "'", "`", "“", "”", "«", "''''", '""""', '\\"', "„"], k=source.randint(1, 20))
    return "".join(mark + source.choice(words) for mark in marks) + source.choice(['"', ""])


def _control(source: random.Random, words: Sequence[str]) -> str:
    marks = ["\0", "\0\0", "\x01", "\x1b[31m", "\x7f", "\r\n", "\x85", "\u2028", "\ufeff", "\ufffe", "\ud7ff"]
    return "".join(word + source.choice(marks) for word in _words(source, words, 8))


def _surrogates(source: random.Random, words: Sequence[str]) -> str:
    halves = ["\ud83d", "\udd8a", "\ud83d\ud83d", "\udfff\ud800", "\ud83e\udd8a"]
    return " ".join(source.choice(["", " "]).join([word, source.choice(halves)]) for word in _words(source, words, 6))


def _emoji(source: random.Random, words: Sequence[str]) -> str:
    return "".join(source.choices([*_EMOJI, *words[:5], "\u200d", "\ufe0f", " "], k=source.randint(2, 60)))


def _right_to_left(source: random.Random, words: Sequence[str]) -> str:
    return " ".join([*source.choices(_RIGHT_TO_LEFT, k=source.randint(1, 6)), *_words(source, words, 3)])


def _towers(source: random.Random, words: Sequence[str]) -> str:
    return "".join(
        letter + "".join(chr(source.randint(0x300, 0x36F)) for _ in range(source.randint(0, 60)))
        for letter in source.choice(words)
    )


def _numbers(source: random.Random, _: Sequence[str]) -> str:
    return source.choice(
        [
            str(source.randint(-(10**30), 10**30)),
            f"{source.random():.17g}e{source.randint(-400, 400)}",
            f"0x{source.getrandbits(256):x}",
            f"{source.getrandbits(32) >> 24}.{source.randint(0, 999)}.{source.randint(0, 10**9)}",
            "".join(chr(source.randint(0x660, 0x669)) for _ in range(source.randint(1, 30))),
            f"²³¹½{source.randint(0, 10**6)}Ⅷ㊿①",
            " ".join(str(source.randint(0, 99_999)) for _ in range(source.randint(1, 40))),
        ]
    )


def _bombs(source: random.Random, words: Sequence[str]) -> str:
    start = "aax"[source.randint(0, 2)] * source.randint(1, 600)
    return f"{source.choice(_BOMBS)} {start}! {source.choice(words)}{source.randint(0, 999)}"


def _one_character(source: random.Random, _: Sequence[str]) -> str:
    kind = source.randint(0, 3)
    if kind == 0:
        return source.choice(HAN) + source.choice(["", "?", " ", "*", "？"]) * source.randint(0, 40)
    if kind == 1:
        return chr(source.randint(0x4E00, 0x9FFF))
    if kind == 2:
        return chr(source.choice([source.randint(0x20, 0xD7FF), source.randint(0xE000, 0x10FFFF)]))
    return " ".join(source.choices(HAN, k=source.randint(2, 30)))


def _thousands_of_terms(source: random.Random, words: Sequence[str]) -> str:
    if source.random() < 0.5:
        return " ".join(source.choices(words, k=source.randint(1_000, 5_000)))
    return "".join(source.choices(HAN, k=source.randint(1_000, 4_000)))


def _sql(source: random.Random, words: Sequence[str]) -> str:
    return f"{source.choice(words)}{source.choice(_SQL)}{source.choice(words)} {source.randint(0, 10**6)}"


def _hundred_kilobytes(source: random.Random, words: Sequence[str]) -> str:
    unit = source.choice(
        [
            lambda: source.choice(words) + " ",
            lambda: source.choice(HAN),
            lambda: source.choice(_EMOJI),
            lambda: chr(source.randint(0x300, 0x36F)),
            lambda: source.choice(' "(*-\t\n'),
            lambda: f"key{source.randint(0, 9)}=",
        ]
    )
    text = "".join(unit() for _ in range(2_000))
    return text * (100_000 // len(text.encode()) + 1)


def _compounds(source: random.Random, words: Sequence[str]) -> str:
    joints = ["/", ".", "_", "-", "::", "->", "@", "#", "\\", "C++", "Camel"]
    return "".join(word + source.choice(joints) for word in _words(source, words, 40))


def _any_text(source: random.Random, _: Sequence[str]) -> str:
    planes = [(0x20, 0x7F), (0xA0, 0x2FF), (0x370, 0xFFF), (0x1100, 0x2FFF), (0x3000, 0xD7FF), (0xF900, 0xFFFD)]
    planes += [(0x10000, 0x1FFFF), (0x20000, 0x3FFFF), (0xE0000, 0xE01EF)]
    return "".join(chr(source.randint(*source.choice(planes))) for _ in range(source.randint(1, 120)))


def _structures(source: random.Random, words: Sequence[str]) -> str:
    value: object = source.choice(words)
    for _ in range(source.randint(1, 20)):
        value = [value] if source.random() < 0.5 else {source.choice(words): value}
    return json.dumps(value) + source.choice(
        ["", "</script>", "{{7*7}}", "${jndi:ldap://x}", "%s%n%x", "../../etc/passwd"]
    )


KINDS: dict[str, Maker] = {
    "operators": _operators,
    "quotes": _quotes,
    "control characters": _control,
    "halves of surrogate pairs": _surrogates,
    "emoji": _emoji,
    "right to left": _right_to_left,
    "towers of marks": _towers,
    "numbers": _numbers,
    "regular expressions": _bombs,
    "one character": _one_character,
    "SQL": _sql,
    "compounds": _compounds,
    "any text": _any_text,
    "structures": _structures,
}

#: Each costs as much as many others: one in so many queries is one of these.
LARGE_KINDS: dict[str, Maker] = {"100 kB": _hundred_kilobytes, "thousands of terms": _thousands_of_terms}
_LARGE_EVERY = 200


def hostile_queries(count: int, *, seed: int, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """So many different queries, each with its kind. `words` are found in the index, the commonest first."""
    source = random.Random(seed)
    seen: set[str] = set()
    makers = itertools.cycle(KINDS.items())
    large = itertools.cycle(LARGE_KINDS.items())
    for place in range(count):
        kind, make = next(large if place % _LARGE_EVERY == _LARGE_EVERY - 1 else makers)
        query = make(source, words)
        while (digest := hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()) in seen:
            query += f" {source.randint(0, 10**9)}"
        seen.add(digest)
        yield kind, query
