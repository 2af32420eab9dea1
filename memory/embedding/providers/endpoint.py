"""An embedding endpoint: its identity and account, the meaning of its errors, and the waits that it asks for.

Identity and messages hold nothing secret.
"""

from __future__ import annotations

import email.utils
import hashlib
import ipaddress
import json
import math
import platform
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from memory.redaction import redact
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, TooLarge, Transient

#: Header names that hold secrets; neither an identity nor a message shows their values.
_SECRET_HEADER = re.compile(r"auth|api-?key|token|secret|cookie|password|signature|credential", re.IGNORECASE)

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


def identity_of(
    *,
    provider: str,
    model: str,
    base_url: str,
    dimensions: int | None = None,
    query_input_type: str | None = None,
    document_input_type: str | None = None,
    query_prefix: str = "",
    document_prefix: str = "",
    headers: Mapping[str, str] | None = None,
) -> str:
    """Return everything that decides the numbers of a vector, as sorted JSON, without a key."""
    facts: dict[str, object] = {
        "base_url": normalised_url(base_url),
        "dimensions": dimensions,
        "document_input_type": document_input_type,
        "document_prefix": document_prefix or None,
        "headers": {k.lower(): v for k, v in (headers or {}).items() if not is_secret_header(k)} or None,
        "model": model,
        "provider": provider,
        "query_input_type": query_input_type,
        "query_prefix": query_prefix or None,
    }
    shown = {key: value for key, value in facts.items() if value is not None}
    return json.dumps(shown, sort_keys=True, ensure_ascii=True, separators=(",", ":"))


def account_of(*, base_url: str, api_key: str | None, headers: Mapping[str, str] | None = None) -> str:
    """Return the account whose limits the requests count against, as a digest of address, key and secret headers.

    The same in every process. An address on this machine is another server on every machine, so its account
    holds the machine's name.
    """
    parts = urlsplit(base_url.strip())
    facts = [
        normalised_url(base_url),
        platform.node() if _is_loopback(parts.hostname or "") else None,
        [parts.username, parts.password, parts.query],
        api_key,
        sorted([name.lower(), value] for name, value in (headers or {}).items() if is_secret_header(name)),
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16, person=b"recalld account").hexdigest()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


#: What providers say of an input that is too long for their model.
TOO_LARGE = re.compile(
    r"context (?:length|size|window)|too (?:long|large|many tokens)|token limit|exceed"
    r"|max(?:imum)?[ _-](?:[\w,]+[ _-]){0,3}(?:tokens|length)|maxLength",
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
_SETTINGS_PARAMETERS = frozenset(
    {"model", "dimensions", "output_dimension", "output_dimensionality", "input_type", "task_type", "user"}
)

_NOT_THERE = re.compile(
    r"not (?:found|exist|supported|available|valid)|no such|unknown|unsupported|invalid|decommissioned|deprecated", re.I
)

#: How Google names a field that it does not have.
_UNKNOWN_NAME = re.compile(r'Unknown name "(\w+)"')

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

    def __init__(
        self, *, name: str, model: str, base_url: str, key_name: str, api_key: str | None, headers: Mapping[str, str]
    ) -> None:
        self._name = name
        self._model = model
        self._where = normalised_url(base_url)
        self._key_name = key_name
        parts = urlsplit(base_url)
        secrets = {value for key, value in headers.items() if is_secret_header(key)}
        secrets |= {api_key or "", parts.password or "", parts.query}
        # Longest first: one may be a part of another.
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)

    def of_connection(self, error: BaseException) -> Transient:
        """Return what to raise for a request that got no answer, or half of one."""
        return Transient(
            f"the connection to {self._name} at {self._where} failed ({type(error).__name__}{self._quoted(str(error))})"
        )

    def of_status(self, status: int, headers: Mapping[str, str], body: object) -> RecalldError:
        """For an answer with a status other than 2xx; `body` is its parsed JSON or its text."""
        facts = _facts(body)
        words = self._quoted(_message(facts, body))
        labels = _labels(facts)
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
        if status == 429 and _DAILY_QUOTA.search(_text(body)):
            return Terminal(
                f"the day's quota of {self._name} is used up (HTTP 429{words}): wait for the next day, raise the plan "
                "or use another provider"
            )
        hint = retry_after(headers, body)
        if status in {429, 529} or (status >= 500 and (labels & _OVERLOADED or (status == 503 and hint is not None))):
            return Throttled(f"{self._name} asks to slow down (HTTP {status}{words})", retry_after=hint)
        if status in {408, 409, 425} or status >= 500:
            return Transient(f"{self._name} had a passing failure (HTTP {status}{words})", retry_after=hint)
        return self._of_refusal(status, facts, labels, words)

    def _of_refusal(self, status: int, facts: Mapping[str, Any], labels: set[str], words: str) -> RecalldError:
        setting = next((name for name in _refused_names(facts) if name in _SETTINGS_PARAMETERS), None)
        if setting is not None and status != 413:
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
        # Some quote what they were sent.
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


