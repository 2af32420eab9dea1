"""What an endpoint's failure means: try again, refuse the text, or stop asking."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from memory.embedding.endpoint import is_secret_header, normalised_url
from schemas.errors import Permanent, RecalldError, Terminal, Transient

#: No provider is waited for longer than this without another look.
_LONGEST_WAIT_SECONDS = 3600.0

#: Codes and types of errors that mean: nobody will serve us until somebody pays.
_NO_CREDIT = frozenset(
    {
        "insufficient_quota",
        "credit_balance_exhausted",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_credits",
        "insufficient_balance",
    }
)

#: Parameters whose refusal is about the settings, not about the texts.
_SETTINGS_PARAMETERS = frozenset({"model", "dimensions", "input_type", "user"})

_HINT = re.compile(r"(?:try again|retry) (?:in|after) (\d+(?:\.\d+)?) ?(ms|s|m)\b", re.IGNORECASE)
_RETRY_DELAY = re.compile(r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"')

#: Characters of a provider's own words in a message.
_MOST_WORDS = 300


class ErrorReader:
    """Turns the SDK's exceptions into ours. No message holds a key, nor more than a line of the provider's words."""

    def __init__(
        self, *, name: str, model: str, base_url: str, key_name: str, api_key: str | None, headers: Mapping[str, str]
    ) -> None:
        self._name = name
        self._model = model
        self._where = normalised_url(base_url)
        self._key_name = key_name
        self._secrets = [value for key, value in headers.items() if is_secret_header(key) and value]
        if api_key:
            self._secrets.append(api_key)

    def read(self, error: Exception) -> RecalldError:
        """What to raise for an exception of the SDK."""
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            return self._of_status(status, error)
        if "Timeout" in type(error).__name__:
            return Transient(f"{self._name} at {self._where} did not answer in time")
        cause = error.__cause__ or error
        return Transient(
            f"the connection to {self._name} at {self._where} failed ({type(cause).__name__}{self._quoted(str(cause))})"
        )

    def _of_status(self, status: int, error: Exception) -> RecalldError:
        headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
        body = getattr(error, "body", None)
        facts = _facts(body)
        words = self._quoted(str(facts.get("message") or getattr(error, "message", "")))
        labels = {str(facts.get("code")), str(facts.get("type"))}
        if status in {401, 403}:
            return Terminal(f"{self._name} refused the key (HTTP {status}): check {self._key_name}")
        if status == 402 or (status == 429 and labels & _NO_CREDIT):
            return Terminal(
                f"the {self._name} account has no credit left (HTTP {status}): top it up or use another provider"
            )
        if status in {404, 405}:
            return Terminal(
                f"{self._name} at {self._where} does not know the model {self._model} or the address "
                f"(HTTP {status}{words}): check model and remote.base_url"
            )
        if status in {408, 409, 425, 429} or status >= 500:
            what = "asks to slow down" if status == 429 else "had a passing failure"
            return Transient(f"{self._name} {what} (HTTP {status}{words})", retry_after=_retry_after(headers, body))
        if facts.get("param") in _SETTINGS_PARAMETERS:
            return Terminal(f"{self._name} refused the setting {facts['param']} (HTTP {status}{words})")
        return Permanent(f"{self._name} refused the text (HTTP {status}{words})")

    def _quoted(self, words: str) -> str:
        for secret in self._secrets:
            words = words.replace(secret, "***")
        words = " ".join(words.split())
        if len(words) > _MOST_WORDS:
            words = words[:_MOST_WORDS] + "..."
        return f": {words}" if words else ""


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


def _retry_after(headers: Mapping[str, str], body: object) -> float | None:
    """Seconds that the provider asks to wait, by header or in words; None when it does not say."""
    exact = _seconds(headers.get("retry-after-ms"))
    if exact is not None:
        return _bounded(exact / 1000)
    header = headers.get("retry-after")
    seconds = _seconds(header)
    if seconds is not None:
        return _bounded(seconds)
    if header:
        moment = email.utils.parsedate_tz(header)
        if moment is not None:
            return _bounded(email.utils.mktime_tz(moment) - time.time())
    words = json.dumps(body, default=str) if body is not None else ""
    if delay := _RETRY_DELAY.search(words):
        return _bounded(float(delay[1]))
    if hint := _HINT.search(words):
        return _bounded(float(hint[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[hint[2].lower()])
    return None


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header) if header else None
    except ValueError:
        return None
    return seconds if seconds is not None and math.isfinite(seconds) else None


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), _LONGEST_WAIT_SECONDS)
