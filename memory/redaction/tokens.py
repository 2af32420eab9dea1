"""Tokens of known formats, found where a text has runs long enough to hold one: most texts have few."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Iterator
from functools import cache

from memory.redaction.masking import Span
from memory.redaction.randomness import is_random_key
from memory.redaction.token_formats import TOKEN_FORMATS

_TOKEN_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:~-"

#: What no shorter run of such characters can hold.
_SHORTEST = b"a" * 16

#: The shape of a text: `a` for each byte that a token may have, a space for any other.
_SHAPE = bytes(0x61 if byte in _TOKEN_CHARACTERS else 0x20 for byte in range(256))

#: A token starts a word, or follows an escaped line end or tab. Without groups, so that the engine skips every format
#: that begins with another character; which one it was is asked once there is one.
_TOKEN = re.compile(
    (
        r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?=[A-Za-z0-9_~.])(?:"
        + "|".join(token.pattern for token in TOKEN_FORMATS)
        + ")"
    ).encode()
)

#: What belongs to a run after a token's own characters and would tell something of it.
_REST = re.compile(rb"[A-Za-z0-9_-]*")

_BASE64_SHAPE = bytes(0x61 if bytes((byte,)).isalnum() or byte in b"+/" else 0x20 for byte in range(256))

#: A secret access key of AWS: 30 random bytes in base64, with nothing that tells what they are.
_AWS_SECRET_RUN = b"a" * 40

#: Bytes before and after it in which its key id makes it one wherever it stands.
_AWS_NEAR_BYTES = 256
_AWS_KEY_ID = re.compile(rb"(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])")

#: The rest of a line on which it stands alone, and a line of base64 before or after it: then it is one of many.
_LINE_BEFORE = re.compile(rb"(?:\A|\n)[ \t>*+\"'`-]{0,16}\Z")
_LINE_AFTER = re.compile(rb"[ \t\"'`,;.]{0,16}(?:\r?\n|\Z)")
_BLOCK_BEFORE = re.compile(rb"[A-Za-z0-9+/=]{24}[^\n]{0,4}\n[^\n]{0,16}\Z")
_BLOCK_AFTER = re.compile(rb"[^\n]{0,4}\n[^\n]{0,16}?[A-Za-z0-9+/=]{24}")

_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]+")

#: What stands before a key in a sentence, in quotes or after a name, and a name of something that is no secret.
_AWS_BEFORE = re.compile(rb"(?:\A|[\s\"'`(\[:=,])\Z")
_AWS_AFTER = re.compile(rb"\Z|[\s\"'`)\],;]|\.(?:\s|\Z)")
_NO_SECRET = re.compile(
    rb"(?:hash|digest|etag|sum|integrity|sha[-_]?[0-9]*|md5|cursor|print|revision|version|(?:\b|_)(?:id|blob|data|content))"
    rb"[\"'`]?\s{0,4}[:=]?\s{0,4}[\"'`]?\Z",
    re.IGNORECASE,
)


def find_tokens(data: bytes) -> Iterator[Span]:
    """Yield the tokens of known formats."""
    shape = data.translate(_SHAPE)
    start = shape.find(_SHORTEST)
    while start >= 0:
        end = shape.find(b" ", start + len(_SHORTEST))
        if end < 0:
            end = len(shape)
        position = start
        while (found := _TOKEN.search(data, position, end)) is not None:
            rest = _REST.match(data, found.end(), end)
            position = rest.end() if rest is not None else found.end()
            yield Span(found.start(), position, _kind(data, found.start(), end))
        start = shape.find(_SHORTEST, end)


def find_aws_secrets(data: bytes) -> Iterator[Span]:
    """Yield the secret access keys of AWS that stand beside their key id, or by themselves."""
    shape = data.translate(_BASE64_SHAPE)
    start = shape.find(_AWS_SECRET_RUN)
    while start >= 0:
        end = shape.find(b" ", start)
        if end < 0:
            end = len(shape)
        if end - start == len(_AWS_SECRET_RUN) and _is_aws_secret(data, start, end):
            yield Span(start, end, "aws-secret")
        start = shape.find(_AWS_SECRET_RUN, end)


def _is_aws_secret(data: bytes, start: int, end: int) -> bool:
    value = data[start:end]
    if value.isalpha() or _HEXADECIMAL.fullmatch(value) or not is_random_key(value) or _is_text(value):
        return False
    before, after = data[max(0, start - _AWS_NEAR_BYTES) : start], data[end : end + _AWS_NEAR_BYTES]
    if not _AWS_BEFORE.search(before) or not _AWS_AFTER.match(after):
        return False
    if _AWS_KEY_ID.search(before) or _AWS_KEY_ID.search(after):
        return True
    if _BLOCK_BEFORE.search(before) or _BLOCK_AFTER.match(after) or _NO_SECRET.search(before):
        return False
    return not value.isalnum() or bool(_LINE_BEFORE.search(before) and _LINE_AFTER.match(after))


def _is_text(value: bytes) -> bool:
    """Whether base64 is that of a text, or of its beginning."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(base64.b64decode(value))
    except UnicodeDecodeError:
        return False
    return True


def _kind(data: bytes, start: int, end: int) -> str:
    return next(token.kind for token in TOKEN_FORMATS if _compiled(token.pattern).match(data, start, end))


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    """Each format alone, when it is asked for: compiling all of them takes longer than most programs start."""
    return re.compile(pattern.encode())
