"""Tokens of known formats, searched only in runs of a text that are long enough: most texts have few."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

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

#: Many x in place of a token: an example, nothing to hide.
_REAL = r"(?!\.|[xX]{8}|[xX]{4}(?:[^A-Za-z0-9]|$))"


#: The kind and the regular expression of each format.
_FORMATS = (
    *(
        (kind, f"(?:{prefix}){_REAL}[{characters}]{{{least or 20},}}".encode())
        for characters, listed in _PREFIXED.items()
        for kind, prefix, least in re.findall(r"([a-z-]+)=(\S+?)(?:\{(\d+)\})?(?=\s|$)", listed)
    ),
    *((kind, pattern.encode()) for kind, pattern in _SHAPED.items()),
)

#: A token starts a word, or follows an escaped line end or tab. Without groups, so that the engine skips every format
#: that begins with another character. A match is compared with each format afterwards.
_TOKEN = re.compile(
    rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?=[A-Za-z0-9_~.])(?:"
    + b"|".join(pattern for _, pattern in _FORMATS)
    + rb")[A-Za-z0-9_-]*"
)

#: Shapes of a text: `a` for each byte that a token, or base64, may have, a space for any other.
_TOKEN_SHAPE, _BASE64_SHAPE = (
    bytes(0x61 if bytes((byte,)).isalnum() or byte in signs else 0x20 for byte in range(256))
    for signs in (b"_.:~-", b"+/")
)

#: Bytes of the shortest token, and of a secret access key of AWS: 30 random bytes in base64.
_LEAST_BYTES = 16
_AWS_BYTES = 40

#: Least number of these bytes that are UTF-8 if they are a text, or its beginning.
_TEXT_BYTES = 27

#: Such a key in a sentence, in quotes or after a name; not a digest.
_AWS_SECRET = re.compile(
    rb"(?<![^\s\"'`(\[:=,])(?![0-9a-fA-F]{40}|[A-Za-z]{40})[A-Za-z0-9+/]{40}(?=\Z|[\s\"'`)\],;]|\.(?:\s|\Z))"
)
_AWS_KEY_ID = re.compile(rb"(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])")

#: Bytes before and after such a key that are examined. Patterns: a name of something other than a secret, or a line of
#: base64, before it; such a line after it; the rest of a line on which it stands alone.
_AWS_NEAR_BYTES = 256
_OTHER_BEFORE = re.compile(
    rb"(?:hash|digest|etag|sum|integrity|sha[-_]?[0-9]*|md5|cursor|print|revision|version|(?:\b|_)(?:id|blob|data|content))"
    rb"[\"'`]?\s{0,4}[:=]?\s{0,4}[\"'`]?\Z|[A-Za-z0-9+/=]{24}[^\n]{0,4}\n[^\n]{0,16}\Z",
    re.IGNORECASE,
)
_OTHER_AFTER = re.compile(rb"[^\n]{0,4}\n[^\n]{0,16}?[A-Za-z0-9+/=]{24}")
_ALONE_BEFORE = re.compile(rb"(?m:^)[ \t>*+\"'`-]{0,16}\Z")
_ALONE_AFTER = re.compile(rb"[ \t\"'`,;.]{0,16}(?:\r?\n|\Z)")


def find_tokens(data: bytes) -> Iterator[Span]:
    """Yield the tokens of known formats."""
    for start, end in _runs(data, _TOKEN_SHAPE, _LEAST_BYTES):
        for match in _TOKEN.finditer(data, start, end):
            # On demand: compiling each format takes longer than most programs start.
            kind = next(kind for kind, pattern in _FORMATS if re.compile(pattern).match(data, match.start(), end))
            yield Span(*match.span(), kind)


def find_aws_secrets(data: bytes) -> Iterator[Span]:
    """Yield the secret access keys of AWS that stand beside their key id, or by themselves."""
    for start, _ in _runs(data, _BASE64_SHAPE, _AWS_BYTES):
        if (match := _AWS_SECRET.match(data, start)) is not None and _is_aws_secret(data, match):
            yield Span(*match.span(), "aws-secret")


def _runs(data: bytes, shapes: bytes, least: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of at least so many bytes of a shape."""
    shape = data.translate(shapes)
    end = 0
    while (start := shape.find(b"a" * least, end)) >= 0:
        end = shape.find(b" ", start)
        end = end if end >= 0 else len(shape)
        yield start, end


def _is_aws_secret(data: bytes, match: re.Match[bytes]) -> bool:
    value, start, end = match[0], max(0, match.start() - _AWS_NEAR_BYTES), match.end() + _AWS_NEAR_BYTES
    text_bytes = len(base64.b64decode(value).decode(errors="ignore").encode())
    if not is_random_key(value) or text_bytes >= _TEXT_BYTES:
        return False
    if _AWS_KEY_ID.search(data, start, end):
        return True
    if _OTHER_BEFORE.search(data, start, match.start()) or _OTHER_AFTER.match(data, match.end(), end):
        return False
    is_alone = _ALONE_BEFORE.search(data, start, match.start()) and _ALONE_AFTER.match(data, match.end(), end)
    return is_alone is not None or not value.isalnum()
