"""The query service of a fleet: tokens, agents as rows, and a store that goes away."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from memory.search.manager import get_search_manager
from memory.store.postgres.administration import Administration
from memory.store.postgres.connection import Database
from memory.store.postgres.directory import VIEW_AGENTS, FleetDirectory
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.postgres_server import PostgresServer, Urls
from tests.serving import running
from tests.unit.memory.embedding.providers.test_gguf_model import STAND_IN, write_gguf
from tests.waiting import wait_until

#: Bodies and queries of the routes that take an agent, where an empty one is not valid.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/search": {"query": "gateway"},
    "/v1/get": {"path": "MEMORY.md"},
    "/v1/tools": {"name": "memory_search", "arguments": {"query": "gateway"}},
    "/v1/context/prompt": {"prompt": "gateway", "sessionKey": "agent:x:main"},
    "/v1/context/flush": {"windowTokens": 100_000},
    "/v1/context/prune": {"messages": []},
}
QUERIES: Mapping[str, Mapping[str, str]] = {"/v1/days": {"since": "2026-01-01"}, "/v1/turns": {"path": "a.jsonl"}}

#: Names that acme's token must not tell apart.
CLOSED = ["carl", "eve", "umbrella/eve", "anna/anna", "*", "ANNA", "-"]


def of_fleet(settings: Settings, url: str, *, timeout_ms: int = 8_000) -> Settings:
    return Settings.model_validate(
        {"home": settings.home, "provider": "none", "store": {"url": url}, "limits": {"timeout_ms": timeout_ms}}
    )


@pytest.fixture
def service(
    settings: Settings, fleet_urls: Urls, fleet: Administration, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    # A busy machine may look up a token for longer, and the request is refused then.
    monkeypatch.setattr("memory.service.app.DECISION_SECONDS", 60.0)
    with running(of_fleet(settings, fleet_urls.reader, timeout_ms=60_000)) as client:
        yield client


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def routes_about_agents(client: httpx.Client) -> list[tuple[str, str]]:
    """Return (method, path) of every route that takes an agent, as `/openapi.json` describes them."""
    description = client.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    routes = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            names = {parameter["name"] for parameter in operation.get("parameters", ())}
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            names |= set(schemas.get(body.get("$ref", "").rpartition("/")[2], {}).get("properties", ()))
            if "agent" in names:
                routes.append((method.upper(), path))
    return routes


def ask(client: httpx.Client, method: str, path: str, agent: str | None, headers: Mapping[str, str]) -> httpx.Response:
    named = {"agent": agent} if agent is not None else {}
    if method == "POST":
        return client.post(path, json={**BODIES[path], **named}, headers=headers)
    return client.get(path, params={**QUERIES.get(path, {}), **named}, headers=headers)


def test_a_foreign_agent_and_an_unknown_one_get_the_same_bytes(service: httpx.Client, fleet: Administration):
    routes = routes_about_agents(service)
    assert len(routes) >= 13
    for agents in ((), ("anna",)):
        headers = bearer(fleet.add_token("acme", f"bot{len(agents)}", rights=["search"], agents=agents))
        for method, path in routes:
            assert ask(service, method, path, "anna", headers).status_code == 200, path
            answers = {
                (response.status_code, response.content, response.headers["content-type"])
                for response in (ask(service, method, path, name, headers) for name in CLOSED)
            }
            assert len(answers) == 1, (path, answers)
            assert answers.pop()[0] == 404, path
        for tool, arguments in (("memory_search", {"query": "gateway"}), ("memory_get", {"path": "MEMORY.md"})):
            body = {"name": tool, "arguments": arguments}
            tools = {
                service.post("/v1/tools", json={**body, "agent": name}, headers=headers).content for name in CLOSED
            }
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": body}
            over_mcp = {
                (response.status_code, response.content)
                for response in (
                    service.post(f"/mcp/{name}", json=call, headers=headers) for name in CLOSED if "/" not in name
                )
            }
            assert (len(tools), len(over_mcp)) == (1, 1)


def test_no_route_answers_without_a_token_of_the_right(service: httpx.Client, fleet: Administration):
    sender = bearer(fleet.add_token("acme", "sender", rights=["ingest", "admin"]))
    for method, path in routes_about_agents(service):
        assert ask(service, method, path, "anna", {}).status_code == 401, path
        assert ask(service, method, path, "anna", bearer("rcl_wrong")).status_code == 401, path
        assert ask(service, method, path, "anna", sender).status_code == 403, path
    assert service.get("/metrics").status_code == 401


def test_views_show_the_tokens_own_agents(service: httpx.Client, fleet: Administration):
    everyone = bearer(fleet.add_token("acme", "team", rights=["search"]))
    bobs = bearer(fleet.add_token("acme", "bobs", rights=["search"], agents=["bob"]))
    for headers, agents in ((everyone, ["acme/anna", "acme/bob"]), (bobs, ["acme/bob"])):
        for path in ("/v1/status", "/v1/queue"):
            answer = service.get(path, headers=headers).json()
            assert [agent["agent"] for agent in answer["agents"]] == agents, path
        numbers = service.get("/metrics", headers=headers).text
        assert "umbrella" not in numbers
        assert ('agent="acme/anna"' in numbers) == ("acme/anna" in agents)


def test_a_large_tenant_is_shown_page_by_page(service: httpx.Client, fleet: Administration, fleet_urls: Urls):
    with Database(fleet_urls.writer).transaction("umbrella") as connection:
        connection.execute(
            "INSERT INTO recalld.agents (tenant, agent) SELECT 'umbrella', 'a' || n FROM generate_series(100, 199) AS n"
        )
    headers = bearer(fleet.add_token("umbrella", "team", rights=["search"]))
    first = [row["agent"] for row in service.get("/v1/queue", headers=headers).json()["agents"]]
    second = service.get("/v1/queue", params={"after": first[-1]}, headers=headers).json()["agents"]
    assert first == [f"umbrella/a{number}" for number in range(100, 100 + VIEW_AGENTS)]
    assert second[0]["agent"] == f"umbrella/a{100 + VIEW_AGENTS}"


def test_a_token_for_several_agents_searches_the_first_by_default(service: httpx.Client, fleet: Administration):
    headers = bearer(fleet.add_token("acme", "bot", rights=["search"], agents=["bob", "anna"]))
    assert service.get("/v1/timeline", headers=headers).json()["agent"] == "acme/bob"
    assert service.get("/v1/timeline", params={"agent": "anna"}, headers=headers).json()["agent"] == "acme/anna"


def test_a_revoked_token_is_refused_within_seconds(service: httpx.Client, fleet: Administration):
    headers = bearer(fleet.add_token("acme", "bot", rights=["search"]))
    assert service.get("/v1/timeline", headers=headers).status_code == 200
    fleet.revoke("acme", "bot")
    wait_until(lambda: service.get("/v1/timeline", headers=headers).status_code == 401)


def test_a_replica_is_ready_once_its_model_is_loaded(
    settings: Settings, fleet_urls: Urls, fleet: Administration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "site" / "llama_cpp"
    package.mkdir(parents=True)
    gate = "import threading\nLOADED = threading.Event()\n"
    (package / "__init__.py").write_text(
        gate + STAND_IN.replace("        lines =", "        LOADED.wait(60)\n        lines =")
    )
    monkeypatch.syspath_prepend(package.parent)
    loaded: threading.Event = importlib.import_module("llama_cpp").LOADED
    model = {"provider": "local", "local": {"model_path": str(write_gguf(tmp_path / "mine.gguf"))}}
    of_replica = {"home": settings.home, "store": {"url": fleet_urls.reader}, **model}
    try:
        with running(Settings.model_validate(of_replica)) as client:
            for _ in range(2):
                assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 200
            loaded.set()
            wait_until(lambda: client.get("/readyz").status_code == 200)
    finally:
        loaded.set()
        del sys.modules["llama_cpp"]


@pytest.mark.long
def test_searches_are_unavailable_while_postgresql_is_away(settings: Settings, own_server: PostgresServer):
    urls = own_server.urls()
    fleet = Administration(Database(urls.writer), actor="root")
    fleet.add_tenant("acme")
    headers = bearer(fleet.add_token("acme", "bot", rights=["search"], agents=["anna"]))
    with running(of_fleet(settings, urls.reader)) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/v1/status", headers=headers).status_code == 200
        own_server.kill()
        assert client.get("/readyz").status_code == 503
        # Once the token is no longer trusted, and before.
        wait_until(lambda: client.get("/v1/days?since=2026-01-01", headers=headers).status_code == 503)
        for name in ("anna", "carl", None):
            answer = ask(client, "POST", "/v1/search", name, headers)
            assert (answer.status_code, answer.json()["unavailable"], answer.json()["results"]) == (200, True, [])
            tool = ask(client, "POST", "/v1/tools", name, headers)
            assert (tool.status_code, tool.json()["unavailable"]) == (200, True)
        assert "postgresql://" not in answer.text
        own_server.start()
        wait_until(lambda: client.get("/readyz").status_code == 200)
        wait_until(lambda: client.get("/v1/days?since=2026-01-01", headers=headers).status_code == 200)
        assert ask(client, "POST", "/v1/search", "carl", headers).status_code == 404


def test_a_token_sees_the_sums_over_all_its_agents(service: httpx.Client, fleet: Administration, fleet_urls: Urls):
    with Database(fleet_urls.writer).transaction("umbrella") as connection:
        connection.execute(
            "INSERT INTO recalld.agents (tenant, agent) SELECT 'umbrella', 'a' || n FROM generate_series(1, 9999) AS n"
        )
    anna_fails = """
        INSERT INTO recalld.generations (tenant, agent, generation, state, fingerprint, identity)
            VALUES ('acme', 'anna', 'g', 'current', 'f', '{}');
        INSERT INTO recalld.dead_letters VALUES ('acme', 'anna', 'g', 'memory', 'a.md', 'it is a picture', 'E', 1, 1, 1)
        """
    with Database(fleet_urls.writer).transaction("acme") as connection:
        connection.execute(anna_fails)
    for tenant, names, agents, letters in (
        ("umbrella", (), 10_000, 0),
        ("acme", (), 2, 1),
        ("acme", ("bob",), 1, 0),
        ("acme", ("anna",), 1, 1),
    ):
        headers = bearer(fleet.add_token(tenant, f"team{agents}{letters}", rights=["search"], agents=names))
        for path in ("/v1/status", "/v1/queue"):
            sums = service.get(path, headers=headers).json()["fleet"]
            assert (sums["agents"], sums["deadLetters"]) == (agents, letters)
            assert sums["troubled"] == ["acme/anna"] * letters
            agent = "eve" if tenant == "umbrella" else (*names, "anna")[0]
            answer = service.get(path, params={"agent": agent}, headers=headers).json()
            assert ("agents" in answer, "fleet" in answer) == (True, False)
        numbers = service.get("/metrics", headers=headers).text
        assert f'recalld_fleet{{of="agents"}} {agents}.0' in numbers
        assert f'recalld_fleet{{of="troubled"}} {letters}.0' in numbers


def test_agents_of_a_token_are_opened_for_their_own_requests_only(
    service: httpx.Client, fleet: Administration, fleet_urls: Urls
):
    headers = bearer(fleet.add_token("acme", "team", rights=["search"]))
    with Database(fleet_urls.writer).transaction("acme") as connection:
        connection.execute("""UPDATE recalld.agents SET settings = '{"query": 5}' WHERE agent = 'bob'""")
    assert service.post("/v1/terms", json={"query": "gateway"}, headers=headers).status_code == 200
    assert ask(service, "POST", "/v1/search", "anna", headers).status_code == 200
    assert ask(service, "POST", "/v1/search", "bob", headers).status_code == 500


def test_the_event_loop_of_a_search_waits_for_no_statement(settings: Settings, fleet: Administration, fleet_urls: Urls):
    of_reader = of_fleet(settings, fleet_urls.reader)
    agent = FleetDirectory.of(of_reader).agent("acme/anna")
    manager, _ = get_search_manager(of_reader.model_copy(update={"agents": (agent,)}), agent.id)
    assert manager is not None
    calls = list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("postgres/connection.py"):
            calls.append(frame.f_code.co_name)

    with closing(manager):
        sys.setprofile(note)
        try:
            answer = asyncio.run(manager.searched(SearchRequest(query="gateway")))
        finally:
            sys.setprofile(None)
    assert (answer.unavailable, calls) == (None, [])
