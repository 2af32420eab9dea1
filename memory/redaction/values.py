"""Judgement of the value after a label: a secret, or a word, a placeholder, a piece of code.

"password: hunter2" holds a secret; "password: required", "password = environ[...]" and "password: <yours>" stay
searchable. Doubtful values are judged by the form in which the label was joined to them (`Form`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple


class Span(NamedTuple):
    """Bytes `start` to `end` are a secret."""

    start: int
    end: int
    kind: str


class Family(StrEnum):
    """Kind of value that a label announces: a chosen word, a long key, or a token, a word with other meanings too."""

    PASSWORD = auto()
    SECRET = auto()
    KEY = auto()
    TOKEN = auto()


class Form(Enum):
    """Form in which a label and its value are joined."""

    ENVIRONMENT = auto()  # NAME=value
    SETTING = auto()  # ?name=value&, name=value; : nothing but a value can stand there
    EQUALS = auto()  # name = value
    COLON = auto()  # name: value
    VERB = auto()  # the name is value
    FLAG = auto()  # --name value
    BESIDE = auto()  # name value
    LISTED = auto()  # | name | value |, ("name", "value")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value, without its quotes. `alone`: nothing else is on its line; `in_code`: what follows looks like code."""

    value: bytes
    family: Family
    form: Form
    quoted: bool = False
    alone: bool = False
    in_code: bool = False


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
    input label help todo bitwarden lastpass keepass keepassxc dashlane
    """.split()
)
_WORD_ENDING = re.compile(rb"[a-z]+(?:ed|ing|able|ible|less|tion|ment|ly)", re.IGNORECASE)

#: A label is no secret's value: `password=password`, `token: refreshToken`.
_LABEL_WORD = re.compile(rb"passw|passphrase|secret|token|api[-_]?key|credential|passwort|pwd$|_pass$", re.IGNORECASE)

#: Words, joined as identifiers, paths and compounds are.
_WORDY = re.compile(rb"[^\W\d_]+(?:[-_./' +&:,]+[^\W\d_]+)*[.?]?", re.IGNORECASE)

_UNDIVIDED = re.compile(rb"[A-Za-z]+")

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

#: Bytes of a key that is nothing but letters.
_LEAST_OF_KEY = 16

#: Names that have digits and are no secrets.
_TECHNICAL = re.compile(
    rb"""
    (?: sha | md | base | argon | oauth | aes | utf | rsa | [hrep]s | ed | x | v | pbkdf | http | ipv | web | u2f | 2fa
    | mfa | ntlm | tls | k8s | ec | s | u?int | float | varchar | char | latin | gpt | claude | python | bcrypt )
    [-_]?[0-9]{1,5} (?: [-_./][\w.-]* )? | (?: sha | hmac | aes ) -[\w-]+
    """,
    re.VERBOSE | re.IGNORECASE,
)

#: Amounts, dates, times, versions, ranges, percentages: digits with the signs between them, and a unit.
_AMOUNT = re.compile(rb"[-+~$]?[0-9]+(?:[.,:/x-][0-9]+)*(?:[-_]?[A-Za-z%]{1,3}|-[a-z]+)?\+?")

_PATH = re.compile(
    rb"(?:~|\.{1,2})?(?:/[\w.@ +-]{0,40}){1,24}|[A-Za-z]:\\[^\"]*|[a-z][a-z0-9+.-]{1,15}://.*"
    rb"|(?:urn|arn|vault):.*"  # names of things, and of places where a secret is kept
    rb"|agent:[\w.-]+:.*"  # OpenClaw's name of a session
)

#: What a program has in a secret's place, without quotes: `getenv(...)`, `environ[...]`, `!vault`.
CALL = re.compile(
    rb":{0,2}[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.)[A-Za-z_$][\w$]*)*[(\[{]|process\.env\.|!(?:vault|Ref|Sub|ImportValue|secret)\b"
)

#: ... and `settings.key`, `self->token`, `:name`, `::Module::NAME`.
_REFERENCE = re.compile(
    rb"[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.)[A-Za-z_$][\w$]*)+|::?[A-Za-z_]\w*(?:::\w+)*",
)

#: `user:1234:profile`, `cron:<uuid>`: a name in a cache or a table, whose last part a person can read.
_KEY_NAME = re.compile(
    rb"[a-z][a-z_-]{1,24}(?::(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]{1,24}|[\w.@+-]{1,16}))+"
)

#: my-app-v2, text-embedding-3-large: a chosen name.
_SLUG = re.compile(rb"[a-z]+(?:[-_.](?:[a-z]+|v?[0-9]{1,4}))+", re.IGNORECASE)

#: DEFAULT_KEY: what a program calls a value that stands elsewhere.
_CONSTANT = re.compile(rb"[A-Z]+(?:_[A-Z]+[0-9]{0,2}|_[0-9]{1,2})+")

_DIGIT = re.compile(rb"[0-9]")
_LETTER = re.compile(rb"[A-Za-z\xc3-\xdf]")
_MIXED_CASE = re.compile(rb"[a-z].*[A-Z]|[A-Z]{2}.*[a-z]")
_ODD_SIGN = re.compile(rb"[!@#$%^&*+=?~]")

#: Bytes that a value has at least, by family; a value in a setting may be shorter than one in prose.
_LEAST = {Family.PASSWORD: (4, 3), Family.SECRET: (8, 6), Family.KEY: (8, 6), Family.TOKEN: (8, 6)}

_SETTINGS = frozenset({Form.ENVIRONMENT, Form.SETTING})
_LOOSE = frozenset({Form.COLON, Form.VERB, Form.BESIDE, Form.LISTED})
_LOOSEST = frozenset({Form.BESIDE, Form.LISTED})


def is_secret(found: Candidate) -> bool:
    """Return True if a labelled value is a secret."""
    value, form = found.value, found.form
    if len(value) < _LEAST[found.family][form in _SETTINGS]:
        return False
    # Before what else begins with a slash, or has four x somewhere.
    if is_random_key(value):
        return True
    if is_placeholder(value) or _PATH.fullmatch(value):
        return False
    if not found.quoted:
        is_next_flag = form is Form.FLAG and value.startswith(b"-")
        if is_next_flag or (form is not Form.ENVIRONMENT and _REFERENCE.fullmatch(value)):
            return False
    if found.family is not Family.PASSWORD and _KEY_NAME.fullmatch(value):
        return False
    if _WORDY.fullmatch(value):
        return _letters_are_secret(found) or (not _is_known_word(found) and _words_are_secret(found))
    if not _LETTER.search(value):
        return _digits_are_secret(found)
    if form in _LOOSE and not found.quoted and (_TECHNICAL.fullmatch(value) or _AMOUNT.fullmatch(value)):
        return False
    return _mixture_is_password(found) if found.family is Family.PASSWORD else _mixture_is_key(found)


def is_placeholder(value: bytes) -> bool:
    """Return True if a value only shows the place of a secret."""
    if _DOLLAR.fullmatch(value) and word_bits(value) < SURELY_RANDOM_BITS:
        return False  # no variable has such a name
    return value.endswith((b"...", b"\xe2\x80\xa6")) or _PLACEHOLDER.match(value) is not None


def are_chosen_words(value: bytes) -> bool:
    """Return True if several plain words are a passphrase, not a sentence with its joining words."""
    words = re.split(rb"[ -]", value.lower())
    return not any(word in _JOINING_WORDS or _WORD_ENDING.fullmatch(word) or not word.isalpha() for word in words)


def _letters_are_secret(found: Candidate) -> bool:
    """Return True if the letters are random. A vague label demands surer randomness."""
    is_doubtful = (
        found.family is not Family.PASSWORD
        or found.form in {Form.LISTED, Form.BESIDE}
        or (found.in_code and found.form not in _SETTINGS)
    )
    if found.family is not Family.PASSWORD and len(found.value) < _LEAST_OF_KEY:
        return False
    if b" " in found.value or _LABEL_WORD.search(found.value):
        return False
    return are_random_letters(found.value, below=SURELY_RANDOM_BITS if is_doubtful else RANDOM_BITS)


def _is_known_word(found: Candidate) -> bool:
    """Return True for a word about secrets, and for another label."""
    value = found.value
    if value.lower() in _WORDS or _WORD_ENDING.fullmatch(value):
        return True
    return found.form is not Form.ENVIRONMENT and _LABEL_WORD.search(value) is not None


def _is_argument(found: Candidate) -> bool:
    """Return True if a bare value is a name in a program: `f(token=token2)`."""
    if not found.in_code or found.form in _SETTINGS:
        return False
    return _LABEL_WORD.search(found.value) is not None or _CONSTANT.fullmatch(found.value) is not None


def _words_are_secret(found: Candidate) -> bool:
    """Return True if letters and the signs between words are a passphrase, not a name or prose."""
    value, form, in_setting = found.value, found.form, found.form in _SETTINGS
    if found.family is Family.PASSWORD:
        if form in _LOOSEST or (form in {Form.VERB, Form.FLAG} and not found.quoted):
            return False
        if b" " in value:
            return found.quoted and are_chosen_words(value)
        is_alone = found.alone and form is Form.COLON and _UNDIVIDED.fullmatch(value) is not None
        return found.quoted or in_setting or is_alone
    if in_setting:
        return b" " not in value and len(value) >= 8
    if not _UNDIVIDED.fullmatch(value) or not (form is Form.COLON or (form is Form.EQUALS and found.quoted)):
        return False
    least = 16 if found.family is Family.TOKEN else 12
    return len(value) >= (least if _MIXED_CASE.search(value) else 2 * least)


def _digits_are_secret(found: Candidate) -> bool:
    """Return True if digits are a PIN, not an amount or a date."""
    value = found.value
    if found.form in _LOOSEST:
        return False
    if found.family is not Family.PASSWORD:
        return len(value) >= 16
    if found.form not in _LOOSE or found.quoted:
        return True
    is_pin = re.fullmatch(rb"[0-9]{4,}", value) or _ODD_SIGN.search(value)
    return is_pin is not None and (found.form is not Form.VERB or len(value) >= 6)


def _mixture_is_password(found: Candidate) -> bool:
    value, form = found.value, found.form
    is_assigned = form is Form.EQUALS or form in _SETTINGS
    has_digit = _DIGIT.search(value) is not None
    if found.quoted and form is not Form.LISTED:
        return b" " not in value or is_assigned or has_digit
    if _is_argument(found):
        return False
    if form in _LOOSEST:
        return has_digit and len(value) >= 6 and b" " not in value and not _SLUG.fullmatch(value)
    if is_assigned or not (has_digit or _ODD_SIGN.search(value[:-1]) or _letters_are_secret(found)):
        return is_assigned
    return form is not Form.VERB or len(value) >= 5


def _mixture_is_key(found: Candidate) -> bool:
    value, form = found.value, found.form
    if b" " in value or _is_argument(found) or not _DIGIT.search(value):
        return False
    if form in _LOOSE and (_SLUG.fullmatch(value) or _TECHNICAL.fullmatch(value)):
        return False
    return form not in _LOOSEST or len(value) >= 16


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
    """Return True if a value of letters, and the signs between them, is random, not words."""
    return sum(map(len, re.findall(rb"[A-Za-z]+", value))) >= _LETTERS and word_bits(value) < below


def is_random_key(value: bytes) -> bool:
    """Return True if a value is base64 of random bytes, not a path, which has the same characters."""
    return (
        _BASE64.fullmatch(value) is not None
        and _BOTH_CASES.match(value) is not None
        and word_bits(_DIGEST.sub(b"/", value)) < SURELY_RANDOM_BITS
    )
