"""Rules of every door: each agent gets its own memory only, and each session what is meant for it."""

from __future__ import annotations

import http.client
import json
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import structlog

from memory.http.authorization import ensure_tokens
from recalld.settings import load as configuration
from tests.doors import DOORS, Door, House, opened
from tests.transcript_files import message_line
from tests.written_index import write_index

#: What only one agent's memory says.
SECRETS = {"ada": "turquoise", "bob": "vermilion", "eve": "heliotrope"}

GROUP = "agent:ada:telegram:group:42"
DENIED = "agent:ada:slack:channel:general"

CONFIGURATION = """
provider = "stub"
[scope]
rules = [
  {{ action = "allow", key_prefix = "slack:channel:welcome" }},
  {{ action = "deny", chat_type = "channel" }},
]
[[agents]]
id = "ada"
workspace = "{folder}/ada"
sessions = ["{folder}/ada-sessions"]
[[agents]]
id = "bob"
workspace = "{folder}/bob"
sessions = ["{folder}/bob-sessions"]
[[agents]]
id = "eve"
workspace = "{folder}/eve"
enabled = false
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Three agents; one of them is switched off."""
    folder = tmp_path_factory.mktemp("doors")
    for name, secret in SECRETS.items():
        memory = folder / name / "memory"
        memory.mkdir(parents=True)
        (memory / "note.md").write_text(f"The password of {name} is {secret}.\n", "utf-8")
        (memory / f"{name}.md").write_text(f"The other password of {name} is {secret}, too.\n", "utf-8")
        (memory.parent / "MEMORY.md").write_text(f"The vault password is Basalt and {secret}.\n", "utf-8")
        os.link(memory.parent / "MEMORY.md", memory / "linked.md")
        person = memory.parent / "users" / "p-17" / "USER.md"
        person.parent.mkdir(parents=True)
        person.write_text(f"Likes tangerines and {secret}.\n", "utf-8")
        (folder / f"{name}-sessions").mkdir()
        said = message_line("plain", "user", f"my token is {secret}")
        (folder / f"{name}-sessions" / "talk.jsonl").write_bytes(said)
    config, home = folder / "recalld.toml", folder / "home"
    config.write_text(CONFIGURATION.format(folder=folder), "utf-8")
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("RECALLD_"):
                patch.delenv(name)
        patch.setattr("recalld.logs.configure_logs", lambda **_options: None)
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        settings = configuration.load(config=str(config), home=str(home)).settings
        for agent in settings.agents:
            notes = agent.model_copy(update={"sessions": ()})  # transcripts are read from their files
            write_index(settings.model_copy(update={"agents": (notes,)}), agent.id).close()
        # Before any copy is made: the copies have the same tokens, whichever test comes first.
        ensure_tokens(home, [agent.id for agent in settings.agents if agent.enabled])
        yield House(settings, config)
        structlog.reset_defaults()


@pytest.fixture(params=DOORS, scope="module")
def door(request: pytest.FixtureRequest, house: House) -> Iterator[Door]:
    with opened(house, request.param) as one:
        yield one


def without_time(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "tookMs"}


def test_each_agent_has_its_own_memory_and_no_other(door: Door, house: House):
    folder = house.config.parent
    for agent, other in (("ada", "bob"), ("bob", "ada")):
        own = door.search(agent, "password")
        assert SECRETS[agent] in json.dumps(own)
        assert SECRETS[other] not in json.dumps(own)
        for path in (
            str(folder / other / "memory" / "note.md"),
            f"../{other}/memory/note.md",
            f"memory/../../{other}/MEMORY.md",
            f"memory/{other}.md",
            f"sessions/../../{other}-sessions/talk.jsonl",
            f"../{other}-sessions/talk.jsonl",
            str(house.settings.home / "run" / "tokens" / other),
            f"../home/indexes/{other}/CURRENT",
        ):
            answer = door.get(agent, path)
            assert answer["text"] == "", path
            assert answer["error"], path
        for session_key in (f"agent:{other}:main", f"AGENT:{other.upper()}:main", f"agent: {other} :main"):
            assert without_time(door.search(agent, "password", session_key)) == without_time(
                door.search(agent, "no such word", session_key)
            )
            assert door.search(agent, "password", session_key)["results"] == []
            assert door.get(agent, "memory/note.md", session_key)["text"] == ""


