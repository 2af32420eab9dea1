"""Address, agent and session of a client, and the requests that it sends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from recalld.client import AsyncClient, Client, ClientError, InvalidSettings
from tests.raw_server import answer, raw_server

OK = answer(b'{"results": [], "text": "", "agents": []}')


@pytest.mark.parametrize(
    ("url", "host", "port", "shown"),
    [
        (None, "127.0.0.1", 7373, "http://127.0.0.1:7373"),
        ("http://localhost/", "localhost", 80, "http://localhost:80"),
        ("https://memory.example.com", "memory.example.com", 443, "https://memory.example.com:443"),
        ("https://memory.example.com/team/a/", "memory.example.com", 443, "https://memory.example.com:443/team/a"),
        ("http://[::1]:7400", "::1", 7400, "http://[::1]:7400"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_service_is_named_by_its_url(
    kind: type[Client | AsyncClient], url: str | None, host: str, port: int, shown: str
) -> None:
    client = kind(url=url)
    assert (client.host, client.port, client.address.url) == (host, port, shown)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:7373",
        "ftp://host",
        "http://host:port",
        "http://host:99999",
        "http://host/?a=b",
        "http://host/\r\nX: y",
        "http://höst/",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"must look like http://127\.0\.0\.1:7373"):
        Client(url=url)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://somebody:s3cret@host"},
        {"token": "s3cret\r\nX-Other: 1"},
        {"token": "s3cret水"},
    ],
)
def test_a_secret_that_cannot_be_sent_is_refused_and_not_shown(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings) as raised:
        Client(**settings)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://a", "host": "b"},
        {"url": "http://a", "port": 1},
        {"host": "a b"},
        {"token": ""},
        {"session_key": " "},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Client(**settings)
    with pytest.raises(ClientError):
        AsyncClient(**settings)


OF_A = {"agent": "a", "session_key": "agent:a:main", "token": "secret"}
AN_A, A_B = {"agent": "a", "sessionKey": "agent:a:main"}, {"agent": "b", "sessionKey": "agent:b:微信:group:7"}
B = {"agent": "b", "session_key": "agent:b:微信:group:7"}


@pytest.mark.parametrize(
    ("settings", "call", "line", "body"),
    [
        ({}, lambda one: one.search("水", max_results=3), "POST /v1/search", {"query": "水", "maxResults": 3}),
        ({}, lambda one: one.search("q", sources=["memory"]), "POST /v1/search", {"query": "q", "sources": ["memory"]}),
        ({}, lambda one: one.search("q", wait_ms=1), "POST /v1/search", {"query": "q", "waitMs": 1}),
        (
            {},
            lambda one: one.search("q", since="7d", until="today", timezone="UTC"),
            "POST /v1/search",
            {"query": "q", "since": "7d", "until": "today", "timezone": "UTC"},
        ),
        ({}, lambda one: one.search("q", min_score=0.0), "POST /v1/search", {"query": "q", "minScore": 0.0}),
        ({}, lambda one: one.get("a b", start_line=3, lines=4), "POST /v1/get", {"path": "a b", "from": 3, "lines": 4}),
        ({}, lambda one: one.status(agent="x&y", deep=True), "GET /v1/status?agent=x%26y&deep=true", None),
        (OF_A, lambda one: one.status(), "GET /v1/status?agent=a", None),
        (OF_A, lambda one: one.search("q"), "POST /v1/search", {"query": "q", **AN_A}),
        (OF_A, lambda one: one.search("q", **B), "POST /v1/search", {"query": "q", **A_B}),
        (OF_A, lambda one: one.get("p"), "POST /v1/get", {"path": "p", **AN_A}),
        (OF_A, lambda one: one.get("p", **B), "POST /v1/get", {"path": "p", **A_B}),
        (OF_A, lambda one: one.call_tool("t", "{}"), "POST /v1/tools", {"name": "t", "arguments": "{}", **AN_A}),
        (
            OF_A,
            lambda one: one.call_tool("t", "{}", **B),
            "POST /v1/tools",
            {"name": "t", "arguments": "{}", **A_B},
        ),
    ],
)
def test_a_call_sends_what_was_given_to_it_else_to_its_client_and_nothing_else(
    settings: dict[str, str], call: Callable[[Client], object], line: str, body: dict[str, object] | None
) -> None:
    with raw_server([OK]) as server, Client(url=server.url, **settings) as client:
        call(client)
    [request] = server.requests
    assert request.startswith(f"{line} HTTP/1.1\r\n".encode())
    assert (b"\r\nAuthorization: Bearer secret\r\n" in request) == ("token" in settings)
    sent = request.partition(b"\r\n\r\n")[2]
    assert (json.loads(sent) if sent else None) == body
