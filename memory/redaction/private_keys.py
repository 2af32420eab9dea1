"""Private keys in PEM and its relatives: between the first and the last line everything is masked.

RFC 7468 (PEM), RFC 4716 (SSH2), RFC 4880 section 6.2 (OpenPGP armor), and PuTTY's key files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory.redaction.masking import Span

_KIND = "private-key"

_BEGIN = re.compile(
    rb"----(?:-| )BEGIN (?:[A-Z0-9]{1,12} ){0,4}(?:PRIVATE KEY(?: BLOCK)?|STATIC KEY V[0-9])(?:-| )----"
    rb"|-----BEGIN OpenVPN Static key V[0-9]-----"
    rb"|(?m:^Private-Lines: [0-9]{1,4}(?=\r?$))"
)

#: A line of a key: base64 in one piece, perhaps quoted, indented or escaped.
_BODY_LINE = re.compile(
    rb"[ \t>|#*\"'`,;\\-]{0,16}\+?([A-Za-z0-9+/=]+)?(?:\\+[nr])*[ \t\"'`,;\\-]{0,16}(?:\+[ \t]*)?\r?$"
)

#: The lines that may stand before the body: `Proc-Type: 4,ENCRYPTED`.
_ARMOR_HEADER = re.compile(rb"[ \t>|+#*\"'`-]{0,16}[A-Z][A-Za-z0-9-]{1,24}: [^\r\n]{0,256}")

#: A body in one line: line ends written as `\n`, or as spaces.
_LONG_RUN = re.compile(rb"[A-Za-z0-9+/=]{16}")
_INLINE_BODY = re.compile(rb"(?:[A-Za-z0-9+/=]|\\+[nr]| )+")

#: Shorter lines of an unfinished block are taken for prose again, unless they come right after a long one.
_LONG_LINE = 40


def find_private_keys(data: bytes) -> Iterator[Span]:
    """Yield the bodies of private keys, without their first and last lines. An unfinished one ends with its base64."""
    if b"PRIVATE KEY" not in data and b"Private-Lines" not in data and b"tatic key V" not in data:
        return
    position = 0
    line_end = last_line = -1
    while (begin := _BEGIN.search(data, position)) is not None:
        start = begin.end()
        # Both are looked for once a line, however many first lines stand in it.
        if line_end < start:
            line_end = _or_end(data, data.find(b"\n", start))
        if last_line < start:
            last_line = _or_end(data, data.find(b"-----END ", start))
        if last_line < line_end:
            # The nearest first line counts: one that is only mentioned has another one, or prose, after it.
            nested = data.find(b"-----BEGIN ", start, last_line)
            if nested < 0 and _LONG_RUN.search(data, start, last_line):
                yield Span(start, last_line, _KIND)
            position = start if nested < 0 else nested
        elif (inline := _INLINE_BODY.match(data, start, line_end)) and _LONG_RUN.search(data, start, inline.end()):
            yield Span(start, inline.end(), _KIND)
            position = inline.end()
        else:
            end = _end_of_body(data, line_end + 1)
            if end > line_end + 1:
                yield Span(line_end + 1, end, _KIND)
            position = max(end, start)


def _or_end(data: bytes, found: int) -> int:
    return found if found >= 0 else len(data)


def _end_of_body(data: bytes, start: int) -> int:
    """Where the lines of base64 after a first line end."""
    end = position = start
    headers = True
    long = False
    while position < len(data):
        line_end = _or_end(data, data.find(b"\n", position))
        line = data[position : min(line_end, position + 4096)]
        if b"-----END" in line or b"---- END" in line or line.startswith((b"Private-MAC", b"Private-Lines")):
            return end
        body = _BODY_LINE.match(line)
        if body is not None and body[1]:
            if not long and len(body[1]) < _LONG_LINE and not _finished(data, line_end):
                return end
            long = len(body[1]) >= _LONG_LINE
            headers = False
            end = line_end
        elif body is None and not (headers and _ARMOR_HEADER.match(line)):
            return end
        position = line_end + 1
    return end


def _finished(data: bytes, position: int) -> bool:
    """Whether a short line is one of a short key: the last line follows closely."""
    return b"-----END " in data[position : position + 512]
