"""Whether letters look thrown like dice, or chosen like words.

People's words, identifiers and paths use a few pairs of letters over and over and change case seldom; passwords and
keys that a machine made use all pairs alike and change case at every other letter. Both are likelihood ratios, so
they are added up, in bits (a naive Bayes classifier).
"""

from __future__ import annotations

import re

#: How much more often a letter follows another in words than by chance, in bits, plus 6: a row for each first letter, a
#: column for each second one. Counted over 30,000 words and parts of identifiers of the manuals and documentation of
#: free software. A letter that follows itself or its neighbour in the alphabet is never held against a word: "aaaa" and
#: "abcd" stand for anything.
_PAIRS = (
    b"66763463625868161878654343",  # a
    b"76658443753854750775732353",  # b
    b"73667328637642841657631044",  # c
    b"85469444833545731664643243",  # d
    b"64776654624768353887354643",  # e
    b"74458762902633830766612051",  # f
    b"73449366713656641876732132",  # g
    b"82349326814655840756623051",  # h
    b"66767562664769751677351415",  # i
    b"84559432766535854373824021",  # j
    b"74449445826645742676624043",  # k
    b"84459442813764740366641163",  # l
    b"86349321813466780364622130",  # m
    b"73777583725436641378542043",  # n
    b"55664553424778660866656333",  # o
    b"82448445703733766867623050",  # p
    b"24442323500524426655943000",  # q
    b"84559453805565740677643053",  # r
    b"63748436715544663478734054",  # s
    b"72549427803544740766623164",  # t
    b"66656552634778460778661323",  # u
    b"82429341802344730344366120",  # v
    b"83458336803536740764406650",  # w
    b"75758535701563580468532665",  # x
    b"75657453625677680587545266",  # y
    b"84449335802655630246725066",  # z
)
_PAIR_BITS = {
    bytes((97 + first, 97 + second)): bits - ord("6")
    for first, row in enumerate(_PAIRS)
    for second, bits in enumerate(row)
}

#: A change from one to another of capitals, small letters and digits, in bits. A capital before a small letter is free.
_CHANGE_BITS = -3

_PIECE = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

#: Bits from which letters are taken for random, by what speaks for words otherwise. Of 12 random letters of both cases
#: 99.5 % have fewer than the first, 95 % fewer than the second; of the identifiers of programs 1 % and 0.2 %.
RANDOM_BITS = -5
SURELY_RANDOM_BITS = -11

#: Bytes of letters at least: fewer prove nothing.
_LETTERS = 8

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{20,}+={0,2}")
_BOTH_CASES = re.compile(rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])")

#: One character in place of many.
_FILLED = re.compile(rb"[xX]{6}|(.)\1{5}")

#: A digest, such as names a folder.
_DIGEST = re.compile(rb"[0-9a-f]{16,}")


def word_bits(value: bytes) -> int:
    """Return how much a text looks like words: above 0 it does, far below it looks random. Linear in its size."""
    bits = 0
    end = -1
    for piece in _PIECE.finditer(value):
        letters = piece[0].lower()
        if letters.isalpha():
            bits += sum(_PAIR_BITS[letters[at : at + 2]] for at in range(len(letters) - 1))
        if piece.start() == end:
            bits += _CHANGE_BITS
        end = piece.end()
    return bits


def are_random_letters(value: bytes, *, below: int = RANDOM_BITS) -> bool:
    """Whether a value of letters, and what stands between them, is no words."""
    return sum(map(len, re.findall(rb"[A-Za-z]+", value))) >= _LETTERS and word_bits(value) < below


def is_random_key(value: bytes) -> bool:
    """Whether a value is base64 of random bytes: not a path, which is written with the same characters."""
    return (
        _BASE64.fullmatch(value) is not None
        and _BOTH_CASES.match(value) is not None
        and _FILLED.search(value) is None
        and word_bits(_DIGEST.sub(b"/", value)) < SURELY_RANDOM_BITS
    )
