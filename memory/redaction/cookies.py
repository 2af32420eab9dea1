"""Cookies that log somebody in: in headers, in commands that send them, in records of a browser's traffic.

RFC 6265, sections 4.1.1 (`Set-Cookie`) and 4.2.1 (`Cookie`). A cookie is judged by its name, or by a long random value;
others stay, as do the names. So is a header's value that has no name at all.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

from memory.redaction.masking import Span
from memory.redaction.randomness import RANDOM_BITS, SURELY_RANDOM_BITS, is_random_key, word_bits
from memory.redaction.values import is_placeholder

#: From "cookie" to the first cookie: a header, an option, an assignment, a record's field.
_START = re.compile(
    rb"s?(?:\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[ \t]{0,4}|[ \t]{1,4}"
    rb"|\\{0,3}[\"'][ \t]{0,4},\s{0,48}\\{0,3}[\"']value\\{0,3}[\"'][ \t]{0,4}:[ \t]{0,4})\\{0,3}[\"'`]?"
    rb"(?=[^=\s]{1,128}=(?![=\s\"'`]|\Z))"
)

#: From "cookie" over a value without a name.
_NAMELESS = re.compile(
    rb"\\{0,3}[\"'`]?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"'`]?((?=[^\s;\"'`]{0,64}?[0-9])[A-Za-z0-9%+/_-]{16,4096}={0,2})"
    rb"(?:[\s\"'`;,\\]|\Z)"
)

#: `curl -b name=value`, and bytes of a command after its name in which the option is looked for.
_OPTION = re.compile(rb"\s-b[ \t]{1,4}[\"']?(?=[^=\s]{1,128}=)")
_COMMAND_BYTES = 1024

#: `name=value` or the name of an attribute that has no value; then what goes on to the next one.
_COOKIE = re.compile(rb"[ \t]{0,4}([\w.%$!~^*+|-]{1,128})(?:=\"?([^\s;\"'`<>\x00\\]*))?")
_NEXT = re.compile(rb"\"?[^;\r\n\"'`<>\\]{0,48};")

_ATTRIBUTES = frozenset({b"path", b"domain", b"expires", b"max-age", b"samesite", b"version", b"comment", b"priority"})

_SECRET_NAME = re.compile(
    rb"sess|sid(?:ts|cc)?(?:[^a-z]|$)|auth(?!or)|token|jwt|[cx]srf|secret|passw|login|logged_in|ticket"
    rb"|credential|remember|api[-_]?key|(?:^|[^a-z])key$"
)

_ESCAPED = re.compile(rb"%[0-9A-Fa-f]{2}")
_WORDS = re.compile(rb"[A-Za-z_-]+")
_TRAILING = b",.)]}"

#: Bytes of a value at least, when its cookie's name tells what it is, and when it does not; and how many are judged.
_LEAST_NAMED = 6
_LEAST_UNNAMED = 16
_JUDGED_BYTES = 256


def find_cookies(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the values of cookies."""
    position = lowered.find(b"cookie")
    while position >= 0:
        position += len(b"cookie")
        start = _START.match(data, position)
        if start is not None:
            position = yield from _cookies(data, lowered, start.end(), len(data))
        elif (nameless := _NAMELESS.match(data, position)) is not None:
            position = nameless.end(1)
            if _is_secret(b"", nameless[1]):
                yield Span(*nameless.span(1), "cookie")
        position = lowered.find(b"cookie", position)
    position = lowered.find(b"curl")
    while position >= 0:
        following = lowered.find(b"curl", position + 4)
        end = following if following >= 0 else len(data)
        option = _OPTION.search(data, position, min(end, position + _COMMAND_BYTES))
        if option is not None:
            yield from _cookies(data, lowered, option.end(), end)
        position = following


def _cookies(data: bytes, lowered: bytes, position: int, end: int) -> Generator[Span, None, int]:
    """Yield the values of the cookies that begin at `position`; return where they end, before `end`."""
    while (cookie := _COOKIE.match(data, position, end)) is not None:
        position = cookie.end()
        if cookie[2]:
            value = cookie[2].rstrip(_TRAILING)
            if _is_secret(lowered[cookie.start(1) : cookie.end(1)], value):
                yield Span(cookie.start(2), cookie.start(2) + len(value), "cookie")
        following = _NEXT.match(data, position, end)
        if following is None:
            break
        position = following.end()
    return position


def _is_secret(name: bytes, value: bytes) -> bool:
    if name in _ATTRIBUTES or len(value) < _LEAST_NAMED:
        return False
    if is_placeholder(value) and not is_random_key(value[:_JUDGED_BYTES]):
        return False
    judged = _ESCAPED.sub(b" ", value[:_JUDGED_BYTES])
    if not _SECRET_NAME.search(name):
        return len(value) >= _LEAST_UNNAMED and word_bits(judged) < SURELY_RANDOM_BITS
    # `auth=required` says nothing.
    return _WORDS.fullmatch(value) is None or word_bits(judged) < RANDOM_BITS
