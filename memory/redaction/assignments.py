"""Labelled secrets: settings, JSON fields, flags, tables and sentences, in several languages.

A label is found by its core word ("token"), and judged by what stands before it ("max_") and after it. The value that
follows is judged by `memory.redaction.values`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from memory.redaction.masking import Span
from memory.redaction.values import CALL, Candidate, Family, Form, is_secret

#: Between a label and its value. Bounded in each part: a label costs the same wherever it stands.
_JOINT = rb"""
    (?: [_-]? (?: [0-9]{1,2} | prod(?:uction)? | dev | test | staging | live | value | b(?:ase)?64 ) (?![A-Za-z0-9_]) )?
    (?: (?P<closing> \\{0,3}["'`] ) \]? | [*_]{1,3} (?![A-Za-z0-9]) | \] )? \*{0,3}
    (?: [ ]? \( [^()\r\n]{1,48} \) | \xef\xbc\x88 (?:(?!\xef\xbc\x89)[^\r\n]){1,96} \xef\xbc\x89 )?
    (?P<aside> [ ] (?:for|of|to|on|at|in|f\xc3\xbcr) (?: [ ] [\w.@/'-]{1,32} ){1,4}? )?
    (?: [ \t]{0,8} (?: : [ ]? (?:str|string|secretstr|&(?:'static[ ])?str|text|optional\[str\]|str[ ]\|[ ]none)
            [ ]{0,4} = | (?<= [ ] ) [a-z]{3,8} [ ] = ) [ \t]{0,8} (?P<typed>)
      | [ \t]{0,8} (?: [!=]==? ) [ \t]{0,8} (?P<compared>)
      | (?: = | \xef\xbc\x9d ) (?! [ \t=>] ) (?P<tight>)
      | [ \t]{0,8} (?: => | :?= | \xef\xbc\x9d ) [ \t]{0,8} (?P<equals>)
      | [ \t]{0,8} (?: :(?!:) | -> | \xef\xbc\x9a ) [*_]{0,3} [ \t]{0,8} (?P<colon>)
      | [ \t]{1,4} (?: is | was | ist | lautet ) (?: [ ]? : )? [ \t]{1,4} (?P<verb>)
      | [ ]? (?: (?: \xe5\xb0\xb1 )? \xe6\x98\xaf | \xe4\xb8\xba | \xe7\x82\xba ) [ ]?
        (?: : | \xef\xbc\x9a )? [ ]? (?P<said>)
      | [ \t]{0,24} \| [ \t]{0,8} (?P<cell>)
      | [ \t]{0,4} ,? \s{0,48} ["']? value ["']? [ ]? [:=] [ \t]{0,4} (?P<paired>)
      | [ \t]{0,4} , [ \t]{0,4} (?= ["'] ) (?P<argument>)
      | \( (?= ["'] ) (?P<call>)
      | > (?P<element>)
      | [ \t]{1,4} (?(aside)(?!)) (?= [^\s]{0,64}? [0-9] | (?<= [ \t] ) ["'] ) (?P<space>)
    )
"""

_FORMS = {
    "typed": Form.EQUALS,
    "compared": Form.LISTED,
    "tight": Form.SETTING,
    "equals": Form.EQUALS,
    "colon": Form.COLON,
    "verb": Form.VERB,
    "said": Form.VERB,
    "cell": Form.LISTED,
    "argument": Form.LISTED,
    "call": Form.LISTED,
    "element": Form.SETTING,
    "paired": Form.EQUALS,
    "space": Form.BESIDE,
}


@dataclass(frozen=True, slots=True)
class _Core:
    """A core word. `needle` is looked for first, in the text in lower case.

    `before` must precede what is no longer than the needle ("pass", "key"), `not_before` must not precede anything.
    """

    needle: bytes
    pattern: re.Pattern[bytes]
    family: Family
    kind: str
    before: re.Pattern[bytes] | None = None
    not_before: re.Pattern[bytes] | None = None


def _core(
    needle: str, word: str, family: Family, kind: str, *, before: str | None = None, not_before: str | None = None
) -> _Core:
    return _Core(
        needle.encode(),
        re.compile(b"(?:" + word.encode() + b")(?P<word>)" + _JOINT, re.VERBOSE),
        family,
        kind,
        re.compile(before.encode()) if before else None,
        re.compile(not_before.encode()) if not_before else None,
    )


#: Keys that open something. Others are of tables, maps and caches, or public.
_OPENING = (
    "(?:api|access|secret|private|auth|account|encrypt(?:ion)?|decrypt(?:ion)?|sign(?:ing)?|master|service|client"
    "|admin|bot|webhook|deploy|app(?:lication)?|shared(?:access)?|storage|subscription|licen[cs]e|security|consumer"
    "|recovery|hmac|aes|jwt|cookie|session|root|openai|anthropic|voyage|gemini|google|groq|azure|aws|github|stripe"
    "|mistral|cohere|deepseek|openrouter|perplexity|tavily|brave|serper)[_. -]?\\Z"
)

_CORES = (
    _core(
        "pass",
        "pass(?:word|wd|phrase|code|wort)?",
        Family.PASSWORD,
        "password",
        before="[_-]\\Z|(?:db|smtp|ftp|user|mysql|pg|root)\\Z",
        not_before="(?:forgot|reset)[_-]?\\Z",
    ),
    _core("pwd", "pwd", Family.PASSWORD, "password", not_before="old\\Z"),
    _core("kennwort", "kennwort", Family.PASSWORD, "password"),
    _core("contrase", "contrase(?:\xf1|n)a", Family.PASSWORD, "password"),
    _core("mot de passe", r"mot\ de\ passe", Family.PASSWORD, "password"),
    _core("secret", "secrets?", Family.SECRET, "secret"),
    _core("credential", "credentials?", Family.SECRET, "secret"),
    _core("key", "key", Family.SECRET, "key", before=_OPENING),
    _core("_auth", "_auth", Family.SECRET, "secret", before="(?:^|[^a-z0-9.])\\Z"),
    _core(
        "token",
        "token",
        Family.TOKEN,
        "token",
        not_before="(?:eos|bos|pad|unk|cls|sep|mask|next|page|continuation|stop|start|end|per|max|min|num|special|sync)"
        "[_. -]?\\Z",
    ),
)

#: Only in texts that are not all ASCII.
_OTHER_CORES = (
    _core("密码", "密码", Family.PASSWORD, "password"),
    _core("密碼", "密碼", Family.PASSWORD, "password"),
    _core("口令", "口令", Family.PASSWORD, "password"),
    _core("パスワード", "パスワード", Family.PASSWORD, "password"),
    _core("비밀번호", "비밀번호", Family.PASSWORD, "password"),
    _core("пароль", "пароль", Family.PASSWORD, "password"),
    _core("Пароль", "Пароль", Family.PASSWORD, "password"),
    _core("密钥", "密钥", Family.SECRET, "key"),
    _core("密鑰", "密鑰", Family.SECRET, "key"),
    _core("秘钥", "秘钥", Family.SECRET, "key"),
    _core("私钥", "私钥", Family.SECRET, "key"),
    _core("令牌", "令牌", Family.TOKEN, "token"),
)

#: Bytes of a label before its core that are looked at.
_LABEL_BYTES = 48

_LABEL_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

#: A line's start, up to a setting's name.
_SETTING_START = re.compile(rb"(?:^|\n)[ \t>#*+-]{0,16}(?:export |set |ENV |ARG |-e |--env |\$env:|[\"'`])?$")

#: What people take for a password, and programs for no name.
_CHOSEN = re.compile(rb"(?=[^0-9]{0,40}[0-9])(?=[^A-Za-z]{0,40}[A-Za-z])[A-Za-z0-9!@#$%^&*+?~]{6,40}")

_NETRC_LOGIN = re.compile(rb"\blogin[ \t]+\S{1,64}[ \t]+\Z")

_OPEN_QUOTE = re.compile(rb"[rRbBuU@]?(?P<quote>\\{0,3}(?:\"\"\"|[\"'`])|\xe2\x80[\x9c\x98]|\xe3\x80[\x8c\x8e])")
_CLOSE_QUOTE = {
    b"\xe2\x80\x9c": b"\xe2\x80\x9d",
    b"\xe2\x80\x98": b"\xe2\x80\x99",
    b"\xe3\x80\x8c": b"\xe3\x80\x8d",
    b"\xe3\x80\x8e": b"\xe3\x80\x8f",
}

#: Bytes of a quoted value at most, and of a bare one that is judged; the rest of a bare one is masked with it.
_QUOTED_BYTES = 1024
_JUDGED_BYTES = 256

#: A value without quotes ends at a blank, a quote, or a wide character (which is how Chinese punctuation is written).
_BARE = re.compile(rb"[^\s\x00\"'`<>\xe0-\xff]+")

#: ... or where the next setting, an escaped line end, or a cell begins.
_BARE_END = re.compile(rb"&[\w.-]{1,32}=|[,;][\w.-]{1,32}[=:]|;|\\+[nrt\"']|\|")

_TRAILING = b",;:.)]}|\\*_?"

_AFTER_ALONE = re.compile(rb"[ \t.*_`\"'|)]*(?:\r?\n|\r?$)")
_AFTER_CODE = re.compile(rb"[\])}]*[ \t]*[,)}\];]")


class _Value(NamedTuple):
    start: int
    end: int
    quoted: bool


def find_assignments(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the values of labels that announce a secret. `lowered`: the same text, its ASCII letters in lower case."""
    for core in _CORES if data.isascii() else _CORES + _OTHER_CORES:
        position = lowered.find(core.needle)
        while position >= 0:
            following = position + len(core.needle)
            joint = core.pattern.match(lowered, position)
            if joint is not None:
                span = _value_after(core, data, lowered, joint)
                if span is not None:
                    yield span
                    following = span.end
            position = lowered.find(core.needle, following)


def _value_after(core: _Core, data: bytes, lowered: bytes, joint: re.Match[bytes]) -> Span | None:
    """The secret that a core word announces, if it does; `joint` is the match of the core's pattern."""
    value = _value_at(data, joint.end())
    if value is None:
        return None
    if not value.quoted and CALL.match(data, value.start, value.end):
        return None
    position = joint.start()
    how = str(joint.lastgroup)
    before = data[max(0, position - _LABEL_BYTES) : position]
    start = position - (len(before) - len(before.rstrip(_LABEL_CHARACTERS)))
    bare = joint.start("word") == position + len(core.needle)
    if not _is_label(core, data, lowered, start, position, bare=bare) and not (
        bare and core.needle == b"pass" and _is_login(data, start, position, value)
    ):
        return None
    form = _FORMS[how]
    if how == "space" and _is_flag(data, start):
        form = Form.FLAG
    elif how == "argument" and joint["closing"] is None:
        return None
    if how in {"compared", "argument", "call"} and not value.quoted:
        return None
    following = value.end + (1 if value.quoted else 0)
    in_code = not value.quoted and _AFTER_CODE.match(data, value.end) is not None
    if how == "tight":
        if data[start : joint.start("tight") - 1].isupper():
            form = Form.ENVIRONMENT
        elif not _is_setting(data, start, following):
            form = Form.EQUALS
    if joint["aside"] is not None and form is Form.COLON:
        form = Form.VERB
    candidate = Candidate(
        value=data[value.start : min(value.end, value.start + _JUDGED_BYTES)],
        family=core.family,
        form=form,
        quoted=value.quoted,
        alone=_AFTER_ALONE.match(data, following) is not None,
        in_code=in_code,
    )
    return Span(value.start, value.end, core.kind) if is_secret(candidate) else None


def _is_label(core: _Core, data: bytes, lowered: bytes, start: int, position: int, *, bare: bool) -> bool:
    before = lowered[max(0, min(start, position - 12)) : position]
    if core.not_before is not None and core.not_before.search(before):
        return False
    if not bare or core.before is None or core.before.search(before):
        return True
    # MY_KEY=: an environment's key that is of no table.
    name = data[start:position]
    return (
        core.needle == b"key"
        and name.endswith(b"_")
        and name.isupper()
        and not re.search(rb"(?:PUBLIC|PRIMARY|FOREIGN|SORT|CACHE|PARTITION|IDEMPOTENCY|OBJECT|INDEX|ROUTING)_\Z", name)
    )


def _is_login(data: bytes, start: int, position: int, value: _Value) -> bool:
    """Whether "pass" alone is somebody's password, not the outcome of a test: by what follows."""
    is_word = start == position and data[position : position + 4] != b"PASS"
    return is_word and _CHOSEN.fullmatch(data, value.start, value.end) is not None


def _is_flag(data: bytes, start: int) -> bool:
    """Whether a label is a flag, or the password of a line of a .netrc file."""
    return data.startswith(b"--", start) or _NETRC_LOGIN.search(data[max(0, start - 80) : start]) is not None


def _is_setting(data: bytes, start: int, following: int) -> bool:
    """Whether `name=value` is a setting rather than an argument of a call in a program."""
    name_before = data[max(0, start - 24) : start]
    if name_before[-1:] in {b"?", b"&", b";", b"/"} or data[start : start + 2] == b"--":
        return True
    if _SETTING_START.search(name_before) is None:
        return False
    return data[following : following + 1] in {b"", b"\r", b"\n", b" ", b"&", b";", b'"', b"'", b"`"}


def _value_at(data: bytes, position: int) -> _Value | None:
    opened = _OPEN_QUOTE.match(data, position)
    if opened is not None:
        quote = opened["quote"]
        start = opened.end()
        end = _closing(data, _CLOSE_QUOTE.get(quote, quote), start)
        if end >= 0:
            return _Value(start, end, quoted=True) if end > start else None
        position = start
    bare = _BARE.match(data, position, position + _JUDGED_BYTES)
    if bare is None:
        return None
    cut = _BARE_END.search(data, position + 1, bare.end())
    end = cut.start() if cut is not None else bare.end()
    if end == position + _JUDGED_BYTES:
        longer = _BARE.match(data, position)
        end = longer.end() if longer is not None else end
    end = position + len(data[position:end].rstrip(_TRAILING))
    return _Value(position, end, quoted=False) if end > position else None


def _closing(data: bytes, quote: bytes, start: int) -> int:
    """Where a quoted value ends, on the same line and not too far; -1 when it does not."""
    limit = min(len(data), start + _QUOTED_BYTES)
    position = data.find(quote, start, limit)
    while position > start and data[position - 1 : position] == b"\\" and not quote.startswith(b"\\"):
        position = data.find(quote, position + 1, limit)
    if position < 0 or data.find(b"\n", start, position) >= 0:
        return -1
    return position
