"""Judgement of the value after a label: a secret, or a word, a placeholder, a piece of code.

"password: hunter2" holds a secret; "password: required", "password = environ[...]" and "password: <yours>" stay
searchable. The looser the form in which a label and its value are joined, the more the value itself must show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum, auto
from typing import NamedTuple


class Span(NamedTuple):
    """Bytes `start` to `end` are a secret."""

    start: int
    end: int
    kind: str


class Form(IntEnum):
    """Form in which a label and its value are joined, the loosest first."""

    LISTED = auto()  # | name | value |, ("name", "value")
    BESIDE = auto()  # name value
    VERB = auto()  # the name is value
    COLON = auto()  # name: value
    FLAG = auto()  # --name value
    EQUALS = auto()  # name = value
    SETTING = auto()  # ?name=value&, name=value; : nothing but a value can stand there
    ENVIRONMENT = auto()  # NAME=value


def any_of(words: Iterable[bytes]) -> list[re.Pattern[bytes]]:
    """Return a pattern for the words of each first byte, the longest first. One pass finds them all."""
    groups: dict[bytes, list[bytes]] = {}
    for word in words:
        groups.setdefault(word[:1], []).append(word)
    return [re.compile(b"|".join(map(re.escape, sorted(group, key=len, reverse=True)))) for group in groups.values()]


_PLACEHOLDER = re.compile(
    rb"""
    [^A-Za-z0-9\x80-\xff]* $                           # *** ... ____
    | (.)\1* $                                         # 0000
    | [<{\x00] | \$[({] | \$\w+ $ | %\w+%? $ | @\w+@ $ | \#\{ | __\w+__ $ | \[[A-Za-z<\#] | \|
    | .{0,32} (?: \.\.\. | \xe2\x80\xa6 | \*\*\* | \(\? | \[[aA0]- ) | .{0,64} [xX]{4}
    | (?:[\w.-]{1,16}[_-])? (?: your | my[_-] | some[_-] | insert | replace[_-] | change[_-]? (?:me|this)\b
        | put[_-] | enter[_-] | dummy | fake[_-] | placeholder | redacted | masked | hidden | todo ) [\w .-]* $
    """,
    re.VERBOSE | re.IGNORECASE,
)

#: A dollar sign before small letters and digits: a shell's variable, or the first character of a password.
_DOLLAR = re.compile(rb"\$(?=\w*[0-9])(?=\w*[a-z])\w{7,}")

#: Words that say something about a secret, or name its type, instead of telling it.
_WORDS = frozenset(
    b"""
    none null nil true false undefined yes no on off n/a str string text byte bytes int integer bool boolean any object
    number char varchar void never unknown optional default auto empty blank same self this that see ask the not is was
    must should can will correct incorrect wrong valid invalid weak strong safe secure plain plaintext hash basic bearer
    jwt oauth oidc saml sso ldap bcrypt argon scrypt vault keychain keyring env environment file stdin prompt manual
    random secret public private session access refresh new old change reset update login user username email field
    erforderlich wymagane povinne obrigatoria obrigatorio obligatorio obligatoriu zorunlu gerekli wajib verplicht requis
    input label help todo bitwarden lastpass keepass keepassxc dashlane
    """.split()
)
_WORD_ENDING = re.compile(rb"[a-z]+(?:ed|ing|able|ible|less|tion|ment|ly)", re.IGNORECASE)

#: A label is no secret's value: `password=password`, `token: refreshToken`.
_LABEL_WORD = re.compile(rb"passw|passphrase|secret|token|api[-_]?key|credential|passwort|pwd$|_pass$", re.IGNORECASE)

#: Words, joined as identifiers, paths and compounds are.
_WORDY = re.compile(rb"[^\W\d_]+(?:[-_./' +&:,]+[^\W\d_]+)*[.?]?", re.IGNORECASE)

#: Words of sentences, and of what people write about a passphrase.
_JOINING_WORDS = frozenset(
    b"""
    a an the your my our his her its their this that these those same i is are was were be been am do does did done has
    have had will would shall should can could may might must no nor not none to from for of in into on onto or and with
    without at by as if then than when where while who whose which what why how it he she they we you me him them us
    there here ask see use set get only also just still again about after before until unless because so but all each
    every some both very too more most less least keep kept keeps hold holds held find found give given take taken make
    made need needs known know tell told sent send goes went come comes live lives lies stands written write please
    enter type forgot show hide confirm repeat missing match nobody somebody everyone
    """.split()
)

#: Names that have digits and are no secrets; amounts, dates, times, versions, percentages.
_TECHNICAL = re.compile(
    rb"""
    (?: sha | md | base | argon | oauth | aes | utf | rsa | [hrep]s | ed | x | v | pbkdf | http | ipv | web | u2f | 2fa
    | mfa | ntlm | tls | k8s | ec | s | u?int | float | varchar | char | latin | gpt | claude | python | bcrypt )
    [-_]?[0-9]{1,5} (?: [-_./][\w.-]* )? | (?: sha | hmac | aes ) -[\w-]+
    | [-+~$]?[0-9]+ (?:[.,:/x-][0-9]+)* (?: [-_]?[A-Za-z%]{1,3} | -[a-z]+ )? \+?
    """,
    re.VERBOSE | re.IGNORECASE,
)

#: Paths, addresses, names of things and of places where a secret is kept, OpenClaw's name of a session.
_PLACE = re.compile(
    rb"(?:~|\.{1,2})?(?:/[\w.@ +-]{0,40}){1,24}|[A-Za-z]:\\[^\"]*|[a-z][a-z0-9+.-]{1,15}://.*"
    rb"|(?:urn|arn|vault):.*|agent:[\w.-]+:.*"
)

#: `settings.key`, `self->token`, `:name`, `::Module::NAME`: a program's reference, where no quotes are around it.
_REFERENCE = re.compile(rb"[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.)[A-Za-z_$][\w$]*)+|::?[A-Za-z_]\w*(?:::\w+)*")

#: `user:1234:profile`, `cron:<uuid>`: a name in a cache or a table, whose last part a person can read.
#: Parts are atomic: `:0` fits two of the forms, and n such parts would be tried in 2^n ways.
_KEY_NAME = re.compile(
    rb"[a-z][a-z_-]{1,24}(?>:(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]{1,24}|[\w.@+-]{1,16})(?=:|\Z))+"
)

#: my-app-v2, text-embedding-3-large: a chosen name.
_SLUG = re.compile(rb"[a-z]+(?:[-_.](?:[a-z]+|v?[0-9]{1,4}))+", re.IGNORECASE)

#: DEFAULT_KEY: what a program calls a value that stands elsewhere.
_CONSTANT = re.compile(rb"[A-Z]+(?:_[A-Z]+[0-9]{0,2}|_[0-9]{1,2})+")

_DIGIT = re.compile(rb"[0-9]")
_LETTER = re.compile(rb"[A-Za-z\xc3-\xdf]")
_ODD_SIGN = re.compile(rb"[!@#$%^&*+=?~]")


def is_secret(
    value: bytes, kind: str, form: Form, *, quoted: bool = False, alone: bool = False, in_code: bool = False
) -> bool:
    """Return True if a labelled value, without its quotes, is a secret.

    `alone`: nothing else is on its line; `in_code`: what follows it looks like code.
    """
    is_password, in_setting = kind == "password", form >= Form.SETTING
    if len(value) < (3 if in_setting else 4) * (1 if is_password else 2):
        return False
    # Before what else begins with a slash, or has four x somewhere.
    if is_random_key(value):
        return True
    if is_placeholder(value) or _PLACE.fullmatch(value) or (not is_password and _KEY_NAME.fullmatch(value)):
        return False
    if not quoted and (
        (form is Form.FLAG and value[:1] == b"-") or (form < Form.ENVIRONMENT and _REFERENCE.fullmatch(value))
    ):
        return False
    in_code = in_code and not in_setting
    is_doubtful = in_code or form <= Form.BESIDE or not (is_password or quoted)
    is_label = _LABEL_WORD.search(value) is not None
    bits = SURELY_RANDOM_BITS if is_doubtful else RANDOM_BITS
    if _WORDY.fullmatch(value):
        if len(value) >= (8 if is_password else 12) and not is_label and _are_random_letters(value, bits):
            return True
        if value.lower() in _WORDS or _WORD_ENDING.fullmatch(value) or (is_label and form < Form.ENVIRONMENT):
            return False
        if not is_password:
            return in_setting and b" " not in value and len(value) >= 8
        if quoted:
            return form > Form.BESIDE and (b" " not in value or are_chosen_words(value))
        return in_setting or (form is Form.COLON and alone and value.isalpha())
    has_digit, has_sign = _DIGIT.search(value) is not None, _ODD_SIGN.search(value[:-1]) is not None
    if not _LETTER.search(value):
        # A PIN, not an amount or a date
        if not is_password or form <= Form.BESIDE:
            return form > Form.BESIDE and len(value) >= 16
        return form > Form.COLON or quoted or has_sign or (value.isdigit() and (form is Form.COLON or len(value) >= 6))
    if form <= Form.COLON and not (quoted and is_password) and _TECHNICAL.fullmatch(value):
        return False
    if in_code and not quoted and (is_label or _CONSTANT.fullmatch(value)):
        return False
    is_vague = form is Form.LISTED or (form is Form.BESIDE and not (quoted and is_password))
    if is_vague or not is_password:
        least = (6 if is_password else 16) if is_vague else 0
        is_name = form <= Form.COLON and _SLUG.fullmatch(value) is not None
        return has_digit and b" " not in value and len(value) >= least and not is_name
    if form >= Form.EQUALS or has_digit:
        return form is not Form.VERB or quoted or len(value) >= 5
    return b" " not in value if quoted else has_sign or _are_random_letters(value, bits)


def is_placeholder(value: bytes) -> bool:
    """Return True if a value only shows the place of a secret."""
    if _DOLLAR.fullmatch(value) and word_bits(value) < SURELY_RANDOM_BITS:
        return False  # no variable has such a name
    return value.endswith((b"...", b"\xe2\x80\xa6")) or _PLACEHOLDER.match(value) is not None


def are_chosen_words(value: bytes) -> bool:
    """Return True if several plain words are a passphrase, not a sentence with its joining words."""
    words = re.split(rb"[ -]", value.lower())
    return not any(word in _JOINING_WORDS or _WORD_ENDING.fullmatch(word) or not word.isalpha() for word in words)


def _are_random_letters(value: bytes, bits: int) -> bool:
    letters = sum(map(len, re.findall(rb"[A-Za-z]+", value)))
    return b" " not in value and letters >= 8 and word_bits(value) < bits


#: How much more often a letter follows another in words than by chance, in bits, plus 6: a row for each first letter, a
#: digit for each second one. Counted over 30,000 words and parts of identifiers of the manuals and documentation of
#: free software. A letter that follows itself or its neighbour in the alphabet is never held against a word: "aaaa" and
#: "abcd" stand for anything.
_PAIRS = b"""
    66763463625868161878654343 76658443753854750775732353 73667328637642841657631044 85469444833545731664643243
    64776654624768353887354643 74458762902633830766612051 73449366713656641876732132 82349326814655840756623051
    66767562664769751677351415 84559432766535854373824021 74449445826645742676624043 84459442813764740366641163
    86349321813466780364622130 73777583725436641378542043 55664553424778660866656333 82448445703733766867623050
    24442323500524426655943000 84559453805565740677643053 63748436715544663478734054 72549427803544740766623164
    66656552634778460778661323 82429341802344730344366120 83458336803536740764406650 75758535701563580468532665
    75657453625677680587545266 84449335802655630246725066
""".split()
_PAIR_BITS = {
    bytes((97 + first, 97 + second)): bits - ord("6")
    for first, row in enumerate(_PAIRS)
    for second, bits in enumerate(row)
}

#: A change from one to another of capitals, small letters and digits, in bits. A capital before a small letter is free.
_CHANGE_BITS = -3

_PIECE = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

#: Scores (bits) below which letters count as random; the second where the context suggests words. Of 12 random letters
#: of both cases 99.5 % have fewer than the first, 95 % fewer than the second; of identifiers 1 % and 0.2 %.
RANDOM_BITS = -5
SURELY_RANDOM_BITS = -11

_BASE64 = re.compile(rb"(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])[A-Za-z0-9+/]{20,}+={0,2}")

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


def is_random_key(value: bytes) -> bool:
    """Return True if a value is base64 of random bytes, not a path, which has the same characters."""
    return _BASE64.fullmatch(value) is not None and word_bits(_DIGEST.sub(b"/", value)) < SURELY_RANDOM_BITS
