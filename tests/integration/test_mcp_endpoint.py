"""The Model Context Protocol over streamable HTTP, on real indexes, with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.settings import Settings
from tests.mcp_clients import ERAS, calling, found, over_http, protocol_error, refusal, tools, without_sdk
from tests.serving import running, search
from tests.waiting import wait_until
from tests.written_index import write_index

NOTE = "# Friday\n\nThe dentist appointment moved to nine.\nBring the insurance card.\n"
GROUP = "agent:main:telegram:group:7"


@pytest.fixture
def service(settings: Settings, workspace: Path) -> Iterator[httpx.Client]:
    (workspace / "MEMORY.md").write_text("The build server is called Basalt.\n", "utf-8")
    (workspace / "memory" / "friday.md").write_text(NOTE, "utf-8")
    write_index(settings)
    with running(settings) as client:
        wait_until(lambda: search(client, "warm")["mode"] == "hybrid")
        yield client


def token(settings: Settings, agent: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {(settings.home / 'run' / 'tokens' / agent).read_text().strip()}"}


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
    assert hit["snippet"].endswith("Source: memory/friday.md#L1-L4")
    assert answer["mode"] == "hybrid"

    lines = found(
        over_http(door(service, "main"), calling("memory_get", path="memory/friday.md", from_=3, lines=1), era=era)
    )
    assert (lines["text"], lines["nextFrom"]) == ("The dentist appointment moved to nine.", 4)


@pytest.mark.parametrize("era", ERAS)
def test_arguments_are_refused_by_name(service: httpx.Client, era: str):
    unknown = over_http(door(service), calling("memory_search", query="x", agent="main", limit=5), era=era)
    assert refusal(unknown) == (
        "memory_search: unknown argument agent, limit; valid are query, maxResults, minScore, corpus"
    )
    session = over_http(door(service), calling("memory_get", path="MEMORY.md", sessionKey="x"), era=era)
    assert refusal(session) == "memory_get: unknown argument sessionKey; valid are path, from, lines, corpus"
    assert "maxResults" in refusal(over_http(door(service), calling("memory_search", query="x", maxResults=0), era=era))
    assert "query" in refusal(over_http(door(service), calling("memory_search"), era=era))


def test_searches_and_reads_are_counted_like_those_of_other_doors(service: httpx.Client):
    def counted(line: str) -> float:
        return sum(float(row.split()[-1]) for row in service.get("/metrics").text.splitlines() if row.startswith(line))

    before = counted('recalld_searches_total{outcome="found"}'), counted('recalld_reads_total{outcome="ok"}')
    over_http(door(service), calling("memory_search", query="dentist appointment"))
    over_http(door(service), calling("memory_get", path="memory/friday.md"))
    after = counted('recalld_searches_total{outcome="found"}'), counted('recalld_reads_total{outcome="ok"}')
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)


def test_memory_that_is_switched_off_is_an_answer(settings: Settings):
    agent = settings.agents[0].model_copy(update={"enabled": False})
    with running(settings.model_copy(update={"agents": (agent,)})) as service:
        answer = found(over_http(door(service), calling("memory_search", query="dentist")))
        read = found(over_http(door(service), calling("memory_get", path="MEMORY.md")))
    assert (answer["results"], answer["disabled"], answer["unavailable"]) == ([], True, True)
    assert "switched off" in answer["error"]
    assert answer["action"]
    assert (read["path"], read["text"], read["disabled"]) == ("MEMORY.md", "", True)


def test_no_path_leads_out_of_the_memory(service: httpx.Client, tmp_path: Path):
    (tmp_path / "secret.md").write_text("the secret", "utf-8")
    for path in ("../secret.md", str(tmp_path / "secret.md"), "/proc/self/environ"):
        answer = found(over_http(door(service), calling("memory_get", path=path)))
        assert answer["text"] == "", path
        assert answer["error"], path


def test_a_rebound_name_and_another_origin_are_refused(service: httpx.Client):
    assert post(service, "/mcp").status_code == 200
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}):
        assert post(service, "/mcp", headers=headers).status_code == 403, headers
        assert post(service, "/mcp/main", headers=headers).status_code == 403, headers


def test_there_is_no_stream_and_no_session(service: httpx.Client):
    accept = {"accept": "text/event-stream"}
    assert service.get("/mcp", headers=accept).status_code == 405
    assert service.delete("/mcp", headers={"mcp-session-id": "x"}).status_code == 405
    assert "mcp-session-id" not in post(service, "/mcp").headers


def test_garbage_is_refused_and_nothing_breaks(service: httpx.Client):
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    for body in (b"", b"{", b"[]", b"null", b'{"jsonrpc":"2.0","id":1}', b"\xff", b"[" * 5000):
        answer = service.post("/mcp", content=body, headers=headers)
        assert 400 <= answer.status_code < 500, body[:40]
    assert service.post("/mcp", content=b" " * 1_100_000, headers=headers).status_code == 413
    for arguments in ([], "x", 7):
        answer = post(service, "/mcp", method="tools/call", name="memory_search", arguments=arguments)
        assert "error" in answer.json()
    assert post(service, "/mcp").status_code == 200


@pytest.mark.parametrize("number", [None, 1.5, True, [1]])
def test_a_request_without_a_valid_id_is_an_error(service: httpx.Client, number: object):
    headers = {"accept": "application/json, text/event-stream"}
    answer = service.post("/mcp", json={"jsonrpc": "2.0", "id": number, "method": "tools/list"}, headers=headers)
    assert answer.status_code == 400
    assert (answer.json()["id"], answer.json()["error"]["code"]) == (None, -32600)
    told = service.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    assert told.status_code == 202


def test_an_agent_that_is_not_there_is_refused(service: httpx.Client):
    answer = post(service, "/mcp/nobody")
    assert (answer.status_code, answer.json()) == (404, {"error": "no agent is called 'nobody' (known: main)"})


def test_no_door_crosses_agents(two_agents: Settings):
    with running(two_agents) as service:
        ada = token(two_agents, "ada")
        for path in ("/mcp", "/mcp/ada", "/mcp/bob", "/mcp/nobody"):
            missing = post(service, path)
            assert (missing.status_code, missing.headers["www-authenticate"]) == (401, "Bearer"), path
            assert post(service, path, headers={"Authorization": "Bearer wrong"}).status_code == 401, path
        for path in ("/mcp/bob", "/mcp/nobody", "/mcp/%62ob"):
            foreign = post(service, path, headers=ada)
            assert (foreign.status_code, foreign.json()) == (
                403,
                {"error": "this token does not open the memory of that agent"},
            ), path
        with protocol_error("error response"):
            over_http(door(service, "bob"), tools, headers=ada)

        bobs = str(two_agents.agents[1].workspace / "memory" / "note.md")
        for address in (door(service), door(service, "ada")):
            for era in ERAS:
                own = found(over_http(address, calling("memory_search", query="password card"), era=era, headers=ada))
                assert [hit["path"] for hit in own["results"]] == ["memory/note.md"]
                assert "ada" in own["results"][0]["snippet"]
                assert "bob" not in json.dumps(own)
                read = found(over_http(address, calling("memory_get", path=bobs), era=era, headers=ada))
                assert read["text"] == ""
                named = over_http(address, calling("memory_search", query="x", agent="bob"), era=era, headers=ada)
                assert "unknown argument agent" in refusal(named)
        # The same tools by plain HTTP: the token decides there, too, and nothing that a model says.
        call = {"name": "memory_search", "arguments": {"query": "password card"}}
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert service.post("/v1/tools", json=call, headers=headers).status_code == 401
        for agent in ("bob", "nobody"):
            assert service.post("/v1/tools", json={**call, "agent": agent}, headers=ada).status_code == 403, agent
        for asked in ({}, {"agent": "ada"}, {"sessionKey": "agent:bob:main"}):
            said = service.post("/v1/tools", json={**call, **asked}, headers=ada).text
            assert ("password of ada" in said) is ("sessionKey" not in asked), asked
            assert "bob" not in said
        call["arguments"] = {"query": "password card", "agent": "bob"}
        assert "unknown argument agent" in service.post("/v1/tools", json=call, headers=ada).json()["error"]
        call = {"name": "memory_get", "arguments": {"path": bobs}}
        assert service.post("/v1/tools", json=call, headers=ada).json()["text"] == ""
        # A key that names another agent opens nothing of that agent's.
        keyed = {**ada, "X-Recalld-Session-Key": "agent:bob:main"}
        assert "bob" not in json.dumps(
            found(over_http(door(service), calling("memory_search", query="password card"), headers=keyed))
        )


def test_agents_that_ask_at_the_same_time_get_their_own(two_agents: Settings):
    with running(two_agents) as service, ThreadPoolExecutor(8) as threads:

        def ask(turn: int) -> bool:
            agent = ("ada", "bob")[turn % 2]
            result = over_http(
                door(service, agent if turn % 3 else None),
                calling("memory_search", query="password card"),
                era=ERAS[turn // 2 % 2],
                headers=token(two_agents, agent),
            )
            [hit] = found(result)["results"]
            return f"password of {agent} " in hit["snippet"]

        assert all(threads.map(ask, range(40)))


def test_a_trusted_loopback_names_the_agent_in_the_address(two_agents: Settings):
    trusting = two_agents.model_copy(update={"auth": two_agents.auth.model_copy(update={"trust_loopback": True})})
    with running(trusting) as service:
        answer = found(over_http(door(service, "bob"), calling("memory_search", query="password")))
        assert "bob" in answer["results"][0]["snippet"]
        unnamed = post(service, "/mcp")
        assert (unnamed.status_code, unnamed.json()) == (400, {"error": "say which agent: ada, bob"})


@pytest.mark.parametrize("era", ERAS)
def test_the_session_key_of_the_connection_decides_what_is_seen(service: httpx.Client, era: str):
    def paths(headers: dict[str, str] | None = None, meta: Any = None) -> set[str]:
        call = calling("memory_search", meta=meta, query="build server Basalt", minScore=0)
        return {hit["path"] for hit in found(over_http(door(service), call, era=era, headers=headers))["results"]}

    group = {"X-Recalld-Session-Key": GROUP}
    assert "MEMORY.md" in paths()
    assert "MEMORY.md" not in paths(group)
    assert "MEMORY.md" not in paths(meta={"recalld/sessionKey": GROUP})
    assert "MEMORY.md" not in paths(group, {"recalld/sessionKey": "agent:main:main"}), "a call widens nothing"
    assert found(over_http(door(service), calling("memory_get", path="MEMORY.md"), era=era))["text"]
    hidden = over_http(door(service), calling("memory_get", path="MEMORY.md"), era=era, headers=group)
    assert found(hidden)["text"] == ""


def test_an_empty_session_key_is_not_the_owners(service: httpx.Client):
    for headers in (
        [("X-Recalld-Session-Key", "")],
        [("X-Recalld-Session-Key", "a"), ("X-Recalld-Session-Key", "b")],
    ):
        accept = [("accept", "application/json, text/event-stream")]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        answer = service.post("/mcp", json=body, headers=[*accept, *headers])
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("X-Recalld-Session-Key must be sent once")


def test_without_the_sdk_the_service_runs_and_says_what_is_missing(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    without_sdk(monkeypatch)
    with running(settings) as service:
        answer = post(service, "/mcp")
        assert (answer.status_code, answer.json()) == (501, {"error": 'MCP needs its SDK: pip install "recalld[mcp]"'})
        assert service.get("/healthz").status_code == 200
