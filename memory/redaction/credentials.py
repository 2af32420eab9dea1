"""Credentials of known protocols and files: headers, cookies, addresses, commands, private keys.

RFC 6750 (bearer), RFC 7617 (basic), RFC 7616 (digest). Docker's `config.json` keeps `user:password` as basic does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Generator, Iterator, Sequence

from memory.redaction.masking import Span
from memory.redaction.values import (
    RANDOM_BITS,
    SURELY_RANDOM_BITS,
    Candidate,
    Family,
    Form,
    is_placeholder,
    is_random_key,
    is_secret,
    word_bits,
)

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


def _is_bearer(value: bytes) -> bool:
    """Return True if the value is a token, not a word as in "bearer authentication", and not a placeholder."""
    if _PLACEHOLDER.match(value):
        return False
    return len(value) >= 24 or _DIGIT.search(value) is not None


def _is_user_and_password(value: bytes) -> bool:
    """Return True if the value decodes to `user:password`; words of the same letters do not."""
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    # A password may have several lines: Google's registries take a file for one.
    return b":" in decoded and decoded.isascii() and decoded.decode().replace("\n", "").isprintable()


def _is_no_placeholder(value: bytes) -> bool:
    return _PLACEHOLDER.match(value) is None


#: A word, what stands right after it, the test of the value, its kind.
_LABELLED: Sequence[tuple[bytes, re.Pattern[bytes], Callable[[bytes], bool], str]] = (
    (b"bearer", _BEARER, _is_bearer, "bearer-token"),
    (b"basic", _BASIC, _is_user_and_password, "basic-auth"),
    (b"auth", _AUTH, _is_user_and_password, "basic-auth"),
    (b"sshpass", _SSHPASS, _is_no_placeholder, "password"),
    (b"echo", _ECHOED, _is_no_placeholder, "password"),
)


def find_headers(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the credentials of headers and of commands that send them."""
    for word, pattern, is_real, kind in _LABELLED:
        for position in _after(lowered, word):
            found = pattern.match(data, position)
            if found is not None and is_real(found[1]):
                start, end = found.span(1)
                yield Span(
                    start, start + len(data[start:end].rstrip(b".:") if kind == "bearer-token" else found[1]), kind
                )
    yield from _authorizations(data, lowered)
    for command, pattern in _COMMANDS:
        for position in _after(lowered, command):
            for found in pattern.finditer(data, position, _command_end(data, lowered, position, command)):
                secret = found.span(found.lastindex or 1)
                if not _PLACEHOLDER.match(data, *secret):
                    yield Span(*secret, "password")


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
    """Yield the places right after a word."""
    position = lowered.find(needle)
    while position >= 0:
        position += len(needle)
        yield position
        position = lowered.find(needle, position)


def _command_end(data: bytes, lowered: bytes, position: int, command: bytes) -> int:
    """Return the end of a command: of its line and lines joined by a backslash, or the start of the next command."""
    limit = min(len(data), position + _COMMAND_BYTES)
    end = data.find(b"\n", position, limit)
    while end > 0 and data[end - 1 : end] == b"\\":
        end = data.find(b"\n", end + 1, limit)
    end = end if end >= 0 else limit
    following = lowered.find(command, position, end)
    return following if following >= 0 else end


#: From "cookie" to the first cookie: a header, an option, an assignment, a record's field.
_COOKIES_START = re.compile(
    rb"s?(?:\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[ \t]{0,4}|[ \t]{1,4}"
    rb"|\\{0,3}[\"'][ \t]{0,4},\s{0,48}\\{0,3}[\"']value\\{0,3}[\"'][ \t]{0,4}:[ \t]{0,4})\\{0,3}[\"'`]?"
    rb"(?=[^=\s]{1,128}=(?![=\s\"'`]|\Z))"
)

