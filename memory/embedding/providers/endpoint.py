"""An embedding endpoint: its identity and account, the meaning of its errors, and the waits that it asks for.

Identity and messages hold nothing secret.
"""

from __future__ import annotations

import email.utils
import hashlib
import json
import math
import platform
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from memory.embedding.providers.presets import OWN_SERVERS
from memory.embedding.providers.provider import ProviderLimits
from memory.http.loopback import is_loopback
from memory.redaction import redact
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, TooLarge, Transient

#: Header names that hold secrets; neither an identity nor a message shows their values.
_SECRET_HEADER = re.compile(r"auth|api-?key|token|secret|cookie|password|signature|credential", re.IGNORECASE)

#: Seconds that a request may take, to the last byte of its answer, by its kind: of a service, and of a server that may
#: have to load its model first.
_SECONDS = {"document": (120.0, 600.0), "query": (15.0, 300.0)}

_DEFAULT_PORTS = {"http": 80, "https": 443}


def normalised_url(base_url: str) -> str:
    """Return scheme, host, port and path in one spelling, without user, query and fragment, which may be secret."""
    parts = urlsplit(base_url.strip())
    scheme = parts.scheme.lower()
    host = (parts.hostname or "").lower()
    if ":" in host:
        host = f"[{host}]"
    if parts.port is not None and parts.port != _DEFAULT_PORTS.get(scheme):
        host = f"{host}:{parts.port}"
    return urlunsplit((scheme, host, parts.path.rstrip("/"), "", ""))


