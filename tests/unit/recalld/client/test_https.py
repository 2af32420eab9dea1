"""Asking over https, against a server that signed its certificate itself."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from recalld.client import ServiceUnavailable
from tests.client_talk import KINDS, Talk
from tests.raw_server import answer, raw_server

OK = answer(b'{"results": []}')


@pytest.fixture(params=KINDS)
def talk(request: pytest.FixtureRequest) -> Talk:
    return KINDS[request.param]


def test_a_trusted_certificate_is_enough_and_its_connection_is_used_again(
    talk: Talk, certificate: Path, tls: ssl.SSLContext
):
    trusting = ssl.create_default_context(cafile=str(certificate))
    with raw_server([OK, OK], tls=tls) as server:
        assert talk(server.url, "a", "b", ssl_context=trusting) == [{"results": []}] * 2
    assert len(server.connections) == 1


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
