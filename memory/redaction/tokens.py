"""Tokens of known formats, found where a text has runs long enough to hold one: most texts have few."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Iterator
from functools import cache

from memory.redaction.values import Span, is_random_key

#: Tokens that begin with a prefix, a regular expression, by the characters that follow it: at least 20 of them, or as
#: many as in braces. Of equal beginnings the first names the kind.
_PREFIXED = {
    "A-Za-z0-9_-": r"""
        anthropic-key=sk-ant- openrouter-key=sk-or- langfuse-key=sk-lf- openai-key=sk-(?:proj|svcacct|admin|None)-
        openai-key=sk-(?=[A-Za-z0-9]{20})
        api-key=sk-(?=[A-Za-z_-]{0,64}[0-9])(?=[a-z0-9_-]{0,64}[A-Z]|[A-Za-z0-9_-]{0,64}?[A-Za-z0-9]{16}){16}
        groq-key=gsk_ perplexity-key=pplx-
        voyage-key=pa-(?=[A-Za-z_-]{0,64}[0-9])(?=[a-z0-9_-]{0,64}[A-Z])(?=[A-Z0-9_-]{0,64}[a-z]){40}
        google-key=AIza{35} google-key=AQ\.Ab google-secret=GOCSPX- nvidia-key=nvapi- tavily-key=tvly-
        heroku-key=HRKU- vault-token=hv[sbr]\. onepassword-token=ops_eyJ{40} tailscale-key=tskey-
        supabase-key=sbp_|sb_secret_ netlify-token=nfp_ bedrock-key=bedrock-api-key- flyio-token=fo1_|fm[12][ar]?_{30}
        openshift-token=sha256~{40} yandex-key=AQVN|t1\.9euel{30} gitlab-token=GR1348941 pypi-token=pypi-{50}
        docker-token=dckr_(?:pat|oat)_ postman-key=PMAK- figma-token=fig[dou]_ brevo-key=xkeysib-{60}
        duffel-token=duffel_(?:live|test)_{40} typeform-token=tfp_{40} square-token=sq0(?:atp|csp|idp)-
        slack-token=xox[abceoprs](?:\.xox[bp])?-|xapp-{10}
    """,
    "A-Za-z0-9": r"""
        huggingface-token=hf_|api_org_ xai-key=xai-{40} replicate-token=r8_{30} jina-key=jina_ alibaba-key-id=LTAI{16}
        tencent-key-id=AKID{32} bedrock-key=ABSK{80} npm-token=npm_{30} artifactory-key=AKCp|cmVmdGtu{50}
        prefect-key=pn[ub]_{30} readme-key=rdme_{40} infracost-key=ico-{30} newrelic-key=NR(?:AK|II|JS)-{18}
        linear-key=lin_(?:api|oauth)_ notion-token=ntn_|secret_(?=[A-Za-z0-9]{40}){40}
        stripe-key=[sr]k_(?:live|test)_{16} webhook-secret=whsec_ easypost-key=EZ[AT]K{50} facebook-token=EAA{80}
    """,
    "A-Za-z0-9_.-": r"""
        google-token=ya29\. doppler-token=dp\.(?:pt|st|ct|sa|scim|audit)\. planetscale-token=pscale_(?:tkn|pw|oauth)_
        dynatrace-token=dt0[a-z]01\.{24} gitlab-token=gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct|wt)-
        sentry-token=sntry[su]_ dropbox-token=sl\.{60}
    """,
    "a-z0-9": r"cerebras-key=csk-",
    "A-Za-z0-9_": r"""
        langsmith-key=lsv2_(?:pt|sk)_ github-token=gh[pousr]_{30} github-token=github_pat_ sourcegraph-token=sgp_{30}
        grafana-token=glc_|glsa_
    """,
    "a-f0-9": r"""
        firecrawl-key=fc-{32} elevenlabs-key=sk_{40} digitalocean-token=do[opr]_v1_{40}
        cloudflare-key=v1\.0-[a-f0-9]{24}-{100} pulumi-token=pul-{40} rubygems-key=rubygems_{40}
        mailgun-key=key-(?=[0-9a-f]{32}(?![A-Za-z0-9])){32}
    """,
    "a-f0-9-": r"""
        databricks-token=dapi{32} plaid-token=access-(?:sandbox|development|production)-(?=[0-9a-f]{8}-){36}
    """,
    "A-Z0-9-": r"onepassword-key=A3-(?=[A-Z0-9]{6}-){30}",
    "A-Z0-9": r"octopus-key=API-(?=[A-Z0-9]{0,25}[0-9]){26} age-key=AGE-SECRET-KEY-1",
    "A-Za-z0-9_=-": r"atlassian-token=AT[ACB]TT3{40}",
    "A-Fa-f0-9": r"shippo-token=shippo_(?:live|test)_{40} shopify-token=shp(?:at|ca|pa|ss)_",
    "A-Za-z0-9-": r"flutterwave-key=FLWSECK(?:_TEST)?-{12}",
}

#: Tokens of other shapes.
_SHAPED = {
    "zhipu-key": r"[0-9a-f]{32}\.[A-Za-z0-9]{16}(?![A-Za-z0-9])",
    "aws-key-id": r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}(?![A-Za-z0-9])",
    "azure-secret": r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])",
    "terraform-token": r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{40,}",
    "airtable-token": r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}",
    "sendgrid-key": r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    "twilio-key": r"(?:AC|SK)[0-9a-fA-F]{32}(?![A-Za-z0-9])",
    "mailchimp-key": r"[0-9a-f]{32}-us[0-9]{1,2}(?![A-Za-z0-9])",
    "telegram-token": r"(?:bot)?[0-9]{8,10}:(?:AA[A-Za-z0-9_-]{30,40}|[A-Za-z0-9_-]{35})(?![A-Za-z0-9_-])",
    "discord-token": r"(?:mfa\.)?[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}",
    "jwt": r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,3}",
}

#: Many x in place of the real thing: in examples, nothing to hide.
_REAL = r"(?!\.|[xX]{8}|[xX]{4}(?:[^A-Za-z0-9]|$))"


def _formats() -> Iterator[tuple[str, str]]:
    """Yield the kind and the regular expression of each format."""
    for characters, listed in _PREFIXED.items():
        for kind, prefix, least in re.findall(r"([a-z-]+)=(\S+?)(?:\{(\d+)\})?(?=\s|$)", listed):
            yield kind, f"(?:{prefix}){_REAL}[{characters}]{{{least or 20},}}"
    yield from _SHAPED.items()


_FORMATS = tuple(_formats())

#: Shapes of a text: `a` for each byte that a token, or base64, may have, a space for any other.
_TOKEN_SHAPE, _BASE64_SHAPE = (
    bytes(0x61 if bytes((byte,)).isalnum() or byte in signs else 0x20 for byte in range(256))
    for signs in (b"_.:~-", b"+/")
)

#: Bytes of the shortest token, and of a secret access key of AWS: 30 random bytes in base64.
_LEAST_BYTES = 16
_AWS_SECRET_BYTES = 40

#: A token starts a word, or follows an escaped line end or tab. Without groups, so that the engine skips every format
#: that begins with another character; which one it was is asked once there is one.
_TOKEN = re.compile(
    (
        r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?=[A-Za-z0-9_~.])(?:" + "|".join(pattern for _, pattern in _FORMATS) + ")"
    ).encode()
)

#: What belongs to a run after a token's own characters and would tell something of it.
_REST = re.compile(rb"[A-Za-z0-9_-]*")

#: Bytes before and after such a key in which its id makes it one wherever it stands.
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
    for start, end in _runs(data, _TOKEN_SHAPE, _LEAST_BYTES):
        position = start
        while (found := _TOKEN.search(data, position, end)) is not None:
            rest = _REST.match(data, found.end(), end)
            position = rest.end() if rest is not None else found.end()
            yield Span(found.start(), position, _kind(data, found.start(), end))


def find_aws_secrets(data: bytes) -> Iterator[Span]:
    """Yield the secret access keys of AWS that stand beside their key id, or by themselves."""
    for start, end in _runs(data, _BASE64_SHAPE, _AWS_SECRET_BYTES):
        if end - start == _AWS_SECRET_BYTES and _is_aws_secret(data, start, end):
            yield Span(start, end, "aws-secret")


def _runs(data: bytes, shapes: bytes, least: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of at least so many bytes of a shape."""
    shape = data.translate(shapes)
    end = 0
    while (start := shape.find(b"a" * least, end)) >= 0:
        end = shape.find(b" ", start)
        end = end if end >= 0 else len(shape)
        yield start, end


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
    return next(kind for kind, pattern in _FORMATS if _compiled(pattern).match(data, start, end))


@cache
def _compiled(pattern: str) -> re.Pattern[bytes]:
    """Return one format compiled, on demand: compiling all of them takes longer than most programs start."""
    return re.compile(pattern.encode())