def test_long_term_memory_reaches_no_group_by_any_name(door: Door, house: House):
    whole = str(house.config.parent / "ada" / "MEMORY.md")
    private = door.search("ada", "vault password Basalt")
    assert {"MEMORY.md", "memory/linked.md"} & {hit["path"] for hit in private["results"]}
    assert "Basalt" in door.get("ada", "memory/linked.md")["text"]

    for session_key in (GROUP, "agent:ada:slack:channel:welcome", "agent:ada:subagent:7"):
        group = door.search("ada", "vault password Basalt", session_key)
        assert {hit["path"] for hit in group["results"]} <= {"memory/note.md", "memory/ada.md"}
        assert group["results"]
        assert "Basalt" not in json.dumps(group)
    for path in ("MEMORY.md", "memory.md", "./MEMORY.md", "memory/linked.md", whole):
        assert door.get("ada", path, GROUP)["text"] == "", path


def test_what_is_known_of_a_person_reaches_the_owner_alone(door: Door):
    assert "users/p-17/USER.md" in {hit["path"] for hit in door.search("ada", "tangerines")["results"]}
    assert "tangerines" in door.get("ada", "users/p-17/USER.md", "agent:ada:main")["text"]
    for session_key in (GROUP, "agent:ada:telegram:direct:p-17", "agent:ada:telegram:direct:bob"):
        assert "tangerines" not in json.dumps(door.search("ada", "tangerines", session_key)["results"])
        assert door.get("ada", "users/p-17/USER.md", session_key)["text"] == ""


@pytest.mark.parametrize("door", [name for name in DOORS if not name.startswith("shell")], indirect=True)
def test_every_door_for_models_takes_a_corpus(door: Door):
    notes, both = (door.search("ada", "password", corpus=corpus) for corpus in ("memory", "all"))
    assert {hit["source"] for hit in notes["results"]} == {"memory"}
    assert [corpus["outcome"] for corpus in both["corpora"]] == ["ok", "not-registered"]
    assert door.search("ada", "password", corpus="sessions")["results"] == []
    assert door.get("ada", "memory/note.md", corpus="wiki")["status"] == "not_found"
    off = door.search("eve", "password", corpus="all")
    assert [corpus["outcome"] for corpus in off["corpora"]] == ["unavailable", "not-registered"]


def test_out_of_scope_is_nothing_whether_there_is_a_memory_or_not(door: Door):
    nothing = without_time(door.search("ada", "password", DENIED))
    assert nothing["results"] == []
    assert not nothing.keys() & {"error", "disabled", "unavailable", "warning", "action", "provider", "model"}
    read = door.get("ada", "memory/note.md", DENIED)
    assert not read.keys() & {"error", "disabled", "unavailable", "warning", "action", "nextFrom"}

    denied = DENIED.replace("ada", "eve")
    assert without_time(door.search("eve", "password", denied)) == nothing
    assert door.get("eve", "memory/note.md", denied) == read
    assert door.get("eve", "memory/note.md", "agent:ada:main") == read


def test_a_memory_that_is_switched_off_is_an_answer(door: Door):
    search, read = door.search("eve", "password"), door.get("eve", "memory/note.md")
    assert (search["results"], read["text"]) == ([], "")
    for answer in (search, read):
        assert answer["disabled"]
        assert answer["unavailable"]
        assert all(answer[name] for name in ("error", "warning", "action"))
        assert SECRETS["eve"] not in json.dumps(answer)


