"""Tokens that can be told by how they begin. The formats are those that the services document or are seen to issue.

Every pattern matches bytes of `[A-Za-z0-9_.:~-]` only and takes at least 16 of them: `memory.redaction.tokens` looks
nowhere else. None may contain a capturing group.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Many x in place of the real thing: in examples, nothing to hide.
_REAL = r"(?!\.|[xX]{8}|[xX]{4}(?:[^A-Za-z0-9]|$))"


@dataclass(frozen=True, slots=True)
class TokenFormat:
    """`kind` goes into the mask; `pattern` is a regular expression."""

    kind: str
    pattern: str


def _prefixed(kind: str, prefix: str, *, least: int = 20, characters: str = "A-Za-z0-9_-") -> TokenFormat:
    """A prefix (a pattern) and at least so many characters; all that follow belong to it."""
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
