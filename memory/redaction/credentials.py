"""Credentials of known protocols and files: private keys, addresses, headers, cookies, commands.

RFC 6750 (bearer), RFC 7617 (basic), RFC 7616 (digest). Docker's `config.json` keeps `user:password` as basic does.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from memory.redaction.values import (
    RANDOM_BITS,
    SURELY_RANDOM_BITS,
    Form,
    Span,
    any_of,
    are_chosen_words,
    is_placeholder,
    is_random_key,
    is_secret,
    word_bits,
)

#: Bytes of a value that are examined.
_JUDGED_BYTES = 256

_DIGIT = re.compile(rb"[0-9]")
_ESCAPED = re.compile(rb"%[0-9A-Fa-f]{2}")
_WORDS = re.compile(rb"[A-Za-z_-]+")

_is_password = partial(is_secret, kind="password", form=Form.SETTING)
_is_header_key = partial(is_secret, kind="password", form=Form.COLON)
_is_query_token = partial(is_secret, kind="token", form=Form.SETTING)


def _is_real(value: bytes) -> bool:
    # Random characters may hold a placeholder's.
    return not is_placeholder(value) or is_random_key(value[:_JUDGED_BYTES])


def _is_token(value: bytes) -> bool:
    """Return True for a token, False for words as in "bearer authentication"."""
    return _is_real(value) and (len(value) >= 24 or _DIGIT.search(value) is not None)


def _is_user_and_password(value: bytes) -> bool:
    """Return True if the value decodes to `user:password`."""
    try:
        decoded = base64.b64decode(value, validate=True)
    except ValueError:
        return False
    # A password may have several lines: Google's registries take a file for one.
    return b":" in decoded and decoded.isascii() and decoded.decode().replace("\n", "").isprintable()


def _is_cookie(value: bytes) -> bool:
    """Return True for the value of a cookie with a telling name, False for a word as in `auth=required`."""
    return _is_real(value) and (_WORDS.fullmatch(value) is None or word_bits(value[:_JUDGED_BYTES]) < RANDOM_BITS)


def _is_opaque(value: bytes) -> bool:
    return _is_real(value) and word_bits(_ESCAPED.sub(b" ", value[:_JUDGED_BYTES])) < SURELY_RANDOM_BITS


class _Rule(NamedTuple):
    """Rule for a secret after a word, which is searched in the text in lower case.

    The last group of `pattern`, which begins right after the word, is the secret, unless `check` rejects it. The text
    before the word must match `before`. With a `region`, a pattern that begins there instead, every match of `pattern`
    inside the region's last group holds a secret.
    """

    kind: str
    word: bytes
    pattern: bytes
    check: Callable[[bytes], bool] | None = None
    before: bytes = b""
    region: bytes = b""


#: A colon or an equals sign, and quotes around it.
_IS = rb"\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[ \t]{0,4}\\{0,3}[\"'`]?"

#: Base64 of a private key in long runs, with line ends, quotes and indentation between them, perhaps escaped, also as a
#: diff and a numbered listing show it. Lines as `Proc-Type: 4,ENCRYPTED` may stand before it; a short run belongs to it
#: before the last line. In one line with its first and last line, all between them is the key.
_BETWEEN = rb"(?:[\s>|#*\"'`,;]|\+(?=[\s\"'])|-(?!-)|[0-9]{1,6}(?:\t|\xe2\x86\x92)|\\{1,4}[nr])"
_IN_LINE = rb"(?:(?!-----BEGIN )[^\r\n]){0,65536}?"
_KEY_BODY = (
    rb"(?: KEY(?: BLOCK)?[- ]----|-Lines: [0-9]{1,4}|[0-9]-----)((?="
    + _IN_LINE
    + rb"-----END )"
    + _IN_LINE
    + rb"[A-Za-z0-9+/=]{16}"
    rb"[^\r\n]*?(?=-----END )|(?:" + _BETWEEN + rb"|[A-Z][A-Za-z0-9-]{1,24}: [^\r\n]{0,256}){0,64}+"
    rb"[A-Za-z0-9+/=]{16,}+(?:" + _BETWEEN + rb"{1,64}+[A-Za-z0-9+/=]{16,}+)*+"
    rb"(?:" + _BETWEEN + rb"{1,64}+[A-Za-z0-9+/=]{1,64}(?=" + _BETWEEN + rb"{0,64}\+?(?:----|Private-M)))?)"
)
_KEY_BEGIN = rb"BEGIN (?:[A-Za-z0-9]{1,12} ){0,4}\Z|(?m:^)\Z"

_SIGNATURE = rb"((?=[A-Za-z%+/_-]*[0-9])[A-Za-z0-9%+/_-]{16,1024}={0,2})"
_BASE64 = rb"([A-Za-z0-9+/]{6,8192}={0,2})(?![A-Za-z0-9+/=])"

#: Parameters of a query; some tokens only lead through a list.
_QUERY = rb"[?&;].{0,11}\Z"
_QUERY_TOKEN = rb"[?&;](?!(?i:next|page|continuation|sync|max|min|num)_)[\w.-]{0,48}\Z"

#: Authorizations whose parameters prove the sender.
_SIGNED = _IS + rb"(?:digest|hawk|oauth|aws4-[a-z0-9-]{1,24})[ \t]{1,4}"
_PROOF = rb"\b(?:response|c?nonce|mac|(?:oauth_)?signature|oauth_token)[ \t]{0,2}=[ \t]{0,2}\\{0,3}\"?"

#: The rest of a line of .pgpass. Of other ports it is not told from a compiler's message.
_PG_HOST = rb"(?m:^)[ \t>]{0,8}(?:\*|[\w.-]{1,48})(?::[0-9]{4})?\Z"
_PG_PASSWORD = rb"((?:[^\s:\\\x00]|\\[:\\]){3,256})[ \t]{0,8}(?=[\r\n]|\Z)"

#: Arguments of a command, over lines that a backslash joins, up to the next command; one of them, without blanks.
_ARGUMENTS = rb"(?:\\\n|(?!curl|mysql|docker login)[^\n]){0,1024}?\s"
_ARGUMENT = rb"([^\s\"'<>|\x80-\xff-][^\s\"'<>|\x80-\xff]{2,256})"

#: A cookie's header, option, assignment or record, up to the first name; its names and values; one of these.
_COOKIES = (
    rb"s?(?:\\{0,3}[\"'`]?[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)|[ \t]"
    rb"|\\{0,3}[\"'][ \t]{0,4},\s{0,48}\\{0,3}[\"']value\\{0,3}[\"'][ \t]{0,4}:)[ \t]{0,4}\\{0,3}[\"'`]?"
)
_COOKIE_LIST = rb"((?=[^=\s]{1,128}=)(?:=\"[^\"\r\n]{0,4096}\"|[^\r\n\"'`<>\\]){3,8192})"
_COOKIE_START = rb"(?<![^\s;\"'`:=])"
_COOKIE = rb"[\w.%$!~^*+|-]{1,128}=\"?([^\s;\"'`<>\x00\\]{6,4096}(?<![,.)\]}]))"
_TELLING_COOKIE = (
    rb"(?i)"
    + _COOKIE_START
    + rb"(?=[^=;\s]{0,128}?(?:sess|sid(?:ts|cc)?[^a-z]|auth(?!or)|token|jwt|[cx]srf|secret|passw"
    rb"|login|logged_in|ticket|credential|remember|api[-_]?key|(?<![a-z])key=))" + _COOKIE
)

#: Rules in the order of precedence: the first match names the secret.
_RULES = (
    *(_Rule("private-key", word, _KEY_BODY, before=_KEY_BEGIN) for word in (b"private", b"static key v")),
    # The password of an address goes on to the last @ before a slash: people do not escape an @ inside it.
    # `${...}`, ***, and a port's number before a user's handle are none.
    _Rule(
        "password",
        b"://",
        rb"[^\s/:@?\"'`<>\x00\\]{0,128}:(?![${*%]|\[[A-Za-z]|(.)\1*@(?![^\s/@]*@)"
        rb"|[xX]{3}|[^\s@]{0,32}\.\.\.|[0-9]{1,5}@)([^\s/?\"'`<>\x00\xe0-\xff]{1,256})@",
    ),
    _Rule("token", b"://", rb"((?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,256})@", before=rb"(?i)https?\Z"),
    # Signed addresses of Azure, AWS, Google and Aliyun, and keys in a query that have no name of their own.
    _Rule("signature", b"sig", rb"(?i:nature)?=" + _SIGNATURE, before=_QUERY),
    _Rule("signature", b"key=", _SIGNATURE, before=rb"[?&]\Z"),
    _Rule("slack-webhook", b"hook", rb"s\.slack\.com/[a-z]{8,9}/([A-Za-z0-9_/-]{16,256})"),
    _Rule("discord-webhook", b"hook", rb"s/[0-9]{15,22}/([A-Za-z0-9_-]{40,128})", before=rb"/api/web\Z"),
    _Rule("wecom-webhook", b"hook", rb"/send\?key=([A-Za-z0-9-]{20,64})", before=rb"/web\Z"),
    _Rule("teams-webhook", b"hook", rb"/([A-Za-z0-9]{20,64}/[A-Za-z0-9/-]{20,128})", before=rb"(?i:/incomingweb)\Z"),
    _Rule("feishu-webhook", b"hook", rb"/([A-Za-z0-9-]{20,64})", before=rb"/open-apis/bot/(?:v2/)?\Z"),
    _Rule(
        "token",
        b"token_",
        rb"[A-Za-z0-9-]{1,64}=(?![0-9]+(?:[&#\s]|\Z))([A-Za-z0-9%+/_.~=-]{8,1024})",
        _is_query_token,
        before=_QUERY_TOKEN,
    ),
    # Headers
    _Rule("bearer-token", b"bearer", rb"[ \t]{1,4}([A-Za-z0-9_~+/-][A-Za-z0-9._~+/=-]{7,}(?<!\.))", _is_token),
    _Rule("basic-auth", b"basic", rb"[ \t]{1,4}" + _BASE64, _is_user_and_password),
    _Rule("basic-auth", b"auth", _IS + _BASE64, _is_user_and_password),
    _Rule(
        "authorization",
        b"auth",
        rb"(?i)" + _PROOF + rb"((?=[^\s,\"]*[0-9])[^\s,\"\\\0]{6,512})",
        _is_real,
        region=rb"(?i)orization" + _SIGNED + rb"((?:,\s{0,8}|[^\r\n]){1,2048})",
    ),
    _Rule(
        "authorization",
        b"auth",
        rb"(?i)orization(?!"
        + _SIGNED
        + rb")"
        + _IS
        + rb"(?:(?:bearer|basic|token|api-?key|bot|negotiate|key)[ \t]{1,4})?"
        rb"([A-Za-z0-9_~+/.=:-]{6,}(?<![.:]))",
        _is_token,
    ),
    _Rule(
        "key",
        b"x-",
        rb"(?i)(?:[a-z]{1,16}-){0,3}(?:key|token|secret)" + _IS + rb"(?!(?:[a-z]*key|string|test|token|v)[0-9]*\b)"
        rb"([a-z0-9]{5,16})(?=[.:)\]}*|]{0,4}(?:[\s\"'`,;<\\]|\Z))",
        _is_header_key,
    ),
    # Commands and files
    _Rule("password", b"sshpass", rb"[ \t]{1,4}-p[ \t]{0,4}[\"']?" + _ARGUMENT, _is_real),
    _Rule(
        "password",
        b"echo",
        rb"[ \t]{1,4}(?:-n[ \t]{1,4})?[\"']?" + _ARGUMENT + rb"[\"']?[ \t]{0,4}\|"
        rb"(?=[^|\r\n]{0,80}?(?:sudo -S|--password-stdin))",
        _is_real,
    ),
    _Rule(
        "password",
        b"curl",
        _ARGUMENTS + rb"(?:-u[ \t]{0,4}|(?:--user|--proxy-user|-U)(?:[ \t]{1,4}|=))(?P<quote>\\{0,3}[\"'])?"
        rb"[^\s:\"'<>$]{1,128}:(?!//)"
        rb"((?:[^\s\"'<>\\\x80-\xff]|(?(quote)[ \t]|(?!))|\\(?![\"'])){3,256})",
        _is_real,
    ),
    _Rule("password", b"mysql", _ARGUMENTS + rb"-p(?=[^\s:]{0,32}[A-Za-z])(?![$:=])" + _ARGUMENT, _is_real),
    _Rule("password", b"login", _ARGUMENTS + rb"-p[ \t]{1,4}[\"']?" + _ARGUMENT, _is_real, rb"docker \Z"),
    _Rule(
        "password",
        b"login",
        rb"[ \t]+\S{1,64}[ \t]+password[ \t]+" + _ARGUMENT,
        _is_real,
        before=rb"machine[ \t]+\S{1,48}[ \t]+\Z",
    ),
    _Rule("password", b":5432:", rb"(?:\*|[\w.-]{1,63}):(?:\*|[\w.@-]{1,63}):" + _PG_PASSWORD, _is_password, _PG_HOST),
    _Rule("password", b":*:*:", rb"(?:(?:\*|[\w.@-]{1,63}):)?" + _PG_PASSWORD, _is_password, _PG_HOST),
    _Rule(
        "password",
        b"passphrase",
        rb"(?: \([^()\r\n]{1,48}\))?[*_]{0,3}[ \t]{0,4}(?:[:=]|\xef\xbc\x9a)[*_]{0,3}[ \t]{0,4}"
        rb"([a-z]{2,12}(?:[ -][a-z]{2,12}){3,11})(?=[ \t.]{0,4}(?:[\r\n]|\Z))",
        are_chosen_words,
    ),
    # Cookies, and a value without a name
    _Rule("cookie", b"cookie", _TELLING_COOKIE, _is_cookie, region=_COOKIES + _COOKIE_LIST),
    _Rule("cookie", b"cookie", _COOKIE_START + _COOKIE, _is_opaque, region=_COOKIES + _COOKIE_LIST),
    _Rule("cookie", b"cookie", _IS + _SIGNATURE + rb"(?=[\s\"'`;,\\]|\Z)", _is_opaque),
    _Rule("cookie", b"curl", _TELLING_COOKIE, _is_cookie, region=_ARGUMENTS + rb"-b[ \t]{1,4}[\"']?" + _COOKIE_LIST),
)

_BY_WORD = {word: [rule for rule in _RULES if rule.word == word] for word in (rule.word for rule in _RULES)}
_WORDS_OF_RULES = any_of(_BY_WORD)

#: Bytes before a word that are examined.
_BEFORE_BYTES = 64


def find_credentials(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the credentials of protocols and files. `lowered`: the same text, its ASCII letters in lower case."""
    done: dict[bytes, int] = {}
    for words in _WORDS_OF_RULES:
        word = words.search(lowered)
        while word is not None:
            position, start = word.span()
            for rule in _BY_WORD[word[0]] if position >= done.get(word[0], 0) else ():
                if re.compile(rule.before).search(data, max(0, position - _BEFORE_BYTES), position):
                    match = re.compile(rule.region or rule.pattern).match(data, start)
                    if match is not None:
                        done[word[0]] = max(done.get(word[0], 0), match.end())
                        yield from _secrets(rule, data, match)
            word = words.search(lowered, start)


def _secrets(rule: _Rule, data: bytes, match: re.Match[bytes]) -> Iterator[Span]:
    """Yield the secrets of a match, or in a matched region."""
    for part in re.compile(rule.pattern).finditer(data, *match.span(1)) if rule.region else (match,):
        first, last = part.span(part.lastindex or 0)
        if rule.check is None or rule.check(data[first:last]):
            yield Span(first, last, rule.kind)
