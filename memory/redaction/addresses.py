"""Secrets in addresses: the password before the host or in .pgpass, signatures and keys of a query, webhooks.

The rest of an address stays: which host it was is worth finding again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory.redaction.masking import Span
from memory.redaction.values import Candidate, Family, Form, is_secret

#: After `://`. The password goes on to the last @ before a slash: people do not escape one that is part of it.
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

#: `${...}`, `<...>`, ***, a port's number before somebody's handle.
_PLACEHOLDER = re.compile(rb"[${<*%]|\[[A-Za-z<]|(.)\1*$|[xX]{3}|.{0,32}\.\.\.|[0-9]{1,5}$")


def find_addresses(data: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the secrets of URLs."""
    position = data.find(b"://")
    while position >= 0:
        position += 3
        user = _USER_INFO.match(data, position)
        is_web = user is None and data[max(0, position - 8) : position].endswith((b"http://", b"https://"))
        token = _TOKEN_INFO.match(data, position) if is_web else None
        if user is not None and not _PLACEHOLDER.match(user[1]):
            yield Span(*user.span(1), "password")
            position = user.end()
        elif token is not None:
            yield Span(*token.span(1), "token")
            position = token.end()
        position = data.find(b"://", position)
    for name in _SIGNATURE_NAMES:
        position = lowered.find(name)
        while position >= 0:
            end = position + len(name)
            value = _SIGNATURE.match(data, end)
            if value is not None and _in_query(data, position) and re.search(rb"[0-9]", value[1]):
                yield Span(*value.span(1), "signature")
                end = value.end()
            position = lowered.find(name, end)
    for needle, pattern, kind in _WEBHOOKS if b"hook" in lowered else ():
        position = lowered.find(needle)
        while position >= 0:
            end = position + len(needle)
            secret = pattern.match(data, end)
            if secret is not None:
                yield Span(*secret.span(1), kind)
                end = secret.end()
            position = lowered.find(needle, end)
    for port in _PGPASS_PORTS:
        position = data.find(port)
        while position >= 0:
            line = data.rfind(b"\n", max(0, position - _PGPASS_HOST_BYTES), position) + 1
            found = _PGPASS.match(data, line if line else max(0, position - _PGPASS_HOST_BYTES))
            if found is not None and is_secret(Candidate(found[1], Family.PASSWORD, Form.SETTING)):
                yield Span(*found.span(1), "password")
            position = data.find(port, position + len(port))


def _in_query(data: bytes, position: int) -> bool:
    """Whether a name stands in an address's query, behind a prefix such as `X-Amz-` perhaps."""
    before = data[max(0, position - 12) : position + 1]
    return any(sign in before for sign in _QUERY_SIGNS)