def is_secret_header(name: str) -> bool:
    """Return True if a header's value must not be shown."""
    return _SECRET_HEADER.search(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A model behind an HTTP API at `base_url`, and the settings of requests to it.

    `dimensions` is asked for only when given, as `dimensions_field`. `query_input_type` and `document_input_type`
    are sent as `input_type`, for models that tell them apart; `query_prefix` and `document_prefix` are put before the
    texts. `key_name` is the key's name in messages. `identity_url` stands for the address in the identity where that is
    another one. `width` is the dimensions that a person rebuilt the index for, after the model
    behind the address changed. `documents_seconds` and `query_seconds` are in place of the usual seconds of a request.
    """

    name: str
    model: str
    base_url: str
    api_key: str | None
    key_name: str
    limits: ProviderLimits
    dimensions: int | None = None
    dimensions_field: str = "dimensions"
    headers: Mapping[str, str] = field(default_factory=dict)
    query_input_type: str | None = None
    document_input_type: str | None = None
    query_prefix: str = ""
    document_prefix: str = ""
    width: int | None = None
    identity_url: str | None = None
    documents_seconds: float | None = None
    query_seconds: float | None = None

    @property
    def address(self) -> str:
        """Return the address without secrets."""
        return normalised_url(self.base_url)

    @property
    def is_loopback(self) -> bool:
        """Return True if the address is on this machine."""
        return is_loopback(urlsplit(self.base_url.strip()).hostname or "")

    def seconds(self, kind: str) -> float:
        """Return the seconds that a request may take; `kind` is "query" or "document"."""
        by_settings = self.query_seconds if kind == "query" else self.documents_seconds
        service, server = _SECONDS[kind]
        return by_settings or (server if self.is_loopback or self.name in OWN_SERVERS else service)

    @property
    def identity(self) -> str:
        """Return everything that decides the numbers of a vector, as sorted JSON, without a key."""
        plain_headers = {name.lower(): value for name, value in self.headers.items() if not is_secret_header(name)}
        facts = {
            "base_url": normalised_url(self.identity_url or self.base_url),
            "dimensions": self.dimensions,
            "document_input_type": self.document_input_type,
            "document_prefix": self.document_prefix or None,
            "headers": plain_headers or None,
            "model": self.model,
            "provider": self.name,
            "query_input_type": self.query_input_type,
            "query_prefix": self.query_prefix or None,
            "width": self.width,
        }
        stated = {key: value for key, value in facts.items() if value is not None}
        return json.dumps(stated, sort_keys=True, ensure_ascii=True, separators=(",", ":"))

    @property
    def account(self) -> str:
        """Return the account whose limits requests count against, as a digest of address, key and secret headers.

        The same in every process. An address on this machine is another server on every machine, so its account
        holds the machine's name.
        """
        parts = urlsplit(self.base_url.strip())
        facts = [
            self.address,
            platform.node() if self.is_loopback else None,
            [parts.username, parts.password, parts.query],
            self.api_key,
            sorted([name.lower(), value] for name, value in self.headers.items() if is_secret_header(name)),
        ]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16, person=b"recalld account").hexdigest()


#: Messages of providers about an input that is too long for their model.
TOO_LARGE = re.compile(
    r"context (?:length|size|window)|too (?:long|large|many tokens)|token limit|exceed"
    r"|max(?:imum)?[ _-](?:[\w,]{1,40}+[ -]){0,3}(?:[\w,]{0,40}_)?(?:tokens|length)|maxLength",
    re.IGNORECASE,
)

#: Codes and types of errors of an account that has to be paid first. "billing_..." means it, too.
_NO_CREDIT = frozenset(
    {
        "insufficient_quota",
        "quota_exceeded",
        "credit_balance_exhausted",
        "insufficient_credits",
        "insufficient_balance",
    }
)

#: Codes of endpoints that answer a wrong key with 400, as Google does.
_KEY_REFUSED = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED", "invalid_api_key"})

_MODEL_UNKNOWN = frozenset({"model_not_found", "invalid_model", "unsupported_model"})

#: Codes of 5xx answers that mean "slow down" rather than "broken".
_OVERLOADED = frozenset({"overloaded_error", "slow_down", "rate_limit_exceeded"})

#: Parameters whose refusal is about the settings, not about the texts.
_SETTING = "(model|dimensions|output_dimension|output_dimensionality|input_type|task_type|user)"

#: Fields that an error names, in the manner of OpenAI, of Google (twice), and of FastAPI (Mistral, Voyage, vLLM).
#: Quotes inside of a text are escaped, so no text that is quoted in its own refusal looks like that.
_REFUSED_SETTING = re.compile(
    rf'"param": "{_SETTING}"|"field": "(?:[^"\\]*\.)?{_SETTING}"|Unknown name \\"{_SETTING}\\"'
    rf'|"loc": \[[^\[\]]*"{_SETTING}"'
)

#: Words for programs in an error.
_LABEL = re.compile(r'"(?:code|type|status|reason)": "([^"\\]+)"')

_NOT_THERE = re.compile(
    r"not (?:found|exist|supported|available|valid)|no such|unknown|unsupported|invalid|decommissioned|deprecated", re.I
)

#: Google refuses everything from such an account or place: https://ai.google.dev/gemini-api/docs/troubleshooting
_ACCOUNT_REFUSED = "FAILED_PRECONDITION"

#: Google answers a used-up minute and a used-up day alike, "retry in 30s" included; only the quota's name tells.
_DAILY_QUOTA = re.compile(r'"quotaId"\s*:\s*"[^"]*PerDay')

#: Characters of a provider's own words in a message.
_MOST_WORDS = 300

#: Characters of a provider's own words that are looked at.
_MOST_READ = 20_000


class ErrorReader:
    """Turns an SDK's failures into ours. No message holds a secret, nor more than a line of the provider's words."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._name, self._model, self._key_name = endpoint.name, endpoint.model, endpoint.key_name
        self._where = endpoint.address
        parts = urlsplit(endpoint.base_url)
        secrets = {value for key, value in endpoint.headers.items() if is_secret_header(key)}
        secrets |= {endpoint.api_key or "", parts.password or "", parts.query}
        # Longest first: one may be a part of another.
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)

    def of_connection(self, error: BaseException) -> Transient:
        """Return the error of a request that got no answer, or half of one."""
        return Transient(
            f"the connection to {self._name} at {self._where} failed ({type(error).__name__}{self._quoted(str(error))})"
        )

    def of_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        """Return the error of an answer with a status other than 2xx; `body` is its parsed JSON or its text."""
        text = _text(body)
        words = self._quoted(_message(body))
        labels = set() if isinstance(body, str) else set(_LABEL.findall(text))
        if 300 <= status < 400:
            return Terminal(
                f"{self._where} sends requests elsewhere ({_target(headers)}HTTP {status}), and texts go to no address "
                "but the one in the settings: check remote.base_url"
            )
        if status == 401 or labels & _KEY_REFUSED:
            return Terminal(f"{self._name} refused the key (HTTP {status}{words}): check {self._key_name}")
        if status == 402 or labels & _NO_CREDIT or any(label.startswith("billing_") for label in labels):
            return Terminal(
                f"the {self._name} account has no credit left (HTTP {status}{words}): top it up or use another provider"
            )
        if status == 403 or _ACCOUNT_REFUSED in labels:
            return Terminal(f"{self._name} refused access with this key (HTTP {status}{words}): check {self._key_name}")
        if status in {404, 405, 410}:
            return Terminal(
                f"{self._name} at {self._where} does not know the model {self._model} or the address "
                f"(HTTP {status}{words}): check model and remote.base_url"
            )
        if status == 429 and _DAILY_QUOTA.search(text):
            return Terminal(
                f"the day's quota of {self._name} is used up (HTTP 429{words}): wait for the next day, raise the plan "
                "or use another provider"
            )
        hint = retry_after(headers, body)
        if status in {429, 529} or (status >= 500 and (labels & _OVERLOADED or (status == 503 and hint is not None))):
            return Throttled(f"{self._name} asks to slow down (HTTP {status}{words})", retry_after=hint)
        if status in {408, 409, 425} or status >= 500:
            return Transient(f"{self._name} had a passing failure (HTTP {status}{words})", retry_after=hint)
        match = _REFUSED_SETTING.search(text)
        if match is not None and status != 413:
            setting = next(filter(None, match.groups()))
            return Terminal(f"{self._name} refused the setting {setting} (HTTP {status}{words})")
        # Its name has to be there: a text that is quoted in its own refusal may hold any words.
        if labels & _MODEL_UNKNOWN or (self._model in words and _NOT_THERE.search(words) and "token" not in words):
            return Terminal(f"{self._name} does not serve the model {self._model} (HTTP {status}{words}): check model")
        # A text that is quoted in its own refusal may say so, too: then asking in pieces is a few requests for nothing.
        too_large = status == 413 or (status in {400, 422} and TOO_LARGE.search(words))
        kind = TooLarge if too_large else Permanent
        return kind(f"{self._name} refused the text (HTTP {status}{words})")

    def _quoted(self, words: str) -> str:
        words = words[:_MOST_READ]
        for secret in self._secrets:
            words = words.replace(secret, "***")
        # Some providers quote the sent text.
        words = redact(" ".join(words.split()))
        if len(words) > _MOST_WORDS:
            words = words[:_MOST_WORDS] + "..."
        return f": {words}" if words else ""