def _facts(body: object) -> Mapping[str, Any]:
    """The part of an error's body that says what happened; servers nest it differently."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, Mapping):
        inner = body.get("error")
        if isinstance(inner, Mapping):
            return inner
        if isinstance(inner, str):
            return {"message": inner}
        return body
    return {}


def _message(facts: Mapping[str, Any], body: object) -> str:
    for name in ("message", "detail"):
        said = facts.get(name)
        if said:
            return said if isinstance(said, str) else _text(said)
    return "" if facts else _text(body)


def _labels(facts: Mapping[str, Any]) -> set[str]:
    reasons = [entry.get("reason") for entry in _entries(facts, "details")]
    return {str(label) for label in (*map(facts.get, ("code", "type", "status")), *reasons) if label is not None}


def _entries(facts: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = facts.get(name)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _refused_names(facts: Mapping[str, Any]) -> Iterable[str]:
    """The fields that an error names, in the manner of OpenAI, of Google, and of FastAPI (Mistral, Voyage, vLLM)."""
    if isinstance(facts.get("param"), str):
        yield facts["param"]
    for detail in _entries(facts, "details"):
        for violation in _entries(detail, "fieldViolations"):
            yield str(violation.get("field")).rpartition(".")[2]
    for name in ("message", "detail"):
        said = facts.get(name)
        if isinstance(said, str):
            yield from _UNKNOWN_NAME.findall(said[:_MOST_READ])
        entries: Any = said.get("detail") if isinstance(said, Mapping) else said
        for entry in entries if isinstance(entries, list) else ():
            place = entry.get("loc") if isinstance(entry, Mapping) else None
            if isinstance(place, list):
                yield from (part for part in place if isinstance(part, str))


def _text(body: object) -> str:
    if body is None:
        return ""
    return (body if isinstance(body, str) else json.dumps(body, default=str, ensure_ascii=False))[:_MOST_READ]


#: No provider is waited for longer than this without another look.
LONGEST_WAIT_SECONDS = 3600.0

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: "1h2m3.5s", "20ms", "12.5 seconds", "1 minute".
_PART = re.compile(
    r"(\d+(?:\.\d+)?) ?(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|h|days?|d)(?![a-z])", re.I
)
_HINT = re.compile(rf"(?:try again|retry) (?:in|after) ((?:{_PART.pattern}[ ,]*)+)", re.IGNORECASE)

#: What google.rpc.RetryInfo says, "34s" or "0.5s": https://google.aip.dev/193
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')

#: Headers of OpenAI and compatible endpoints; the plain form counts everything.
_COUNTED = ("-requests", "-tokens", "")

#: Numbers above these are moments (Unix time), in seconds and in milliseconds.
_MOMENT_SECONDS, _MOMENT_MILLISECONDS = 1e9, 1e11


def retry_after(headers: Mapping[str, str], body: object) -> float | None:
    """Seconds that the provider asks to wait; None when it does not say, or names a time that has come already.

    In this order: `retry-after-ms`, `retry-after` (seconds or a date), Google's RetryInfo, "try again in 1m30s" in
    the body, `x-ratelimit-reset-...` of what is used up. `headers` has lower-case names or does not mind the case;
    `body` is parsed JSON or text.
    """
    words = body if isinstance(body, str) else json.dumps(body, default=str, ensure_ascii=False)
    for seconds in (
        _scaled(_number(headers.get("retry-after-ms")), 0.001),
        _seconds_or_date(headers.get("retry-after")),
        _number(delay[1]) if (delay := _RETRY_DELAY.search(words)) else None,
        duration(hint[1]) if (hint := _HINT.search(words)) else None,
        _reset(headers),
    ):
        if seconds is not None:
            return min(seconds, LONGEST_WAIT_SECONDS) if seconds > 0 else None
    return None


def duration(text: str) -> float | None:
    """Seconds of "6m0s", "20ms" or "1 minute"; None when there is no such thing in the text."""
    parts = _PART.findall(text)
    if not parts:
        return None
    return sum(float(count) * _UNIT_SECONDS[_unit(name)] for count, name in parts)


def _unit(name: str) -> str:
    lowered = name.lower()
    return "ms" if lowered.startswith(("ms", "milli")) else lowered[0]


def _seconds_or_date(value: str | None) -> float | None:
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    moment = email.utils.parsedate_tz(value)
    try:
        return None if moment is None else email.utils.mktime_tz(moment) - time.time()
    except (ValueError, OverflowError):
        return None


def _reset(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until all used-up limits are reset."""
    waits = [
        _until(headers.get(f"x-ratelimit-reset{counted}"))
        for counted in _COUNTED
        if _number(headers.get(f"x-ratelimit-remaining{counted}")) == 0
    ]
    return max((wait for wait in waits if wait is not None), default=None)


def _until(value: str | None) -> float | None:
    number = _number(value)
    if number is None:
        return duration(value) if value else None
    if number > _MOMENT_MILLISECONDS:
        return number / 1000 - time.time()
    return number - time.time() if number > _MOMENT_SECONDS else number


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else None
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor
