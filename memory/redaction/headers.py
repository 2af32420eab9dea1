"""Credentials as HTTP and its tools carry them: `Authorization`, bearer, basic, and `curl -u`.

RFC 6750 (bearer), RFC 7617 (basic). Docker's `config.json` keeps `user:password` as basic does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from memory.redaction.masking import Span

_BEARER = re.compile(rb"[ \t]{1,4}([A-Za-z0-9_~+/-][A-Za-z0-9._~+/=-]{7,})")
_BASIC = re.compile(rb"[ \t]{1,4}([A-Za-z0-9+/]{6,1024}={0,2})(?![A-Za-z0-9+/=])")
_AUTHORIZATION = re.compile(
    rb"\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[ \t]{0,4}\\{0,3}[\"'`]?"
    rb"(?:(?:bearer|basic|token|apikey|api-key|bot|digest|negotiate|key)[ \t]{1,4})?"
    rb"([A-Za-z0-9_~+/.=:-]{6})",
    re.IGNORECASE,
)
_AUTHORIZATION_VALUE = re.compile(rb"[A-Za-z0-9_~+/.=:-]+")
_AUTH = re.compile(
    rb"\\{0,3}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"']?([A-Za-z0-9+/]{8,8192}+={0,2})(?![A-Za-z0-9+/=])"
)
_CURL_USER = re.compile(
    rb"\s(?:-u|--user|--proxy-user|-U)(?:[ \t]{1,4}|=)[\"']?[^\s:\"'<>$]{1,128}:([^\s\"'<>\x80-\xff]{3,256})"
)
_SSHPASS = re.compile(rb"[ \t]{1,4}-p[ \t]{0,4}[\"']?([^\s\"'<>\x80-\xff]{3,256})")

_MYSQL_PASSWORD = re.compile(rb"\s-p((?=[^\s:]{0,32}[A-Za-z])[^\s\"'<>$:=\x80-\xff-][^\s\"'<>\x80-\xff]{3,256})")

_DOCKER_PASSWORD = re.compile(rb"\s-p[ \t]{1,4}[\"']?([^\s\"'<>|\x80-\xff-][^\s\"'<>|\x80-\xff]{3,256})")
_COMMANDS = (
    (b"curl", _CURL_USER),
    (b"mysql", _MYSQL_PASSWORD),
    (b"docker login", _DOCKER_PASSWORD),
)

#: `echo <password> | sudo -S`.
_ECHOED = re.compile(
    rb"[ \t]{1,4}(?:-n[ \t]{1,4})?[\"']?([^\s\"'|<>\x80-\xff]{3,256})[\"']?[ \t]{0,4}\|"
    rb"(?=[^|\r\n]{0,80}?(?:sudo -S|--password-stdin))"
)

#: Bytes of a command after its name in which its flags are looked for.
_COMMAND_BYTES = 1024

_DIGIT = re.compile(rb"[0-9]")
_PLACEHOLDER = re.compile(
    rb"\$|\{|(.)\1*$|.{0,32}(?:\.\.\.|[xX]{4}|\*\*\*)|(?:your|my|some|the)[-_]|(?:token|password|api_?key)$",
    re.IGNORECASE,
)


def find_headers(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the credentials of headers and of commands that send them."""
    for position in _after(lowered, b"bearer"):
        found = _BEARER.match(data, position)
        if found is not None and _is_bearer(found[1]):
            yield _trimmed(data, found, "bearer-token")
    for position in _after(lowered, b"basic"):
        found = _BASIC.match(data, position)
        if found is not None and _is_user_and_password(found[1]):
            yield Span(*found.span(1), "basic-auth")
    for position in _after(lowered, b"auth"):
        found = _AUTH.match(data, position)
        if found is not None and _is_user_and_password(found[1]):
            yield Span(*found.span(1), "basic-auth")
    yield from _authorizations(data, lowered)
    for command, pattern in _COMMANDS:
        for position in _after(lowered, command):
            for found in pattern.finditer(data, position, _command_end(data, lowered, position, command)):
                if not _PLACEHOLDER.match(found[1]):
                    yield Span(*found.span(1), "password")
    for command, pattern in ((b"sshpass", _SSHPASS), (b"echo", _ECHOED)):
        for position in _after(lowered, command):
            found = pattern.match(data, position)
            if found is not None and not _PLACEHOLDER.match(found[1]):
                yield Span(*found.span(1), "password")


def _authorizations(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the values of `Authorization`. One may hold the word again and again: its end is looked for once."""
    end = digit = masked = 0
    for position in _after(lowered, b"authorization"):
        begun = _AUTHORIZATION.match(data, position) if position >= masked else None
        if begun is None:
            continue
        start = begun.start(1)
        if start >= end:
            value = _AUTHORIZATION_VALUE.match(data, start)
            end = value.end() if value is not None else start
        if digit < start:
            found = _DIGIT.search(data, start, end)
            digit = found.start() if found is not None else end
        if digit < end and not _PLACEHOLDER.match(data, start, end):
            masked = end
            yield Span(start, start + len(data[start:end].rstrip(b".:")), "authorization")


def _after(lowered: bytes, needle: bytes) -> Iterator[int]:
    """The places right after a word."""
    position = lowered.find(needle)
    while position >= 0:
        position += len(needle)
        yield position
        position = lowered.find(needle, position)


def _trimmed(data: bytes, found: re.Match[bytes], kind: str) -> Span:
    start, end = found.span(1)
    return Span(start, start + len(data[start:end].rstrip(b".:")), kind)


def _is_bearer(value: bytes) -> bool:
    """Whether it is a token: not "bearer authentication", and not a placeholder."""
    if _PLACEHOLDER.match(value):
        return False
    return len(value) >= 24 or _DIGIT.search(value) is not None


def _is_user_and_password(value: bytes) -> bool:
    """Whether it decodes to `user:password`: words of the same letters do not."""
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    # A password may have several lines: Google's registries take a file for one.
    return b":" in decoded and decoded.isascii() and decoded.decode().replace("\n", "").isprintable()


def _command_end(data: bytes, lowered: bytes, position: int, command: bytes) -> int:
    """Where a command ends: with its line and the lines that a backslash joins to it, or where the next one begins."""
    limit = min(len(data), position + _COMMAND_BYTES)
    end = data.find(b"\n", position, limit)
    while end > 0 and data[end - 1 : end] == b"\\":
        end = data.find(b"\n", end + 1, limit)
    end = end if end >= 0 else limit
    following = lowered.find(command, position, end)
    return following if following >= 0 else end