def _target(headers: Mapping[str, str]) -> str:
    """Return the host of a redirect: its path and query may hold secrets."""
    with suppress(ValueError):
        if host := urlsplit(headers.get("location", "")).hostname:
            return f"to {host}, "
    return ""


def _message(body: object) -> str:
    """Return the words in an error's body; servers nest it differently."""
    facts = body[0] if isinstance(body, list) and body else body
    if not isinstance(facts, Mapping):
        return _text(body)
    inner = facts.get("error")
    if isinstance(inner, str):
        return inner
    facts = inner if isinstance(inner, Mapping) else facts
    message = facts.get("message") or facts.get("detail")
    return _text(message) if message or not facts else ""


def _text(body: object) -> str:
    if body is None:
        return ""
    return (body if isinstance(body, str) else json.dumps(body, default=str, ensure_ascii=False))[:_MOST_READ]


#: No provider is waited for longer than this without another look.
LONGEST_WAIT_SECONDS = 3600.0

_UNIT_SECONDS = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: "1h2m3.5s", "20ms", "12.5 seconds", "1 minute".
_PART = re.compile(
    r"(?<!\d)(\d++(?:\.\d++)?) ?(ms|milli(?=second)|[smhd])"
    r"(?:seconds?|econds?|ecs?|in(?:ute)?s?|ours?|ays?)?(?![a-z])",
    re.IGNORECASE,
)
_HINT = re.compile(rf"(?:try again|retry) (?:in|after) ((?:{_PART.pattern}[ ,]*)+)", re.IGNORECASE)

#: Delay in google.rpc.RetryInfo, "34s" or "0.5s": https://google.aip.dev/193
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')

#: Headers of OpenAI and compatible endpoints; the plain form counts everything.
_COUNTED = ("-requests", "-tokens", "")

#: Numbers above these are moments (Unix time), in seconds and in milliseconds.
_MOMENT_SECONDS, _MOMENT_MILLISECONDS = 1e9, 1e11


def retry_after(headers: Mapping[str, str], body: object) -> float | None:
    """Return the seconds that the provider asks to wait; None when it does not say, or names a time that has come.

    In this order: `retry-after-ms`, `retry-after` (seconds or a date), Google's RetryInfo, "try again in 1m30s" in
    the body, `x-ratelimit-reset-...` of the used-up limit. `headers` has lower-case names or ignores the case; `body`
    is parsed JSON or text.
    """
    words = _text(body)
    milliseconds = _number(headers.get("retry-after-ms"))
    delay, hint = _RETRY_DELAY.search(words), _HINT.search(words)
    used_up = [counted for counted in _COUNTED if _number(headers.get(f"x-ratelimit-remaining{counted}")) == 0]
    resets = [_seconds_until(headers.get(f"x-ratelimit-reset{counted}")) for counted in used_up]
    for seconds in (
        None if milliseconds is None else milliseconds / 1000,
        _seconds_until(headers.get("retry-after")),
        float(delay[1]) if delay else None,
        duration(hint[1]) if hint else None,
        max((reset for reset in resets if reset is not None), default=None),
    ):
        if seconds is not None:
            return min(seconds, LONGEST_WAIT_SECONDS) if seconds > 0 else None
    return None


def duration(text: str) -> float | None:
    """Return the seconds of "6m0s", "20ms" or "1 minute"; None when there is no such thing in the text."""
    parts = _PART.findall(text)
    return sum(float(count) * _UNIT_SECONDS[unit.lower()] for count, unit in parts) if parts else None


def _seconds_until(value: str | None) -> float | None:
    """Return the seconds of a header: a number of them, a moment, a date, or a duration in words."""
    number = _number(value)
    if number is not None:
        moment = number / 1000 if number > _MOMENT_MILLISECONDS else number
        return moment - time.time() if number > _MOMENT_SECONDS else number
    date = email.utils.parsedate_tz(value) if value else None
    try:
        return email.utils.mktime_tz(date) - time.time() if date else duration(value or "")
    except (ValueError, OverflowError):
        return None


def _number(value: str | None) -> float | None:
    try:
        # Python takes 1_0 for ten.
        number = float(value) if value and "_" not in value else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
