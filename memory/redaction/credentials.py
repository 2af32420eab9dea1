"""Credentials of known protocols and files: addresses, headers, cookies, commands, private keys.

RFC 6750 (bearer), RFC 7617 (basic), RFC 7616 (digest). Docker's `config.json` keeps `user:password` as basic does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from memory.redaction.values import (
    RANDOM_BITS,
    SURELY_RANDOM_BITS,
    Candidate,
    Family,
    Form,
    Span,
    is_placeholder,
    is_random_key,
    is_secret,
    word_bits,
)

_DIGIT = re.compile(rb"[0-9]")
#: `${...}`, `<...>`, ***, a port's number before a user's handle.
_ADDRESS_PLACEHOLDER = re.compile(rb"[${<*%]|\[[A-Za-z<]|(.)\1*$|[xX]{3}|.{0,32}\.\.\.|[0-9]{1,5}$")


def _is_given(_: bytes) -> bool:
    return True


def _is_real(value: bytes) -> bool:
    # Random characters may hold what a placeholder is made of.
    return not is_placeholder(value) or is_random_key(value[:_JUDGED_BYTES])


def _is_real_in_address(value: bytes) -> bool:
    return _ADDRESS_PLACEHOLDER.match(value) is None


def _is_token(value: bytes) -> bool:
    return _is_real(value) and _DIGIT.search(value) is not None


def _is_query_token(value: bytes) -> bool:
    return not value.isdigit() and is_secret(Candidate(value, Family.TOKEN, Form.SETTING))


def _is_random_token(value: bytes) -> bool:
    return _is_query_token(value) and word_bits(value) < SURELY_RANDOM_BITS


def _is_bearer(value: bytes) -> bool:
    """Return True for a token; the words of "bearer authentication" are none."""
    return _is_token(value) or (_is_real(value) and len(value) >= 24)


def _is_user_and_password(value: bytes) -> bool:
    """Return True if the value decodes to `user:password`; words of the same letters do not."""
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False
    # A password may have several lines: Google's registries take a file for one.
    return b":" in decoded and decoded.isascii() and decoded.decode().replace("\n", "").isprintable()


_PROOFS = frozenset(b"response nonce cnonce mac signature oauth_signature oauth_token".split())
_LEAST_PROOF = 6


def _is_proof(name: bytes, value: bytes) -> bool:
    """Return True if a parameter of an authorization proves who sends it."""
    return name in _PROOFS and len(value) >= _LEAST_PROOF and bool(_DIGIT.search(value)) and not is_placeholder(value)


_COOKIE_ATTRIBUTES = frozenset(b"path domain expires max-age samesite version comment priority".split())
_SECRET_NAME = re.compile(
    rb"sess|sid(?:ts|cc)?(?:[^a-z]|$)|auth(?!or)|token|jwt|[cx]srf|secret|passw|login|logged_in|ticket"
    rb"|credential|remember|api[-_]?key|(?:^|[^a-z])key$"
)
_ESCAPED = re.compile(rb"%[0-9A-Fa-f]{2}")
_WORDS = re.compile(rb"[A-Za-z_-]+")

#: Bytes of a value at least, when its cookie's name tells what it is, and when it does not; and how many are judged.
_LEAST_NAMED = 6
_LEAST_UNNAMED = 16
_JUDGED_BYTES = 256


def _is_cookie(name: bytes, value: bytes) -> bool:
    if name in _COOKIE_ATTRIBUTES or len(value) < _LEAST_NAMED:
        return False
    if is_placeholder(value) and not is_random_key(value[:_JUDGED_BYTES]):
        return False
    judged = _ESCAPED.sub(b" ", value[:_JUDGED_BYTES])
    if not _SECRET_NAME.search(name):
        return len(value) >= _LEAST_UNNAMED and word_bits(judged) < SURELY_RANDOM_BITS
    # The value of `auth=required` is a word.
    return _WORDS.fullmatch(value) is None or word_bits(judged) < RANDOM_BITS


def _is_nameless_cookie(value: bytes) -> bool:
    return _is_cookie(b"", value)


class _Pairs(NamedTuple):
    """List of names and values. `item` is one of them and what leads to the next one, up to the separator, if any."""

    item: re.Pattern[bytes]
    separator: bytes
    is_secret: Callable[[bytes, bytes], bool]


_COOKIES = _Pairs(
    re.compile(rb"[ \t]{0,4}([\w.%$!~^*+|-]{1,128})(?:=\"?([^\s;\"'`<>\x00\\]*))?(?:\"?[^;\r\n\"'`<>\\]{0,48};)?"),
    b";",
    _is_cookie,
)
_PARAMETERS = _Pairs(
    re.compile(
        rb"[ \t]{0,4}([\w-]{1,24})[ \t]{0,2}=[ \t]{0,2}"
        rb"(?:\\{0,3}\"([^\"\\\r\n]{0,512})\\{0,3}\"|([^\s,\"\\]{1,512}))(?:[ \t]{0,4},\s{0,8})?"
    ),
    b"",
    _is_proof,
)


class _Rule(NamedTuple):
    """Secrets right after a word, or among the arguments of a command of that name.

    `word` is looked for in the text in lower case; what stands before it must match `before`. The last group of
    `pattern` is the secret if `judge` takes it for one. With pairs, `pattern` ends where the first of them begins.
    """

    kind: str
    word: bytes
    pattern: bytes
    judge: Callable[[bytes], bool] | _Pairs = _is_real
    before: bytes = b""
    is_command: bool = False


#: A colon or an equals sign, and quotes around it.
_IS = rb"\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[ \t]{0,4}\\{0,3}[\"'`]?"

_TOKEN_INFO = rb"((?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,256})@"
_SIGNATURE = rb"=((?=[A-Za-z%+/_-]*[0-9])[A-Za-z0-9%+/_-]{16,1024}={0,2})"

#: `?reset_token_8f3a=...`; some tokens only lead through a list.
_QUERY = rb"[?&;](?!(?i:next|page|continuation|sync|max|min|num)_)[\w.-]{0,48}\Z"
_QUERY_VALUE = rb"([A-Za-z0-9%+/_.~=-]{8,1024})"

#: In the order of precedence: the first that finds a secret names it.
_RULES = (
    # The password of an address goes on to the last @ before a slash: people do not escape an @ inside it.
    _Rule(
        "password",
        b"://",
        rb"[^\s/:@?\"'`<>\x00\\]{0,128}:([^\s/?\"'`<>\x00\xe0-\xff]{1,256})@",
        _is_real_in_address,
    ),
    _Rule("token", b"http://", _TOKEN_INFO, _is_given),
    _Rule("token", b"https://", _TOKEN_INFO, _is_given),
    # Signed addresses of Azure, AWS, Google and Aliyun, and keys in a query that have no name of their own.
    _Rule("signature", b"sig", rb"(?i:nature)?" + _SIGNATURE, _is_given, before=rb"[?&;].{0,11}\Z"),
    _Rule("signature", b"?key", _SIGNATURE, _is_given),
    _Rule("signature", b"&key", _SIGNATURE, _is_given),
    _Rule(
        "slack-webhook", b"hooks.slack.com/", rb"(?:services|workflows|triggers)/([A-Za-z0-9_/-]{16,256})", _is_given
    ),
    _Rule("discord-webhook", b"/api/webhooks/", rb"[0-9]{15,22}/([A-Za-z0-9_-]{40,128})", _is_given),
    _Rule("wecom-webhook", b"qyapi.weixin.qq.com/", rb"cgi-bin/webhook/send\?key=([A-Za-z0-9-]{20,64})", _is_given),
    _Rule("teams-webhook", b"/incomingwebhook/", rb"([A-Za-z0-9]{20,64}/[A-Za-z0-9/-]{20,128})", _is_given),
    _Rule("feishu-webhook", b"/open-apis/bot/", rb"(?:v2/)?hook/([A-Za-z0-9-]{20,64})", _is_given),
    _Rule(
        "token", b"token_", rb"(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{1,64}=" + _QUERY_VALUE, _is_query_token, before=_QUERY
    ),
    _Rule("token", b"token_", rb"[A-Za-z-]{1,64}=" + _QUERY_VALUE, _is_random_token, before=_QUERY),
    # Headers
    _Rule("bearer-token", b"bearer", rb"[ \t]{1,4}([A-Za-z0-9_~+/-][A-Za-z0-9._~+/=-]{7,})", _is_bearer),
    _Rule("basic-auth", b"basic", rb"[ \t]{1,4}([A-Za-z0-9+/]{6,1024}={0,2})(?![A-Za-z0-9+/=])", _is_user_and_password),
    _Rule("basic-auth", b"auth", _IS + rb"([A-Za-z0-9+/]{8,8192}={0,2})(?![A-Za-z0-9+/=])", _is_user_and_password),
    _Rule(
        "authorization",
        b"authorization",
        rb"(?i)" + _IS + rb"(?:digest|hawk|oauth|aws4-[a-z0-9-]{1,24})[ \t]{1,4}",
        _PARAMETERS,
    ),
    _Rule(
        "authorization",
        b"authorization",
        rb"(?i)" + _IS + rb"(?!(?:digest|hawk|oauth|aws4-[a-z0-9-]{1,24})[ \t])"
        rb"(?:(?:bearer|basic|token|apikey|api-key|bot|negotiate|key)[ \t]{1,4})?([A-Za-z0-9_~+/.=:-]{6,})",
        _is_token,
    ),
    # Commands
    _Rule("password", b"sshpass", rb"[ \t]{1,4}-p[ \t]{0,4}[\"']?([^\s\"'<>\x80-\xff]{3,256})"),
    _Rule(
        "password",
        b"echo",
        rb"[ \t]{1,4}(?:-n[ \t]{1,4})?[\"']?([^\s\"'|<>\x80-\xff]{3,256})[\"']?[ \t]{0,4}\|"
        rb"(?=[^|\r\n]{0,80}?(?:sudo -S|--password-stdin))",
    ),
    _Rule(
        "password",
        b"curl",
        rb"\s(?:-u[ \t]{0,4}|(?:--user|--proxy-user|-U)(?:[ \t]{1,4}|=))(?P<quote>\\{0,3}[\"'])?[^\s:\"'<>$]{1,128}:"
        rb"((?(quote)(?:[^\"'<>\\\r\n\x80-\xff]|\\(?![\"'])){3,256}|(?:[^\s\"'<>\\\x80-\xff]|\\(?![\"'])){3,256}))",
        is_command=True,
    ),
    _Rule(
        "password",
        b"mysql",
        rb"\s-p((?=[^\s:]{0,32}[A-Za-z])[^\s\"'<>$:=\x80-\xff-][^\s\"'<>\x80-\xff]{3,256})",
        is_command=True,
    ),
    _Rule(
        "password",
        b"docker login",
        rb"\s-p[ \t]{1,4}[\"']?([^\s\"'<>|\x80-\xff-][^\s\"'<>|\x80-\xff]{3,256})",
        is_command=True,
    ),
    # Cookies: a header, an option, an assignment, a record's field; then a value without a name.
    _Rule(
        "cookie",
        b"cookie",
        rb"s?(?:\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[ \t]{0,4}|[ \t]{1,4}"
        rb"|\\{0,3}[\"'][ \t]{0,4},\s{0,48}\\{0,3}[\"']value\\{0,3}[\"'][ \t]{0,4}:[ \t]{0,4})\\{0,3}[\"'`]?"
        rb"(?=[^=\s]{1,128}=(?![=\s\"'`]|\Z))",
        _COOKIES,
    ),
    _Rule(
        "cookie",
        b"cookie",
        _IS + rb"((?=[^\s;\"'`]{0,64}?[0-9])[A-Za-z0-9%+/_-]{16,4096}={0,2})(?:[\s\"'`;,\\]|\Z)",
        _is_nameless_cookie,
    ),
    _Rule("cookie", b"curl", rb"\s-b[ \t]{1,4}[\"']?(?=[^=\s]{1,128}=)", _COOKIES, is_command=True),
)

#: Signs after a secret that end a sentence or a list.
_TRAILING = {"bearer-token": b".:", "authorization": b".:", "cookie": b",.)]}"}

#: Bytes before a word that are looked at.
_BEFORE_BYTES = 64

#: Bytes of a command after its name in which its flags are looked for.
_COMMAND_BYTES = 1024

#: A line of .pgpass: host, port, database, user, password. Of other ports it is not told from a compiler's message.
_PGPASS = re.compile(
    rb"^[ \t>]{0,8}(?:\*|[\w.-]{1,255}):(?:5432:(?:\*|[\w.-]{1,63})|[0-9]{4}:\*(?=:\*)|\*:\*):"
    rb"(?:\*|[\w.@-]{1,63}):((?:[^\s:\\\x00]|\\[:\\]){3,256})[ \t]{0,8}(?=[\r\n]|\Z)",
    re.MULTILINE,
)


def find_credentials(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the credentials of addresses, headers and commands. `lowered`: the same text, its letters in lower case."""
    if b":5432:" in data or b":*:*:" in data:
        for line in _PGPASS.finditer(data):
            if is_secret(Candidate(line[1], Family.PASSWORD, Form.SETTING)):
                yield Span(*line.span(1), "password")
    for rule in _RULES:
        position = lowered.find(rule.word)
        while position >= 0:
            start = position + len(rule.word)
            following = lowered.find(rule.word, start)
            if rule.is_command:
                end = following if following >= 0 else len(data)
                for found in re.compile(rule.pattern).finditer(data, start, _command_end(data, start, end)):
                    yield from _secrets(rule, data, found, end)
            elif (match := re.compile(rule.pattern).match(data, start)) and re.search(
                rule.before, data[max(0, position - _BEFORE_BYTES) : position]
            ):
                done = yield from _secrets(rule, data, match, len(data))
                following = lowered.find(rule.word, max(start, done - len(rule.word)))
            position = following


