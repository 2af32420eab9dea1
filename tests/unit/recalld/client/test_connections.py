"""Connections of both clients, against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from recalld.client import (
    AccessRefused,
    AsyncClient,
    ClientError,
    RequestRefused,
    ServiceFailed,
    ServiceTimedOut,
    ServiceUnavailable,
)
from tests.client_talk import KINDS, Talk
from tests.raw_server import DROP, HANG, REFUSE_EARLY, Turn, answer, raw_server

OK = answer(b'{"results": []}')


@pytest.fixture(params=KINDS)
def talk(request: pytest.FixtureRequest) -> Talk:
    return KINDS[request.param]


HEAD = b"HTTP/1.1 200 OK\r\n"
NOT_OURS = (b"<html>", b"[]", b"[" * 100_000, b"{}", b'{"results": {}}', b'{"agents": []}', b"null")


def refusal(status: str, body: object, *headers: str) -> Turn:
    return answer(json.dumps(body).encode(), *headers, status=status)


@pytest.mark.parametrize(
    ("turn", "error", "sentence"),
    [
        *((half, ServiceUnavailable, "closed without an answer") for half in (DROP, OK[:-4])),
        (HANG, ServiceTimedOut, "timed out: no answer within 1 seconds"),
        # The time is for the whole answer.
        ([OK[:5], *[b"x"] * 500], ServiceTimedOut, "timed out"),
        ([HEAD, *[b"A: b\r\n"] * 90], ServiceTimedOut, "timed out"),
        ([HEAD, b"Content-Length: 999\r\n\r\n", *[b" "] * 500], ServiceTimedOut, "timed out"),
        *((answer(body), ServiceUnavailable, "is not a recalld service") for body in NOT_OURS),
        (b"SSH-2.0-OpenSSH_9\r\n", ServiceUnavailable, "is not a recalld"),
        (refusal("401 No", {"error": "a token, please"}), AccessRefused, "a token, please"),
        (refusal("403 No", {"error": "Forbidden"}), AccessRefused, "Forbidden"),
        (refusal("404 No", {"detail": "Not Found"}), RequestRefused, "the service answered with status 404"),
        (refusal("400 No", "<html>"), RequestRefused, "the service answered with status 400"),
        (refusal("503 No", {"error": "busy"}), ServiceFailed, "busy"),
        (refusal("308 Moved", "", "Location: https://a.example/"), RequestRefused, "redirects to https://a.example/"),
    ],
)
def test_a_service_that_misbehaves_is_asked_once_and_is_one_sentence(
    talk: Talk, turn: Turn, error: type[ClientError], sentence: str
):
    # A busy machine may take more than a second for any answer.
    seconds = 1 if error is ServiceTimedOut else 60
    with raw_server([turn], [OK]) as server, pytest.raises(error) as raised:
        talk(server.url, "a", answer_timeout_seconds=seconds, token="secret")
    assert type(raised.value) is error
    assert sentence in str(raised.value)
    assert len(server.connections) == 1


def test_a_refusal_that_comes_before_the_request_was_taken_is_read(talk: Talk):
    with raw_server([REFUSE_EARLY]) as server, pytest.raises(RequestRefused, match="too large") as raised:
        talk(server.url, "x" * 8_000_000)
    assert raised.value.status == 413


def test_a_trusted_certificate_is_enough(talk: Talk, certificate: Path, tls: ssl.SSLContext):
    trusting = ssl.create_default_context(cafile=str(certificate))
    with raw_server([OK], tls=tls) as server:
        assert talk(server.url, "a", ssl_context=trusting) == [{"results": []}]


def test_an_unknown_certificate_is_refused_before_anything_is_sent(talk: Talk, tls: ssl.SSLContext):
    said = r"certificate of 127\.0\.0\.1:\d+ is not trusted .* ssl_context="
    with raw_server([OK], tls=tls) as server, pytest.raises(ServiceUnavailable, match=said):
        talk(server.url, "a", token="secret")
    assert server.requests == []


def test_cancelling_a_call_closes_its_connection():
    async def run(url: str) -> None:
        async with AsyncClient(url=url) as client:
            call = asyncio.create_task(client.search("a"))
            while not server.requests:
                await asyncio.sleep(0.005)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await client.search("b") == {"results": []}

    with raw_server([HANG], [OK]) as server:
        asyncio.run(run(server.url))
        assert server.gone.wait(60)
    assert [len(requests) for requests in server.connections] == [1, 1]
