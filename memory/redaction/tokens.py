"""Tokens of known formats, found where a text has runs long enough to hold one: most texts have few."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from memory.redaction.values import Span, is_random_key

#: Many x in place of the real thing: in examples, nothing to hide.
_REAL = r"(?!\.|[xX]{8}|[xX]{4}(?:[^A-Za-z0-9]|$))"


@dataclass(frozen=True, slots=True)
class TokenFormat:
    """`kind` goes into the mask; `pattern` is a regular expression."""

    kind: str
    pattern: str


def _prefixed(kind: str, prefix: str, *, least: int = 20, characters: str = "A-Za-z0-9_-") -> TokenFormat:
    """Return the format of a prefix (a pattern) and at least `least` characters; all that follow belong to it."""
    return TokenFormat(kind, f"(?:{prefix}){_REAL}[{characters}]{{{least},}}")


#: Order matters: the first that matches names the kind.
TOKEN_FORMATS = (
    # Models
    _prefixed("anthropic-key", "sk-ant-"),
    _prefixed("openrouter-key", "sk-or-"),
    _prefixed("langfuse-key", "sk-lf-"),
    _prefixed("openai-key", "sk-(?:proj|svcacct|admin|None)-"),
    _prefixed("openai-key", "sk-(?=[A-Za-z0-9]{20})"),
    # Of other shapes: a digit, and a capital or a long part, or it is a hyphenated word.
    _prefixed(
        "api-key",
        "sk-(?=[A-Za-z_-]{0,64}[0-9])(?=[a-z0-9_-]{0,64}[A-Z]|[A-Za-z0-9_-]{0,64}?[A-Za-z0-9]{16})",
        least=16,
    ),
    _prefixed("groq-key", "gsk_"),
    _prefixed("perplexity-key", "pplx-"),
    _prefixed("huggingface-token", "hf_|api_org_", characters="A-Za-z0-9"),
    _prefixed("voyage-key", "pa-(?=[A-Za-z_-]{0,64}[0-9])(?=[a-z0-9_-]{0,64}[A-Z])(?=[A-Z0-9_-]{0,64}[a-z])", least=40),
    _prefixed("google-key", "AIza", least=35),
    _prefixed("google-key", r"AQ\.Ab"),
    _prefixed("google-token", r"ya29\.", characters="A-Za-z0-9_.-"),
    _prefixed("google-secret", "GOCSPX-"),
    _prefixed("xai-key", "xai-", least=40, characters="A-Za-z0-9"),
    _prefixed("replicate-token", "r8_", least=30, characters="A-Za-z0-9"),
    _prefixed("nvidia-key", "nvapi-"),
    _prefixed("cerebras-key", "csk-", characters="a-z0-9"),
    _prefixed("tavily-key", "tvly-"),
    _prefixed("langsmith-key", "lsv2_(?:pt|sk)_", characters="A-Za-z0-9_"),
    _prefixed("jina-key", "jina_", characters="A-Za-z0-9"),
    _prefixed("firecrawl-key", "fc-", least=32, characters="a-f0-9"),
    _prefixed("elevenlabs-key", "sk_", least=40, characters="a-f0-9"),
    TokenFormat("zhipu-key", r"[0-9a-f]{32}\.[A-Za-z0-9]{16}(?![A-Za-z0-9])"),
    # Clouds
    TokenFormat("aws-key-id", r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}(?![A-Za-z0-9])"),
    TokenFormat("azure-secret", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])"),
    _prefixed("alibaba-key-id", "LTAI", least=16, characters="A-Za-z0-9"),
    _prefixed("tencent-key-id", "AKID", least=32, characters="A-Za-z0-9"),
    _prefixed("digitalocean-token", "do[opr]_v1_", least=40, characters="a-f0-9"),
    _prefixed("cloudflare-key", r"v1\.0-[a-f0-9]{24}-", least=100, characters="a-f0-9"),
    _prefixed("databricks-token", "dapi", least=32, characters="a-f0-9-"),
    _prefixed("heroku-key", "HRKU-"),
    _prefixed("vault-token", r"hv[sbr]\."),
    TokenFormat("terraform-token", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{40,}"),
    _prefixed("doppler-token", r"dp\.(?:pt|st|ct|sa|scim|audit)\.", characters="A-Za-z0-9_.-"),
    _prefixed("onepassword-token", "ops_eyJ", least=40),
    _prefixed("tailscale-key", "tskey-"),
    _prefixed("supabase-key", "sbp_|sb_secret_"),
    _prefixed("netlify-token", "nfp_"),
    _prefixed("planetscale-token", "pscale_(?:tkn|pw|oauth)_", characters="A-Za-z0-9_.-"),
    _prefixed("bedrock-key", "ABSK", least=80, characters="A-Za-z0-9"),
    _prefixed("bedrock-key", "bedrock-api-key-"),
    _prefixed("onepassword-key", "A3-(?=[A-Z0-9]{6}-)", least=30, characters="A-Z0-9-"),
    _prefixed("flyio-token", "fo1_|fm[12][ar]?_", least=30),
    _prefixed("openshift-token", "sha256~", least=40),
    _prefixed("pulumi-token", "pul-", least=40, characters="a-f0-9"),
    _prefixed("dynatrace-token", r"dt0[a-z]01\.", least=24, characters="A-Za-z0-9_.-"),
    _prefixed("yandex-key", r"AQVN|t1\.9euel", least=30),
    # Code and packages
    _prefixed("github-token", "gh[pousr]_", least=30, characters="A-Za-z0-9_"),
    _prefixed("github-token", "github_pat_", characters="A-Za-z0-9_"),
    _prefixed("gitlab-token", "gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct|wt)-", characters="A-Za-z0-9_.-"),
    _prefixed("gitlab-token", "GR1348941"),
    _prefixed("npm-token", "npm_", least=30, characters="A-Za-z0-9"),
    _prefixed("pypi-token", "pypi-", least=50),
    _prefixed("rubygems-key", "rubygems_", least=40, characters="a-f0-9"),
    _prefixed("docker-token", "dckr_(?:pat|oat)_"),
    _prefixed("sentry-token", "sntry[su]_", characters="A-Za-z0-9_.-"),
    _prefixed("artifactory-key", "AKCp|cmVmdGtu", least=50, characters="A-Za-z0-9"),
    _prefixed("octopus-key", "API-(?=[A-Z0-9]{0,25}[0-9])", least=26, characters="A-Z0-9"),
    _prefixed("sourcegraph-token", "sgp_", least=30, characters="A-Za-z0-9_"),
    _prefixed("prefect-key", "pn[ub]_", least=30, characters="A-Za-z0-9"),
    _prefixed("readme-key", "rdme_", least=40, characters="A-Za-z0-9"),
    _prefixed("infracost-key", "ico-", least=30, characters="A-Za-z0-9"),
    _prefixed("newrelic-key", "NR(?:AK|II|JS)-", least=18, characters="A-Za-z0-9"),
    _prefixed("grafana-token", "glc_|glsa_", characters="A-Za-z0-9_"),
    _prefixed("postman-key", "PMAK-"),
    _prefixed("figma-token", "fig[dou]_"),
    _prefixed("linear-key", "lin_(?:api|oauth)_", characters="A-Za-z0-9"),
    _prefixed("notion-token", "ntn_|secret_(?=[A-Za-z0-9]{40})", least=40, characters="A-Za-z0-9"),
    TokenFormat("airtable-token", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    _prefixed("atlassian-token", "AT[ACB]TT3", least=40, characters="A-Za-z0-9_=-"),
    _prefixed("age-key", "AGE-SECRET-KEY-1", characters="A-Z0-9"),
    # Money, mail, shops
    _prefixed("stripe-key", "[sr]k_(?:live|test)_", least=16, characters="A-Za-z0-9"),
    _prefixed("webhook-secret", "whsec_", characters="A-Za-z0-9"),
    TokenFormat("sendgrid-key", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    TokenFormat("twilio-key", r"(?:AC|SK)[0-9a-fA-F]{32}(?![A-Za-z0-9])"),
    TokenFormat("mailchimp-key", r"[0-9a-f]{32}-us[0-9]{1,2}(?![A-Za-z0-9])"),
    _prefixed("mailgun-key", "key-(?=[0-9a-f]{32}(?![A-Za-z0-9]))", least=32, characters="0-9a-f"),
    _prefixed("brevo-key", "xkeysib-", least=60),
    _prefixed("shippo-token", "shippo_(?:live|test)_", least=40, characters="A-Fa-f0-9"),
    _prefixed("duffel-token", "duffel_(?:live|test)_", least=40),
    _prefixed("easypost-key", "EZ[AT]K", least=50, characters="A-Za-z0-9"),
    _prefixed(
        "plaid-token", "access-(?:sandbox|development|production)-(?=[0-9a-f]{8}-)", least=36, characters="0-9a-f-"
    ),
    _prefixed("flutterwave-key", "FLWSECK(?:_TEST)?-", least=12, characters="A-Za-z0-9-"),
    _prefixed("typeform-token", "tfp_", least=40),
    _prefixed("dropbox-token", r"sl\.", least=60, characters="A-Za-z0-9_.-"),
    _prefixed("shopify-token", "shp(?:at|ca|pa|ss)_", characters="A-Fa-f0-9"),
    _prefixed("square-token", "sq0(?:atp|csp|idp)-"),
    # Chats
    _prefixed("slack-token", r"xox[abceoprs](?:\.xox[bp])?-|xapp-", least=10),
    TokenFormat("telegram-token", r"(?:bot)?[0-9]{8,10}:(?:AA[A-Za-z0-9_-]{30,40}|[A-Za-z0-9_-]{35})(?![A-Za-z0-9_-])"),
    TokenFormat("discord-token", r"(?:mfa\.)?[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}"),
    _prefixed("facebook-token", "EAA", least=80, characters="A-Za-z0-9"),
    # Everybody
    TokenFormat("jwt", r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}"),
)


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
    """Return True if base64 is that of a text, or of its beginning."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(base64.b64decode(value))
    except UnicodeDecodeError:
        return False
    return True


def _kind(data: bytes, start: int, end: int) -> str:
    return next(token.kind for token in TOKEN_FORMATS if _compiled(token.pattern).match(data, start, end))


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    """Return one format compiled, on demand: compiling all of them takes longer than most programs start."""
    return re.compile(pattern.encode())