def _secrets(rule: _Rule, data: bytes, found: re.Match[bytes], end: int) -> Generator[Span, None, int]:
    """Yield the secret of a match, or those of the pairs that begin after it; return where they end."""
    if not isinstance(rule.judge, _Pairs):
        start, done = found.span(found.lastindex or 0)
        if rule.judge(data[start:done]):
            yield Span(start, start + len(data[start:done].rstrip(_TRAILING.get(rule.kind, b""))), rule.kind)
        return done
    position = found.end()
    while (pair := rule.judge.item.match(data, position, end)) is not None:
        position = pair.end()
        start, done = pair.span(pair.lastindex or 0)
        value = data[start:done].rstrip(_TRAILING.get(rule.kind, b""))
        if pair.lastindex != 1 and rule.judge.is_secret(pair[1].lower(), value):
            yield Span(start, start + len(value), rule.kind)
        if not data.endswith(rule.judge.separator, 0, position):
            break
    return position


def _command_end(data: bytes, start: int, end: int) -> int:
    """Return the end of a command's arguments: of its line and of lines joined by a backslash."""
    limit = min(end, start + _COMMAND_BYTES)
    found = data.find(b"\n", start, limit)
    while found > 0 and data[found - 1 : found] == b"\\":
        found = data.find(b"\n", found + 1, limit)
    return found if found >= 0 else limit


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