def copied(house: House, name: str, **changes: object) -> House:
    """A copy of the house: one home has one registered service, and that of other tests may run."""
    home = house.settings.home.with_name(name)
    shutil.copytree(house.settings.home, home, ignore=shutil.ignore_patterns("service.*"))
    return House(house.settings.model_copy(update={"home": home, **changes}), house.config)


@pytest.fixture(scope="module")
def service(house: House) -> Iterator[httpx.Client]:
    another = copied(house, "served")
    yield another.serve()
    another.close()


def raw(client: httpx.Client, method: str, path: str, *, body: str | None, headers: dict[str, str]) -> tuple[int, str]:
    """One request with its path as it is written; httpx would tidy it up."""
    connection = http.client.HTTPConnection("127.0.0.1", client.base_url.port, timeout=60)
    try:
        connection.request(method, path, body, {"Accept": "application/json, text/event-stream", **headers})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


JSON = {"Content-Type": "application/json"}
RPC = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
    '{"name":"memory_search","arguments":{"query":"password"%s}%s}}'
)

#: Requests that name bob, as method, path, body and headers. Sent with ada's token, a wrong one, and none.
FOREIGN: list[tuple[str, str, str | None, dict[str, str]]] = [
    ("POST", "/v1/search", '{"query":"password","agent":"bob"}', JSON),
    ("POST", "/v1/search", '{"query":"password","agent":"ada","agent":"bob"}', JSON),
    ("POST", "/v1/search", '{"query":"password","agent":["bob"]}', JSON),
    ("POST", "/v1/search", '{"query":"password","sessionKey":"agent:bob:main"}', JSON),
    ("POST", "/v1/search?agent=bob", '{"query":"password"}', JSON),
    ("POST", "/v1/search", '{"query":"password"}', {**JSON, "X-Agent": "bob", "X-Recalld-Agent": "bob"}),
    ("POST", "/v1/get", '{"path":"memory/bob.md","agent":"bob"}', JSON),
    ("POST", "/v1/get", '{"path":"memory/note.md","sessionKey":"agent:bob:main"}', JSON),
    ("POST", "/v1/tools", '{"name":"memory_search","arguments":{"query":"password"},"agent":"bob"}', JSON),
    ("POST", "/v1/tools", '{"name":"memory_search","arguments":{"query":"password","agent":"bob"}}', JSON),
    ("POST", "/v1/tools", '{"name":"memory_get","arguments":"{\\"path\\":\\"memory/bob.md\\"}","agent":"bob"}', JSON),
    ("POST", "/v1/tools", '{"name":"memory_get","arguments":{"path":"../bob/memory/note.md"}}', JSON),
    ("GET", "/v1/tools?agent=bob", None, {}),
    ("GET", "/v1/status?agent=bob", None, {}),
    ("GET", "/v1/status?agent=ada&agent=bob", None, {}),
    ("GET", "/metrics?agent=bob", None, {}),
    *(("GET", f"/v1/{name}?agent=bob", None, {}) for name in ("queue", "dead-letters", "timeline", "context")),
    ("POST", "/v1/terms", '{"query":"password"}', JSON),
    ("POST", "/mcp/bob", RPC % ("", ""), JSON),
    ("POST", "/mcp/ada?agent=bob", RPC % ("", ""), JSON),
    ("POST", "/mcp/ada/../bob", RPC % ("", ""), JSON),
    ("POST", "/mcp/ada/%2e%2e/bob", RPC % ("", ""), JSON),
    ("POST", "/mcp", RPC % (',"agent":"bob"', ""), JSON),
    ("POST", "/mcp", RPC % ("", ',"agent":"bob"'), JSON),
    ("POST", "/mcp", RPC % ("", ',"_meta":{"recalld/sessionKey":"agent:bob:main"}'), JSON),
    ("POST", "/mcp", RPC % ("", ""), {**JSON, "X-Recalld-Session-Key": "agent:bob:main"}),
    ("POST", "/mcp", f"[{RPC % ('', '')},{RPC % ('', '')}]", JSON),
    ("GET", "/?agent=bob", None, {}),
    ("GET", "/../run/tokens/bob", None, {}),
]