#: From "cookie" over a value without a name.
_NAMELESS = re.compile(
    rb"\\{0,3}[\"'`]?[ \t]{0,4}[:=][ \t]{0,4}\\{0,3}[\"'`]?((?=[^\s;\"'`]{0,64}?[0-9])[A-Za-z0-9%+/_-]{16,4096}={0,2})"
    rb"(?:[\s\"'`;,\\]|\Z)"
)

#: `curl -b name=value`, looked for within `_COMMAND_BYTES`.
_COOKIE_OPTION = re.compile(rb"\s-b[ \t]{1,4}[\"']?(?=[^=\s]{1,128}=)")

#: `name=value` or the name of an attribute that has no value; then what goes on to the next one.
_COOKIE = re.compile(rb"[ \t]{0,4}([\w.%$!~^*+|-]{1,128})(?:=\"?([^\s;\"'`<>\x00\\]*))?")
_NEXT_COOKIE = re.compile(rb"\"?[^;\r\n\"'`<>\\]{0,48};")

_COOKIE_ATTRIBUTES = frozenset(
    {b"path", b"domain", b"expires", b"max-age", b"samesite", b"version", b"comment", b"priority"}
)

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
    done = 0
    for position in _after(lowered, b"cookie"):
        if position < done:
            continue
        if (start := _COOKIES_START.match(data, position)) is not None:
            done = yield from _cookies(data, lowered, start.end(), len(data))
        elif (nameless := _NAMELESS.match(data, position)) is not None:
            done = nameless.end(1)
            if _is_secret_cookie(b"", nameless[1]):
                yield Span(*nameless.span(1), "cookie")
    for position in _after(lowered, b"curl"):
        following = lowered.find(b"curl", position)
        end = following if following >= 0 else len(data)
        option = _COOKIE_OPTION.search(data, position, min(end, position + _COMMAND_BYTES))
        if option is not None:
            yield from _cookies(data, lowered, option.end(), end)


def _cookies(data: bytes, lowered: bytes, position: int, end: int) -> Generator[Span, None, int]:
    """Yield the values of the cookies that begin at `position`; return where they end, before `end`."""
    while (cookie := _COOKIE.match(data, position, end)) is not None:
        position = cookie.end()
        if cookie[2]:
            value = cookie[2].rstrip(_TRAILING)
            if _is_secret_cookie(lowered[cookie.start(1) : cookie.end(1)], value):
                yield Span(cookie.start(2), cookie.start(2) + len(value), "cookie")
        following = _NEXT_COOKIE.match(data, position, end)
        if following is None:
            break
        position = following.end()
    return position


def _is_secret_cookie(name: bytes, value: bytes) -> bool:
    if name in _COOKIE_ATTRIBUTES or len(value) < _LEAST_NAMED:
        return False
    if is_placeholder(value) and not is_random_key(value[:_JUDGED_BYTES]):
        return False
    judged = _ESCAPED.sub(b" ", value[:_JUDGED_BYTES])
    if not _SECRET_NAME.search(name):
        return len(value) >= _LEAST_UNNAMED and word_bits(judged) < SURELY_RANDOM_BITS
    # The value of `auth=required` is a word.
    return _WORDS.fullmatch(value) is None or word_bits(judged) < RANDOM_BITS


#: After `://`. The password goes on to the last @ before a slash: people do not escape an @ inside it.
_USER_INFO = re.compile(rb"[^\s/:@?\"'`<>\x00\\]{0,128}:([^\s/?\"'`<>\x00\xe0-\xff]{1,256})@")

#: `https://<token>@host`.
_TOKEN_INFO = re.compile(rb"((?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,256})@")

#: Signed addresses of Azure, AWS, Google and Aliyun, and keys in a query that have no name of their own.
_SIGNATURE = re.compile(rb"(?:(?<=sig)nature)?=([A-Za-z0-9%+/_-]{16,1024}={0,2})", re.IGNORECASE)
_SIGNATURE_NAMES = (b"sig", b"?key", b"&key")
_QUERY_SIGNS = b"?&;"

