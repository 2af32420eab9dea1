"""Pauses that providers ask for, in every form."""

from __future__ import annotations

import email.utils
import time
from typing import Any

import pytest

from memory.embedding.providers.endpoint import LONGEST_WAIT_SECONDS, retry_after

GOOGLE = [
    {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota. Please retry in 58.9s.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}],
        }
    }
]


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after": "7"}, None, 7),
        ({"retry-after": "0.5"}, None, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, None, 0.25),
        ({"retry-after": "soon"}, "Please try again in 20ms.", 0.02),
        ({}, GOOGLE, 34),
        ({}, {"error": {"message": "Rate limit reached. Please try again in 12.5s. Visit"}}, 12.5),
        ({}, {"error": {"message": "Please try again in 1m30s."}}, 90),
        ({}, {"error": {"message": "Please try again in 1h2m3s."}}, 3600),
        ({}, {"detail": "Please retry after 2 minutes and be patient"}, 120),
        ({}, {"message": "Requests have exceeded the limit. Please retry after 26 seconds."}, 26),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "8.64s"}, None, 8.64),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, None, 360),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, None, 9),
        ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "8s"}, None, None),
        ({"retry-after": "999999"}, None, LONGEST_WAIT_SECONDS),
        ({"retry-after": "1_0"}, None, None),
        ({"retry-after": "0"}, None, None),
        ({"retry-after": "-5"}, None, None),
        ({"retry-after": "nan"}, None, None),
        ({"retry-after": "inf"}, None, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None, None),
        ({"retry-after": "Wed, 99 Oct 99999 07:28:00 GMT"}, None, None),
        ({}, {"error": {"message": "try again in a few minutes"}}, None),
        ({}, "try again in 5 sessions", None),
        ({}, None, None),
    ],
)
def test_the_time_to_wait_is_found(headers: dict[str, str], body: Any, seconds: float | None) -> None:
    assert retry_after(headers, body) == (seconds if seconds is None else pytest.approx(seconds))


def test_dates_and_moments_are_counted_from_now() -> None:
    date = email.utils.formatdate(time.time() + 100, usegmt=True)
    moment = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(time.time() + 100)}
    milliseconds = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int((time.time() + 100) * 1000))}
    for headers in ({"retry-after": date}, moment, milliseconds):
        assert 98 < (retry_after(headers, None) or 0) < 101
