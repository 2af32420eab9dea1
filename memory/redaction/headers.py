"""Credentials as HTTP and its tools carry them: `Authorization`, bearer, basic, digest, Hawk, and `curl -u`.

RFC 6750 (bearer), RFC 7617 (basic), RFC 7616 (digest). Docker's `config.json` keeps `user:password` as basic does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Generator, Iterator

from memory.redaction.masking import Span
from memory.redaction.values import is_placeholder

_BEARER = re.compile(rb"[ \t]{1,4}([A-Za-z0-9_~+/-][A-Za-z0-9._~+/=-]{7,})")
_BASIC = re.compile(rb"[ \t]{1,4}([A-Za-z0-9+/]{6,1024}={0,2})(?![A-Za-z0-9+/=])")
_AUTHORIZATION = re.compile(
    rb"\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[ \t]{0,4}\\{0,3}[\"'`]?"
    rb"(?:(?:bearer|basic|token|apikey|api-key|bot|digest|negotiate|key)[ \t]{1,4})?"
    rb"([A-Za-z0-9_~+/.=:-]{6})",
    re.IGNORECASE,
)
_AUTHORIZATION_VALUE = re.compile(rb"[A-Za-z0-9_~+/.=:-]+")
#: `Digest username="joe", response="..."`: a scheme with parameters, and those that prove who sends them.
_PARAMETERS = re.compile(
    rb"\\{0,3}[\"'`]?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"'`]?(?:digest|hawk|oauth|aws4-[a-z0-9-]{1,24})[ \t]{1,4}",
    re.IGNORECASE,
)
_PARAMETER = re.compile(
    rb"[ \t]{0,4}([\w-]{1,24})[ \t]{0,2}=[ \t]{0,2}"
    rb"(?:\\{0,3}\"([^\"\\\r\n]{0,512})\\{0,3}\"|([^\s,\"\\]{1,512}))(?:[ \t]{0,4},\s{0,8})?"
)
_PROOFS = frozenset({b"response", b"nonce", b"cnonce", b"mac", b"signature", b"oauth_signature", b"oauth_token"})
_LEAST_PROOF = 6

_AUTH = re.compile(
    rb"\\{0,3}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"']?([A-Za-z0-9+/]{8,8192}+={0,2})(?![A-Za-z0-9+/=])"
)
_CURL_USER = re.compile(
    rb"\s(?:-u[ \t]{0,4}|(?:--user|--proxy-user|-U)(?:[ \t]{1,4}|=))(?P<quote>\\{0,3}[\"'])?[^\s:\"'<>$]{1,128}:"
    rb"((?(quote)(?:[^\"'<>\\\r\n\x80-\xff]|\\(?![\"'])){3,256}|(?:[^\s\"'<>\\\x80-\xff]|\\(?![\"'])){3,256}))"
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
                secret = found.span(found.lastindex or 1)
                if not _PLACEHOLDER.match(data, *secret):
                    yield Span(*secret, "password")
    for command, pattern in ((b"sshpass", _SSHPASS), (b"echo", _ECHOED)):
        for position in _after(lowered, command):
            found = pattern.match(data, position)
            if found is not None and not _PLACEHOLDER.match(found[1]):
                yield Span(*found.span(1), "password")


def _authorizations(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the values of `Authorization`. One may hold the word again and again: its end is looked for once."""
    end = digit = masked = 0
    for position in _after(lowered, b"authorization"):
        if position < masked:
            continue
        if (parameters := _PARAMETERS.match(data, position)) is not None:
            masked = yield from _proofs(data, parameters.end())
            continue
        begun = _AUTHORIZATION.match(data, position)
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


def _proofs(data: bytes, position: int) -> Generator[Span, None, int]:
    """Yield the parameters of a header that are secret; return where the last of them ends."""
    while (found := _PARAMETER.match(data, position)) is not None:
        position = found.end()
        start, end = found.span(found.lastindex or 1)
        is_proof = found[1].lower() in _PROOFS and end - start >= _LEAST_PROOF
        if is_proof and _DIGIT.search(data, start, end) and not is_placeholder(data[start:end]):
            yield Span(start, end, "authorization")
    return position


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