#: All of them have "hook" in them: where that is missing, none is looked for.
_WEBHOOKS = (
    (b"hooks.slack.com/", re.compile(rb"(?:services|workflows|triggers)/([A-Za-z0-9_/-]{16,256})"), "slack-webhook"),
    (b"/api/webhooks/", re.compile(rb"[0-9]{15,22}/([A-Za-z0-9_-]{40,128})"), "discord-webhook"),
    (b"qyapi.weixin.qq.com/", re.compile(rb"cgi-bin/webhook/send\?key=([A-Za-z0-9-]{20,64})"), "wecom-webhook"),
    (b"/incomingwebhook/", re.compile(rb"([A-Za-z0-9]{20,64}/[A-Za-z0-9/-]{20,128})"), "teams-webhook"),
    (b"/open-apis/bot/", re.compile(rb"(?:v2/)?hook/([A-Za-z0-9-]{20,64})"), "feishu-webhook"),
)

#: A line of .pgpass: host, port, database, user, password; its ports, and bytes before a port at most.
_PGPASS = re.compile(
    rb"[ \t>]{0,8}(?:\*|[\w.-]{1,255}):(?:\*|[0-9]{4}):(?:\*|[\w.-]{1,63}):(?:\*|[\w.@-]{1,63}):"
    rb"((?:[^\s:\\\x00]|\\[:\\]){3,256})[ \t]{0,8}(?=[\r\n]|\Z)"
)
_PGPASS_PORTS = (b":5432:", b":*:*:")
_PGPASS_HOST_BYTES = 264

#: `${...}`, `<...>`, ***, a port's number before a user's handle.
_ADDRESS_PLACEHOLDER = re.compile(rb"[${<*%]|\[[A-Za-z<]|(.)\1*$|[xX]{3}|.{0,32}\.\.\.|[0-9]{1,5}$")


def find_addresses(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the secrets of URLs."""
    for position in _after(data, b"://"):
        user = _USER_INFO.match(data, position)
        is_web = user is None and data[max(0, position - 8) : position].endswith((b"http://", b"https://"))
        if user is not None and not _ADDRESS_PLACEHOLDER.match(user[1]):
            yield Span(*user.span(1), "password")
        elif is_web and (token := _TOKEN_INFO.match(data, position)) is not None:
            yield Span(*token.span(1), "token")
    for name in _SIGNATURE_NAMES:
        for position in _after(lowered, name):
            value = _SIGNATURE.match(data, position)
            if value is not None and _in_query(data, position - len(name)) and _DIGIT.search(value[1]):
                yield Span(*value.span(1), "signature")
    for needle, pattern, kind in _WEBHOOKS if b"hook" in lowered else ():
        for position in _after(lowered, needle):
            if (secret := pattern.match(data, position)) is not None:
                yield Span(*secret.span(1), kind)
    for port in _PGPASS_PORTS:
        for position in _after(data, port):
            first = max(0, position - len(port) - _PGPASS_HOST_BYTES)
            line = data.rfind(b"\n", first, position - len(port)) + 1
            found = _PGPASS.match(data, line or first)
            if found is not None and is_secret(Candidate(found[1], Family.PASSWORD, Form.SETTING)):
                yield Span(*found.span(1), "password")


def _in_query(data: bytes, position: int) -> bool:
    """Return True if a name, which may have a prefix such as `X-Amz-`, stands in the query of an address."""
    before = data[max(0, position - 12) : position + 1]
    return any(sign in before for sign in _QUERY_SIGNS)


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
            # The nearest first line counts: a mentioned first line has another first line, or prose, after it.
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
    """Return the end of the lines of base64 that follow the first line of a key."""
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
    """Return True if the last line of a key follows closely: then a short line belongs to a short key."""
    return b"-----END " in data[position : position + 512]
