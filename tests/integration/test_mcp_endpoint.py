"""The Model Context Protocol over streamable HTTP, on real indexes, with the official client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from schemas.settings import Settings
from tests.mcp_clients import ERAS, calling, found, over_http, tools, without_sdk
from tests.serving import running

GROUP, SESSION_KEY = "agent:main:telegram:group:7", "X-Recalld-Session-Key"


def door(service: httpx.Client, agent: str | None = None) -> str:
    return str(service.base_url).rstrip("/") + "/mcp" + (f"/{agent}" if agent else "")


def post(
    service: httpx.Client, path: str, *, method: str = "tools/list", headers: dict[str, str] | None = None, **more: Any
) -> httpx.Response:
    """One bare request."""
    return service.post(
        path,
        json={"jsonrpc": "2.0", "id": 1, "method": method, "params": more},
        headers={"accept": "application/json, text/event-stream", **(headers or {})},
    )


@pytest.mark.parametrize("era", ERAS)
def test_both_tools_are_listed_and_called(service: httpx.Client, era: str):
    listed = over_http(door(service), tools, era=era)
    assert [tool.name for tool in listed] == ["memory_search", "memory_get"]
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)

    answer = found(
        over_http(door(service), calling("memory_search", query="dentist appointment", maxResults=1), era=era)
    )
    [hit] = answer["results"]
    assert (hit["path"], hit["startLine"], hit["endLine"]) == ("memory/friday.md", 1, 4)
    assert hit["snippet"].endswith("memory/friday.md#L1-L4")
    assert answer["mode"] == "hybrid"

    lines = found(
        over_http(door(service, "main"), calling("memory_get", path="memory/friday.md", from_=3, lines=1), era=era)
    )
    assert (lines["text"], lines["nextFrom"]) == ("The dentist appointment moved to nine.", 4)


def test_there_is_no_stream_and_no_session(service: httpx.Client):
    accept = {"accept": "text/event-stream"}
    assert service.get("/mcp", headers=accept).status_code == 405
    assert service.delete("/mcp", headers={"mcp-session-id": "x"}).status_code == 405
    assert "mcp-session-id" not in post(service, "/mcp").headers


@pytest.mark.parametrize("id", [None, {}, [1], True, 1.5])
def test_a_request_whose_id_is_neither_text_nor_number_gets_an_error(service: httpx.Client, id: object):  # noqa: A002
    headers = {"accept": "application/json, text/event-stream"}
    answer = service.post("/mcp", json={"jsonrpc": "2.0", "id": id, "method": "tools/list"}, headers=headers)
    assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (400, None, -32600)
    told = service.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    assert (told.status_code, told.content) == (202, b"")


def test_a_call_shows_no_more_than_the_session_of_its_connection_sees(service: httpx.Client):
    call = calling("memory_search", meta={"recalld/sessionKey": "agent:main:main"}, query="build server Basalt")
    answers = [found(over_http(door(service), call, headers=headers)) for headers in ({}, {SESSION_KEY: GROUP})]
    assert ["MEMORY.md" in str(answer["results"]) for answer in answers] == [True, False]


def test_an_empty_session_key_is_not_the_owners(service: httpx.Client):
    for headers in ([(SESSION_KEY, "")], [(SESSION_KEY, "a"), (SESSION_KEY, "b")]):
        accept = [("accept", "application/json, text/event-stream")]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = service.post("/mcp", json=body, headers=[*accept, *headers])
        assert answer.status_code == 400
        assert SESSION_KEY in answer.json()["error"]


def test_without_the_sdk_the_service_runs_and_says_what_is_missing(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    without_sdk(monkeypatch)
    with running(settings) as service:
        answer = post(service, "/mcp")
        assert (answer.status_code, "recalld[mcp]" in answer.json()["error"]) == (501, True)
        assert service.get("/healthz").status_code == 200
