"""Address, agent and session of a client, and the requests that it sends."""

from __future__ import annotations

import json
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


def sent(*calls: Any, **settings: Any) -> list[dict[str, Any]]:
    """The bodies of these calls."""
    with raw_server(*[[OK]] * len(calls)) as server, Client(url=server.url, **settings) as client:
        for call in calls:
            call(client)
    return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]


def test_a_call_sends_what_was_given_and_nothing_else() -> None:
    assert sent(
        lambda client: client.search("水 in the cellar", max_results=3, sources=["memory"]),
        lambda client: client.search("x", agent="a", min_score=0.0, session_key="k", wait_ms=10),
        lambda client: client.get("memory/a b.md", start_line=3, lines=4),
    ) == [
        {"query": "水 in the cellar", "maxResults": 3, "sources": ["memory"]},
        {"query": "x", "agent": "a", "minScore": 0.0, "sessionKey": "k", "waitMs": 10},
        {"path": "memory/a b.md", "from": 3, "lines": 4},
    ]


def test_the_clients_session_and_agent_go_along_unless_a_call_names_others() -> None:
    calls = [
        lambda client: client.search("q"),
        lambda client: client.get("p"),
        lambda client: client.call_tool("memory_search", "{}"),
    ]
    for body in sent(*calls, session_key="agent:a:main", agent="a"):
        assert (body["sessionKey"], body["agent"]) == ("agent:a:main", "a")
    others = [
        lambda client: client.search("q", session_key="agent:b:微信:group:7", agent="b"),
        lambda client: client.get("p", session_key="agent:b:微信:group:7", agent="b"),
        lambda client: client.call_tool("memory_search", "{}", session_key="agent:b:微信:group:7", agent="b"),
    ]
    for body in sent(*others, session_key="agent:a:main", agent="a"):
        assert (body["sessionKey"], body["agent"]) == ("agent:b:微信:group:7", "b")
    for body in sent(*calls):
        assert body.keys().isdisjoint({"sessionKey", "agent"})


def test_each_call_has_its_address_and_status_its_agent() -> None:
    with raw_server(*[[OK]] * 5) as server, Client(url=server.url, agent="a", token="secret") as client:
        client.status()
        client.status(agent="x&y", deep=True)
        client.get("p")
        client.search("q")
        client.call_tool("memory_search", "{}")
    assert [request.split(b" HTTP/1.1\r\n")[0] for request in server.requests] == [
        b"GET /v1/status?agent=a",
        b"GET /v1/status?agent=x%26y&deep=true",
        b"POST /v1/get",
        b"POST /v1/search",
        b"POST /v1/tools",
    ]
    assert all(b"\r\nAuthorization: Bearer secret\r\n" in request for request in server.requests)


def test_an_empty_session_key_of_a_call_is_not_taken_for_the_owner() -> None:
    client = Client(session_key="agent:a:telegram:group:1")
    for call in (client.search, client.get, lambda key, **more: client.call_tool("memory_search", key, **more)):
        with pytest.raises(InvalidSettings, match="session key"):
            call("x", session_key="")