#: Bytes of a line that are looked through.
_LINE_BYTES = 65_536


def find_private_keys(data: bytes) -> Iterator[Span]:
    """Yield the bodies of private keys, without their first and last lines. An unfinished one ends with its base64."""
    if b"PRIVATE KEY" not in data and b"Private-Lines" not in data and b"tatic key V" not in data:
        return
    position = 0
    while (begin := _BEGIN.search(data, position)) is not None:
        start = position = begin.end()
        line_end = _line_end(data, start)
        last_line = data.find(b"-----END ", start, line_end)
        inline = _INLINE_BODY.match(data, start, line_end)
        if last_line >= 0:
            # The nearest first line counts: a mentioned first line has another first line, or prose, after it.
            end = last_line if data.find(b"-----BEGIN ", start, last_line) < 0 else start
        else:
            end = inline.end() if inline is not None else start
        if not _LONG_RUN.search(data, start, end):
            start, end = line_end + 1, _end_of_body(data, line_end + 1) if last_line < 0 else 0
        if start < end:
            yield Span(start, end, "private-key")
            position = end


def _line_end(data: bytes, start: int) -> int:
    """Return the end of a line, of an endless one a place that no key reaches."""
    limit = min(len(data), start + _LINE_BYTES)
    found = data.find(b"\n", start, limit)
    return found if found >= 0 else limit


def _end_of_body(data: bytes, start: int) -> int:
    """Return the end of the lines of base64 that follow the first line of a key."""
    end = position = start
    headers = True
    long = False
    while position < len(data):
        line_end = _line_end(data, position)
        line = data[position : min(line_end, position + 4096)]
        if b"-----END" in line or b"---- END" in line or line.startswith((b"Private-MAC", b"Private-Lines")):
            return end
        body = _BODY_LINE.match(line)
        if body is not None and body[1]:
            # With the last line near, a short one belongs to a short key.
            if not long and len(body[1]) < _LONG_LINE and b"-----END " not in data[line_end : line_end + 512]:
                return end
            long = len(body[1]) >= _LONG_LINE
            headers = False
            end = line_end
        elif body is None and not (headers and _ARMOR_HEADER.match(line)):
            return end
        position = line_end + 1
    return end