def test_no_request_opens_another_agents_memory_with_any_token_or_none(house: House, service: httpx.Client):
    own = house.headers("ada")
    token = own["Authorization"]
    wrong = ["Bearer wrong", token.replace("Bearer", "Basic"), f"{token}x", "Bearer ", f"{token}, Bearer wrong"]
    strangers = [{}, *({"Authorization": one} for one in wrong)]
    bobs = (SECRETS["bob"], str(house.settings.agents[1].workspace), '"agent":"bob"', 'agent="bob"')
    for method, path, body, headers in FOREIGN:
        status, text = raw(service, method, path, body=body, headers={**headers, **own})
        assert status < 500, (method, path, text)
        assert not any(word in text for word in bobs), (method, path, body, text)
        for stranger in strangers:
            status, text = raw(service, method, path, body=body, headers={**headers, **stranger})
            assert status < 500, (method, path, text)
            assert not any(word in text for word in (*bobs, *SECRETS.values(), '"ada"', '"eve"')), (method, path, text)
            if method == "POST" or (path.startswith(("/v1/", "/metrics")) and path != "/v1/tools?agent=bob"):
                assert status in {307, 401, 404, 405, 422}, (status, method, path, body)


def test_an_agents_token_opens_its_own_memory_at_these_doors(house: House, service: httpx.Client):
    """Otherwise the test above would hold for a service that answers nothing."""
    own = house.headers("ada")
    assert SECRETS["ada"] in service.post("/v1/search", json={"query": "password"}, headers=own).text
    assert SECRETS["ada"] in service.post("/v1/get", json={"path": "memory/note.md", "agent": "ada"}, headers=own).text
    [agent] = service.get("/v1/status", headers=own, params={"agent": "ada"}).json()["agents"]
    assert agent["agent"] == "ada"
    for path in ("/metrics", "/v1/queue", "/v1/timeline"):
        assert "ada" in service.get(path, headers=own).text, path
    assert service.get("/v1/queue").status_code == 401
    assert 'recalld_denied_total{status="401"}' in service.get("/metrics", headers=own).text
    for path in ("/mcp", "/mcp/ada"):
        assert SECRETS["ada"] in raw(service, "POST", path, body=RPC % ("", ""), headers={**JSON, **own})[1]


@pytest.fixture(scope="module")
def trusting(house: House) -> Iterator[httpx.Client]:
    """A service on a loopback that is trusted: no tokens, and every request names its agent."""
    auth = house.settings.auth.model_copy(update={"trust_loopback": True})
    open_house = copied(house, "trusting", auth=auth)
    yield open_house.serve()
    open_house.close()


def test_a_trusted_loopback_still_keeps_agents_apart(trusting: httpx.Client):
    for agent, other in (("ada", "bob"), ("bob", "ada")):
        asked = {"query": "password", "agent": agent}
        for text in (
            trusting.post("/v1/search", json=asked).text,
            raw(trusting, "POST", f"/mcp/{agent}", body=RPC % ("", ""), headers=JSON)[1],
        ):
            assert SECRETS[agent] in text
            assert SECRETS[other] not in text
        foreign = trusting.post("/v1/search", json={**asked, "sessionKey": f"agent:{other}:main"})
        assert foreign.json()["results"] == []
    for path, body in (("/v1/search", '{"query":"password"}'), ("/mcp", RPC % ("", "")), ("/mcp/no", RPC % ("", ""))):
        status, text = raw(trusting, "POST", path, body=body, headers=JSON)
        assert status in {400, 404}, path
        assert not any(secret in text for secret in SECRETS.values())
