"""Connections of both clients, against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path

import pytest

from recalld.client import (
    AccessRefused,
    AsyncClient,
    RequestRefused,
    ServiceFailed,
    ServiceTimedOut,
    ServiceUnavailable,
)
from tests.client_talk import KINDS, Talk
from tests.raw_server import DROP, HANG, REFUSE_EARLY, Turn, answer, raw_server
from tests.waiting import wait_until

OK = answer(b'{"results": []}')


@pytest.fixture(params=KINDS)
def talk(request: pytest.FixtureRequest) -> Talk:
    return KINDS[request.param]


def test_every_call_has_a_connection_of_its_own_which_it_closes(talk: Talk):
    with raw_server([OK], [OK]) as server:
        assert talk(server.url, "a", "b") == [{"results": []}] * 2
        wait_until(lambda: server.closed == 2)
    assert [len(requests) for requests in server.connections] == [1, 1]


@pytest.mark.parametrize("half", [DROP, OK[:-4]])
def test_a_connection_that_ends_before_the_answer_is_no_reason_to_ask_again(talk: Talk, half: Turn):
    with raw_server([half], [OK]) as server, pytest.raises(ServiceUnavailable, match="closed without an answer"):
        talk(server.url, "a")
    assert len(server.connections) == 1


def test_a_service_that_does_not_answer_is_given_up_and_its_connection_closed(talk: Talk):
    with raw_server([HANG], [OK]) as server:
        with pytest.raises(ServiceTimedOut, match=r"timed out: no answer within 0\.1 seconds"):
            talk(server.url, "a", answer_timeout_seconds=0.1)
        assert server.gone.wait(60)
    assert len(server.requests) == 1


def test_the_time_is_for_the_whole_answer(talk: Talk):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"
    for trickling in ([OK[:5], *[b"x"] * 500], [b"HTTP/1.1 200 OK\r\n", *[b"A: b\r\n"] * 90], [head, *[b" "] * 500]):
        with raw_server([trickling]) as server, pytest.raises(ServiceTimedOut):
            talk(server.url, "a", answer_timeout_seconds=0.2)


def test_a_refusal_that_comes_before_the_request_was_taken_is_read(talk: Talk):
    with raw_server([REFUSE_EARLY]) as server, pytest.raises(RequestRefused, match="too large") as raised:
        talk(server.url, "x" * 8_000_000)
    assert raised.value.status == 413


def test_what_is_not_recalld_is_said_to_be_something_else(talk: Talk):
    for body in (b"<html>", b"[]", b"[" * 100_000, b"{}", b'{"results": {}}', b'{"agents": []}', b"null"):
        with raw_server([answer(body)]) as server, pytest.raises(ServiceUnavailable, match="is not a recalld service"):
            talk(server.url, "a")
    with raw_server([b"SSH-2.0-OpenSSH_9\r\n"]) as server, pytest.raises(ServiceUnavailable, match="is not a recalld"):
        talk(server.url, "a")


@pytest.mark.parametrize(
    ("status", "body", "kind", "sentence"),
    [
        (401, {"error": "a token, please"}, AccessRefused, "a token, please"),
        (403, {"error": "Forbidden"}, AccessRefused, "Forbidden"),
        (404, {"detail": "Not Found"}, RequestRefused, "the service answered with status 404"),
        (400, "<html>", RequestRefused, "the service answered with status 400"),
        (503, {"error": "busy"}, ServiceFailed, "busy"),
    ],
)
def test_a_refusal_has_its_class_and_the_services_sentence(
    talk: Talk, status: int, body: object, kind: type[RequestRefused], sentence: str
):
    said = answer(json.dumps(body).encode(), status=f"{status} No")
    with raw_server([said]) as server, pytest.raises(RequestRefused) as raised:
        talk(server.url, "a")
    assert (type(raised.value), str(raised.value), raised.value.status) == (kind, sentence, status)


def test_a_redirect_is_not_followed_but_shown(talk: Talk):
    moved = answer(b"", "Location: https://memory.example.com/", status="308 Moved")
    with (
        raw_server([moved]) as server,
        pytest.raises(RequestRefused, match=r"redirects to https://memory\.example\.com/"),
    ):
        talk(server.url, "a", token="secret")


def test_a_service_behind_a_path_is_asked_there(talk: Talk):
    with raw_server([OK]) as server:
        talk(server.url + "/team/memory/", "a")
    assert server.requests[0].startswith(b"POST /team/memory/v1/search HTTP/1.1\r\n")


def test_a_trusted_certificate_is_enough(talk: Talk, certificate: Path, tls: ssl.SSLContext):
    trusting = ssl.create_default_context(cafile=str(certificate))
    with raw_server([OK], tls=tls) as server:
        assert talk(server.url, "a", ssl_context=trusting) == [{"results": []}]


def test_an_unknown_certificate_is_refused_before_anything_is_sent(talk: Talk, tls: ssl.SSLContext):
    said = r"certificate of 127\.0\.0\.1:\d+ is not trusted .* ssl_context="
    with raw_server([OK], tls=tls) as server, pytest.raises(ServiceUnavailable, match=said):
        talk(server.url, "a", token="secret")
    assert server.requests == []


def test_a_handshake_that_never_ends_is_given_up(talk: Talk):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match="no recalld service answers"):
            talk(url, "a", connect_timeout_seconds=0.1)


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


def test_a_call_that_is_cancelled_during_the_tls_handshake_ends():
    async def run(url: str) -> None:
        async with AsyncClient(url=url, connect_timeout_seconds=600) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.search("a"), 0.1)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(run(f"https://127.0.0.1:{silent.getsockname()[1]}"))  # waits for its threads
