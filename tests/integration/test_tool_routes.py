"""The tools by plain HTTP, and through both clients, on a real index."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from recalld.client import AsyncClient, Client
from schemas.settings import Settings
from tests.mcp_clients import calling, over_http, refusal

GROUP = "agent:main:telegram:group:7"


def call(service: httpx.Client, name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    response = service.post("/v1/tools", json={"name": name, "arguments": arguments, **more})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def mcp(service: httpx.Client) -> str:
    return str(service.base_url).rstrip("/") + "/mcp"


def test_what_a_model_did_wrong_is_an_answer_in_the_words_of_the_other_door(service: httpx.Client):
    wrong = calling("memory_search", query="x", limit=5)
    assert call(service, "memory_search", {"query": "x", "limit": 5}) == {
        "error": refusal(over_http(mcp(service), wrong))
    }
    for name, arguments, sentence in (
        ("memory_search", "{", "memory_search: the arguments are not valid JSON"),
        ("memory_search", "[" * 100_000, "memory_search: the arguments are not valid JSON"),
        ("memory_search", "9" * 10_000, "memory_search: the arguments are not valid JSON"),
        ("memory_search", "[]", "memory_search: the arguments must be a JSON object"),
        ("memory_search", "null", "memory_search: the arguments must be a JSON object"),
        ("memory_search", "", "memory_search: query is missing"),
        ("memory_write", "{}", "unknown tool memory_write; valid are memory_search, memory_get"),
        ("", "{}", "unknown tool"),
        ("../status", "{}", "unknown tool"),
    ):
        assert call(service, name, arguments)["error"].startswith(sentence), (name, arguments[:20])


def test_a_models_slips_cost_no_turn_and_the_api_stays_strict(service: httpx.Client) -> None:
    for slip, line in (({"startLine": 3}, 3), ({"from": 0}, 1), ({"from": 2.7}, 2)):
        arguments = {"path": "memory/friday.md", "lines": 1.5, **slip}
        [by_mcp] = over_http(mcp(service), calling("memory_get", **arguments)).content
        for answer in (call(service, "memory_get", arguments), json.loads(by_mcp.text)):
            assert (answer["from"], answer["lines"]) == (line, 1)
    many = {"query": "dentist appointment", "maxResults": 200}
    assert call(service, "memory_search", many)["results"]
    assert not over_http(mcp(service), calling("memory_search", **many)).is_error
    for path, body in (("search", many), ("get", {"path": "memory/friday.md", "from": 2.7})):
        assert service.post(f"/v1/{path}", json=body).status_code in {400, 422}, path


def test_both_clients_ask_the_real_service(service: httpx.Client, settings: Settings):
    with Client(url=str(service.base_url), session_key=GROUP) as client:
        hit = client.search("dentist appointment", max_results=1)["results"][0]
        lines = client.get(hit["path"], start_line=3, lines=1)
        assert ("dentist" in lines["text"], lines["lines"], lines["nextFrom"]) == (True, 1, 4)
        assert client.get("MEMORY.md")["text"] == ""
        assert client.status()["agents"][0]["index"]["sourceCounts"] == [
            {"source": "memory", "files": 3, "chunks": 3},
            {"source": "sessions", "files": 0, "chunks": 0},
        ]
        assert client.search("dentist appointment", corpus="wiki")["corpora"][0]["outcome"] == "not-registered"
        assert client.get("memory/friday.md", corpus="wiki")["status"] == "not_found"
        [first, *_] = client.search("", queries=["insurance card", "card"])["results"]
        assert "保险卡" in first["snippet"]
        nothing = client.search("dentist appointment", sources=["sessions"], corpus="memory")
        assert (nothing["results"], "warning" in nothing) == ([], True)
        assert "保险卡" in client.call_tool("memory_search", '{"query": "insurance card"}')
        assert "unknown tool" in client.call_tool("memory_\ud83d", "{}")
        said = json.loads(client.call_tool("memory_search", json.dumps({"query": "x" * 2_000_000})))
        assert "larger than" in said["error"]

    async def run() -> None:
        client = AsyncClient.at_home(settings.home)
        assert client is not None
        async with client:
            answers = await asyncio.gather(*(client.search("dentist appointment") for _ in range(20)))
            assert {answer["results"][0]["path"] for answer in answers} == {"memory/friday.md"}
            assert (await client.get("MEMORY.md"))["text"]
            assert (await client.search("dentist appointment", corpus="sessions"))["results"] == []
            assert (await client.get("memory/friday.md", corpus="all"))["status"] == "ok"
            assert (await client.status(deep=True))["agents"][0]["integrity"] == []
            read = json.loads(await client.call_tool("memory_get", '{"path": "memory/friday.md", "lines": 1}'))
            assert read["text"] == "# Friday"

    asyncio.run(run())
