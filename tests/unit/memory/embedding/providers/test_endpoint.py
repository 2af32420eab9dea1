"""Whose account it is, and what an endpoint's refusals mean."""

from __future__ import annotations

from typing import Any

import pytest

from memory.embedding.providers.endpoint import Endpoint, ErrorReader
from memory.embedding.providers.provider import ProviderLimits
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, TooLarge, Transient

URL = "https://api.example.org/v1"
LIMITS = ProviderLimits(inputs=1, tokens=1, input_bytes=1, concurrency=1, chunks_per_second=1)


def account_of(*, base_url: str, api_key: str | None, headers: dict[str, str] | None = None) -> str:
    return Endpoint(
        name="n", model="m", base_url=base_url, api_key=api_key, key_name="K", limits=LIMITS, headers=headers or {}
    ).account


def test_the_account_is_the_address_the_key_and_the_secret_headers() -> None:
    account = account_of(base_url=URL, api_key="sk-1", headers={"X-Team": "a"})
    assert account == account_of(base_url="HTTPS://API.example.org:443/v1/", api_key="sk-1", headers={"X-Team": "b"})
    others = [
        account_of(base_url=URL, api_key="sk-2"),
        account_of(base_url=URL, api_key=None),
        account_of(base_url="https://api.example.org/v2", api_key="sk-1"),
        account_of(base_url="https://user:pw@api.example.org/v1", api_key="sk-1"),
        account_of(base_url=URL, api_key="sk-1", headers={"X-Api-Key": "another"}),
    ]
    assert len({account, *others}) == 6


def test_an_address_on_this_machine_is_another_server_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ["http://127.0.0.1:11434/v1", "http://localhost:11434/v1", "http://[::1]:11434/v1", URL]
    here = [account_of(base_url=url, api_key=None) for url in urls]
    monkeypatch.setattr("platform.node", lambda: "another-machine")
    there = [account_of(base_url=url, api_key=None) for url in urls]
    assert [a == b for a, b in zip(here, there, strict=True)] == [False, False, False, True]


def read(status: int, body: Any, headers: dict[str, str] | None = None) -> RecalldError:
    endpoint = Endpoint(
        name="gemini", model="embed-1", base_url=URL, key_name="GEMINI_API_KEY", api_key="sk-1", limits=LIMITS
    )
    return ErrorReader(endpoint).of_status(status, headers or {}, body)


def google(status: str, *details: dict[str, Any], message: str = "no") -> list[Any]:
    return [{"error": {"code": 429, "message": message, "status": status, "details": list(details)}}]


DAILY = {"violations": [{"quotaId": "EmbedContentRequestsPerDayPerUserPerProjectPerModel-FreeTier"}]}
MINUTE = {"violations": [{"quotaId": "EmbedContentRequestsPerMinutePerUserPerProjectPerModel-FreeTier"}]}


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (429, google("RESOURCE_EXHAUSTED", DAILY, message="Please retry in 30s."), Terminal, "the day's quota"),
        (429, google("RESOURCE_EXHAUSTED", MINUTE, message="Please retry in 30s."), Throttled, "slow down"),
        (
            400,
            google("INVALID_ARGUMENT", message='Invalid JSON payload received. Unknown name "input_type": no field'),
            Terminal,
            "refused the setting input_type",
        ),
        (
            422,
            {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "dimensions"]}]}},
            Terminal,
            "refused the setting dimensions",
        ),
        (400, {"error": {"message": "Invalid model: embed-1", "code": "1500"}}, Terminal, "does not serve the model"),
        (400, {"error": {"code": "model_not_found"}}, Terminal, "does not serve the model"),
        (400, {"error": {"message": "a note says: model not found"}}, Permanent, "refused the text"),
        (400, {"error": {"message": "embed-1 has a maximum of 8192 tokens; invalid"}}, TooLarge, "refused the text"),
        (400, {"error": {"code": "credit_balance_exhausted"}}, Terminal, "no credit left"),
        (403, {"error": {"code": "billing_not_active"}}, Terminal, "no credit left"),
        (429, {"error": {"type": "quota_exceeded"}}, Terminal, "no credit left"),
        (402, None, Terminal, "no credit left"),
        (429, {"error": {"code": "rate_limit_exceeded"}}, Throttled, "slow down"),
        (529, None, Throttled, "HTTP 529"),
        (500, {"error": {"type": "overloaded_error"}}, Throttled, "slow down"),
        (500, None, Transient, "passing failure"),
        (400, "plain words", Permanent, "plain words"),
        (431, "headers too large", Permanent, "HTTP 431"),
        (301, "", Terminal, "sends requests elsewhere"),
        (400, ["odd", 1], Permanent, "odd"),
    ],
)
def test_refusals_mean_what_their_provider_means(status: int, body: Any, error: type[Exception], words: str) -> None:
    found = read(status, body)
    assert type(found) is error
    assert words in str(found)
