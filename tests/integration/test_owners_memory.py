"""The owner of a home: one token for all agents, and one search of all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory.http.authorization import OWNER_TOKEN_PATH
from recalld.client import Client
from recalld.settings.load import load
from schemas.conditions import ConditionCode
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.daemon import recalld
from tests.embedding_server import EmbeddingServer
from tests.serving import running, search
from tests.waiting import wait_until

QUESTION = "which port does the gateway use"


@pytest.fixture
def several(commands: CommandLine, workspace: Path, server: EmbeddingServer) -> CommandLine:
    """The indexes of main, ada, bob and one agent that is switched off; nothing runs."""
    notes = {"ada": "The gateway listens on port 7373.\n", "bob": "Dentist on Friday.\n", "off": "Port 1.\n"}
    for agent, text in notes.items():
        folder = workspace.parent / agent
        folder.mkdir()
        (folder / "MEMORY.md").write_text(text, "utf-8")
        commands.configure(f'[[agents]]\nid = "{agent}"\nworkspace = "{folder}"')
    (workspace / "MEMORY.md").write_text("The gateway is called Basalt.\n", "utf-8")
    (workspace / "USER.md").write_text("Prefers tea.\n", "utf-8")
    commands.say("index")
    commands.configure("enabled = false")
    server.log.clear()
    server.requests = 0
    return commands


def owners(client: httpx.Client, home: Path) -> httpx.Client:
    client.headers["authorization"] = f"Bearer {(home / OWNER_TOKEN_PATH).read_text().strip()}"
    return client


def places(answer: dict[str, Any]) -> list[tuple[str, str, float]]:
    return [(hit["agent"], hit["path"], hit["score"]) for hit in answer["results"]]


def test_a_search_of_all_agents_pays_for_one_vector_with_and_without_a_service(
    several: CommandLine, home: Path, server: EmbeddingServer
):
    alone = several.json("search", QUESTION, "--min-score", "0")
    assert (server.requests, alone["mode"], alone["degraded"]) == (1, "hybrid", [])
    assert places(alone)[0][:2] == ("ada", "MEMORY.md")
    assert {agent for agent, *_ in places(alone)} == {"main", "ada", "bob"}, "a memory that is switched off stays so"
    since = several.json("search", QUESTION, "--min-score", "0", "--since", "7d")
    assert {agent for agent, *_ in places(since)} == {"main", "ada", "bob"}
    code, out, _ = several.run("search", QUESTION, "--since", "someday", "--json")
    assert (code, json.loads(out)["error"].count("someday")) == (1, 1), "one refusal for all agents"

    settings = load().settings.model_copy(update={"home": home})
    with running(settings) as client:
        warm = lambda: search(owners(client, home), "warm")["mode"] == "hybrid"  # noqa: E731
        wait_until(warm)
        server.requests = 0
        served = several.json("search", QUESTION, "--min-score", "0")
        assert (server.requests, served["degraded"]) == (1, [])
        assert places(served) == places(alone)
        assert places(search(client, QUESTION, minScore=0)) == places(alone)
        assert len(search(client, QUESTION, minScore=0, maxResults=1)["results"]) == 1
        narrowed = several.json("search", QUESTION, "--min-score", "0", "--agent", "bob")
        assert [hit["snippet"] for hit in narrowed["results"]] == ["Dentist on Friday."]
        assert several.say("search", QUESTION).startswith("ada  ")
        assert several.json("get", "USER.md")["agent"] == "main"
        code, _, err = several.run("get", "MEMORY.md")
        assert (code, "main, ada, bob" in err) == (3, True)
        code, _, err = several.run("context", "list")
        assert (code, "--agent" in err) == (2, True)
        _, out, _ = several.run("status")
        assert all(name in out for name in ("main", "ada", "bob"))


def test_the_owners_token_opens_every_door_and_loopback_alone_opens_none(two_agents: Settings):
    with running(two_agents) as client:
        for path in ("/v1/status", "/v1/queue", "/v1/dead-letters", "/metrics"):
            assert client.get(path).status_code == 401
        assert client.post("/v1/search", json={"query": "password"}).status_code == 401
        owners(client, two_agents.home)
        for path in ("/v1/status", "/v1/queue"):
            assert [agent["agent"] for agent in client.get(path).json()["agents"]] == ["ada", "bob"]
        assert client.get("/v1/dead-letters").status_code == client.get("/metrics").status_code == 200
        assert {hit["agent"] for hit in search(client, "password card")["results"]} == {"ada", "bob"}
        [hit] = search(client, "password card", agent="bob")["results"]
        assert ("agent" in hit, "of bob" in hit["snippet"]) == (False, True)
        keyed = search(client, "password card", sessionKey="agent:ada:main")
        assert [hit["agent"] for hit in keyed["results"]] == ["ada"], "a session of ada's sees no other agent"


def test_an_agent_whose_index_is_damaged_is_named_and_the_others_answer(two_agents: Settings):
    for file in (two_agents.indexes_path / "bob").glob("*.sqlite"):
        file.write_bytes(b"no database" * 1000)
    with running(two_agents) as client:
        answer = search(owners(client, two_agents.home), "password card")
        assert [hit["agent"] for hit in answer["results"]] == ["ada"]
        assert (ConditionCode.AGENT_NOT_SEARCHED, "bob") in [(c["code"], c["subject"]) for c in answer["conditions"]]


def test_a_link_to_the_page_is_made_for_the_owner_alone_and_used_by_the_page_alone(two_agents: Settings):
    with running(two_agents) as client:
        ada = {"authorization": f"Bearer {(two_agents.home / 'run' / 'tokens' / 'ada').read_text().strip()}"}
        assert [client.post("/v1/session/link", headers=h).status_code for h in ({}, ada)] == [401, 401]
        owner = Client.at_home(two_agents.home)
        assert owner is not None
        body = {"link": owner.page_link().partition("#open=")[2]}
        for header in (
            {"origin": "https://evil.example"},
            {"host": "rebound.example"},
            {"sec-fetch-site": "cross-site"},
        ):
            assert client.post("/v1/session", json=body, headers=header).status_code == 403
        session = client.post("/v1/session", json=body).json()["token"]
        assert client.post("/v1/session", json=body).status_code == 401
        headers = {"authorization": f"Bearer {session}"}
        assert client.get("/v1/queue", headers=headers).json()["owner"] is True
        assert client.post("/v1/session/link", headers=headers).status_code == 401
    with running(two_agents) as client:
        assert client.get("/v1/queue", headers=headers).status_code == 200, "a restart ends no session"
    one = two_agents.model_copy(update={"agents": two_agents.agents[:1]})
    with running(one) as client:
        owner = Client.at_home(one.home)
        assert owner is not None
        assert owner.page_link() == f"{str(client.base_url).rstrip('/')}/", "one agent needs no token"


@pytest.mark.long
def test_the_command_prints_the_link_of_a_proven_service_and_no_log_has_it(two_agents: Settings, tmp_path: Path):
    agents = [f'[[agents]]\nid = "{agent.id}"\nworkspace = "{agent.workspace}"' for agent in two_agents.agents]
    config, printed = tmp_path / "recalld.toml", tmp_path / "printed"
    config.write_text("\n".join(['provider = "stub"', "service.port = 0", *agents]), "utf-8")
    command = [sys.executable, "-m", "recalld", "--config", str(config), "--home", str(two_agents.home), "serve"]
    closed = recalld("open", "--print", home=two_agents.home)
    assert (closed.returncode, closed.stdout, "recalld up " in closed.stderr) == (1, "", True)
    with printed.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        wait_until(lambda: Client.at_home(two_agents.home))
        link = recalld("open", "--print", home=two_agents.home).stdout.strip()
        address, _, token = link.partition("/#open=")
        session = httpx.post(f"{address}/v1/session", json={"link": token}, timeout=60).json()["token"]
        owner = {"authorization": f"Bearer {session}"}
        assert httpx.get(f"{address}/v1/queue", headers=owner, timeout=60).status_code == 200
        assert httpx.post(f"{address}/v1/session", json={"link": token}, timeout=60).status_code == 401
        process.terminate()
    secret = (two_agents.home / OWNER_TOKEN_PATH).read_text().strip()
    assert "service_listening" in printed.read_text()
    assert not [word for word in (token, session, secret) if word in printed.read_text()]
