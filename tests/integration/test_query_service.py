"""The query service over HTTP, on a real index."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from memory.documents.agent_files import AgentFiles
from memory.embedding.selection import choose_provider
from memory.index.fingerprint import Fingerprint
from memory.service.run import serve
from memory.store.errors import CheckUnfinished
from memory.store.sqlite.reader import SqliteReader
from recalld.client import Client
from schemas.conditions import ConditionCode
from schemas.errors import UserError
from schemas.ports import Pending
from schemas.settings import Settings
from tests.integration.conftest import FRIDAY
from tests.quiet_health import QuietHealth
from tests.serving import running, search
from tests.unit.memory.embedding.providers.test_gguf_model import STAND_IN, write_gguf
from tests.waiting import wait_until
from tests.written_index import with_agent, write_document, write_index, writer_of


def test_search_answers_in_the_promised_shape(service: httpx.Client):
    answer = search(service, "dentist appointment", maxResults=1)

    [hit] = answer["results"]
    assert hit["path"] == "memory/friday.md"
    assert (hit["startLine"], hit["endLine"]) == (1, 4)
    assert hit["snippet"] == FRIDAY.rstrip("\n")
    assert {"score", "vectorScore", "textScore", "source", "citation"} <= hit.keys()
    assert {"provider", "model", "mode", "fallback", "citations", "pending", "tookMs"} <= answer.keys()
    assert (answer["fallback"], answer["citations"], answer["mode"]) == (False, True, "hybrid")
    assert "error" not in answer
    assert search(service, "数据库")["results"][0]["path"] == "memory/zh.md"
    assert search(service, "   ")["results"] == []


class LoadedAtQuestion(QuietHealth):
    """A queue that lets a model load when the first search asks for the state of the queue."""

    def __init__(self, asking: threading.Event, loaded: threading.Event) -> None:
        self._asking, self._loaded = asking, loaded

    def pending(self, agent: str) -> Pending | None:
        if self._asking.is_set():
            self._loaded.set()
        return super().pending(agent)


def test_a_search_waits_for_a_model_that_is_still_loading(
    settings: Settings, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "site" / "llama_cpp"
    package.mkdir(parents=True)
    gate = "import threading\nLOADED = threading.Event()\n"
    waiting = STAND_IN.replace("        lines =", "        LOADED.wait(60)\n        lines =")
    (package / "__init__.py").write_text(gate + waiting)
    monkeypatch.syspath_prepend(package.parent)
    loaded: threading.Event = importlib.import_module("llama_cpp").LOADED
    local = {"local": {"model_path": str(write_gguf(tmp_path / "mine.gguf"))}}
    settings = with_agent(settings, provider="local", **local)
    loaded.set()
    write_index(settings).close()
    loaded.clear()
    asking = threading.Event()
    try:
        with running(settings, LoadedAtQuestion(asking, loaded)) as client:
            hurried = search(client, "the dentist", waitMs=0)
            assert (hurried["mode"], len(hurried["results"])) == ("keyword", 1)
            assert "still loading" in hurried["degraded"][0]
            asking.set()
            assert search(client, "the dentist appointment")["mode"] == "hybrid"
    finally:
        loaded.set()
        del sys.modules["llama_cpp"]


def test_get_reads_lines_and_pages_on(service: httpx.Client):
    whole = service.post("/v1/get", json={"path": "memory/friday.md"}).json()
    assert whole == {
        "path": "memory/friday.md",
        "status": "ok",
        "text": FRIDAY.rstrip("\n"),
        "from": 1,
        "lines": 4,
        "totalLines": 4,
        "truncated": False,
    }
    part = service.post("/v1/get", json={"path": "memory/friday.md", "startLine": 2, "lines": 2}).json()
    assert (part["from"], part["lines"], part["truncated"], part["nextFrom"]) == (2, 2, True, 4)


def test_paths_from_outside_open_nothing_else(service: httpx.Client, notes: Path, tmp_path: Path):
    (tmp_path / "secret.md").write_text("the secret", "utf-8")
    (notes / "memory" / "link.md").symlink_to(tmp_path / "secret.md")
    os.mkfifo(notes / "memory" / "pipe.md")
    attacks = [
        "../secret.md",
        "memory/../../secret.md",
        "memory\\..\\..\\secret.md",
        str(tmp_path / "secret.md"),
        "memory/link.md",
        "memory/pipe.md",
        "memory/a\u0000.md",
        "%2e%2e/secret.md",
        "/proc/self/environ",
        "....//secret.md",
        "MEMOY.md",
        "memory/never.md",
        "sessions/none.jsonl",
    ]
    for path in attacks:
        answer = service.post("/v1/get", json={"path": path}).json()
        assert (answer["path"], answer["status"], answer["text"]) == (path, "not_found", ""), path
        assert answer["error"], path
        assert not answer.keys() & {"disabled", "unavailable", "refused"}, path


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7373", "127.0.0.1.evil.example", "10.0.0.5", "user@localhost"]
)
def test_a_rebound_name_is_refused_at_every_door(service: httpx.Client, host: str):
    for path in ("/", "/healthz", "/v1/status", "/openapi.json", "/metrics"):
        assert service.get(path, headers={"host": host}).status_code == 403, path
    assert service.post("/v1/search", json={"query": "dentist"}, headers={"host": host}).status_code == 403


def test_other_origins_are_refused_and_this_one_is_served(service: httpx.Client):
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://127.0.0.1", "file://", ""):
        answer = service.post("/v1/search", json={"query": "dentist"}, headers={"origin": origin})
        assert answer.status_code == 403, origin
        assert "access-control-allow-origin" not in answer.headers
    own = f"http://127.0.0.1:{service.base_url.port}"
    assert service.post("/v1/search", json={"query": "dentist"}, headers={"origin": own}).status_code == 200
    named = {"host": f"localhost:{service.base_url.port}", "origin": f"http://localhost:{service.base_url.port}"}
    assert service.post("/v1/search", json={"query": "dentist"}, headers=named).status_code == 200
    cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert service.get("/v1/status", headers=cross).status_code == 403


def test_a_link_on_another_site_leads_to_the_page_and_nowhere_else(service: httpx.Client):
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for path in ("/", "/docs"):
        assert service.get(path, headers=followed).status_code == 200
        assert service.post(path, headers=followed).status_code == 403
    for path in ("/v1/status", "/v1/queue", "/v1/timeline?year=2026", "/metrics", "/readyz", "/openapi.json", "/none"):
        assert service.get(path, headers=followed).status_code == 403, path
        assert service.get(path, headers={**followed, "sec-fetch-site": "none"}).status_code in {200, 404}, path


def test_no_cache_keeps_an_answer_and_no_browser_guesses_its_type(service: httpx.Client):
    answers = [
        service.post("/v1/search", json={"query": "dentist"}),
        service.post("/v1/search", json={"query": 7}),
        service.get("/v1/status"),
        service.get("/healthz"),
        service.get("/metrics"),
        service.get("/none"),
        service.get("/page/none.js"),
        service.get("/v1/status", headers={"host": "evil.example"}),
        service.get("/v1/status", headers={f"x-{number}": "y" for number in range(200)}),
        service.post("/mcp", json={}),
    ]
    assert {answer.status_code for answer in answers} >= {200, 403, 404, 422, 431}
    for answer in answers:
        assert answer.headers.get_list("cache-control") == ["no-store"], answer.url
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], answer.url
    page = service.get("/").headers
    assert page.get_list("cache-control") == ["no-cache"], "asked each time whether it is still right"
    assert page.get_list("x-content-type-options") == ["nosniff"]


def test_a_status_that_is_asked_for_without_a_cache_is_of_now(service: httpx.Client, notes: Path):
    def missing(**headers: str) -> int:
        return int(service.get("/v1/status", headers=headers).json()["agents"][0]["disk"]["missing"])

    for number in range(5):
        assert missing(**{"cache-control": "no-cache"}) == number
        (notes / "memory" / f"{number}.md").write_text("# New\n", "utf-8")
    assert Client(url=str(service.base_url)).status()["agents"][0]["disk"]["missing"] == 5


def test_status_health_and_metrics(service: httpx.Client):
    status = service.get("/v1/status", params={"deep": "1"}).json()
    assert status["ok"] is True
    [agent] = status["agents"]
    assert (agent["agent"], agent["disk"]["files"], agent["index"]["files"]) == ("main", 3, 3)
    assert agent["integrity"] == []
    assert service.get("/v1/status", params={"agent": "other"}).status_code == 404
    assert service.get("/healthz").json() == {"status": "ok"}
    assert service.get("/readyz").json() == {"status": "ready"}

    search(service, "dentist")
    text = service.get("/metrics").text
    for sample in (
        'recalld_build_info{version="',
        'recalld_searches_total{outcome="found"}',
        'recalld_search_seconds_count{mode="hybrid"}',
        'recalld_chunks{agent="main"} 3.0',
        'recalld_pending_documents{agent="main"} 0.0',
    ):
        assert sample in text


def test_a_service_without_any_index_is_ready_and_says_that_there_is_none(settings: Settings):
    with running(settings) as client:
        assert client.get("/readyz").status_code == 200
        assert ConditionCode.INDEX_MISSING in [one["code"] for one in search(client, "dentist")["conditions"]]


def test_with_several_agents_every_door_needs_that_agents_token(two_agents: Settings):
    with running(two_agents) as client:
        tokens = {name: (two_agents.home / "run" / "tokens" / name).read_text().strip() for name in ("ada", "bob")}
        ada = {"authorization": f"Bearer {tokens['ada']}"}

        assert client.post("/v1/search", json={"query": "password", "agent": "ada"}).status_code == 401
        assert client.post("/v1/get", json={"path": "memory/note.md"}).headers["www-authenticate"] == "Bearer"
        assert client.get("/v1/status").status_code == 401
        assert client.get("/metrics").status_code == 401

        own = client.post("/v1/search", json={"query": "password card"}, headers=ada).json()
        assert ["of ada" in hit["snippet"] for hit in own["results"]] == [True]
        refusals = []
        for agent in ("bob", "nobody"):
            foreign = client.post("/v1/search", json={"query": "password", "agent": agent}, headers=ada)
            assert foreign.status_code == 403
            refusals.append(foreign.json())
        assert refusals[0] == refusals[1], "it does not tell which agents there are"
        assert client.get("/v1/status", params={"agent": "bob"}, headers=ada).status_code == 403
        bobs = str(two_agents.agents[1].workspace / "memory" / "note.md")
        assert client.post("/v1/get", json={"path": bobs}, headers=ada).json()["text"] == ""
        assert [agent["agent"] for agent in client.get("/v1/status", headers=ada).json()["agents"]] == ["ada"]
        assert 'agent="bob"' not in client.get("/metrics", headers=ada).text
        for page in ("/", "/docs", "/readyz", "/openapi.json"):
            answer = client.get(page)
            assert answer.status_code == 200
            assert "bob" not in answer.text


def test_the_token_for_metrics_opens_everybodys_numbers_and_nothing_else(two_agents: Settings):
    with running(two_agents) as client:
        file = two_agents.home / "run" / "metrics-token"
        assert file.stat().st_mode & 0o777 == 0o600
        collector = {"authorization": f"Bearer {file.read_text().strip()}"}
        text = client.get("/metrics", headers=collector).text
        assert 'recalld_chunks{agent="ada"}' in text
        assert 'recalld_chunks{agent="bob"}' in text
        assert client.post("/v1/search", json={"query": "x"}, headers=collector).status_code == 401
        assert client.get("/v1/status", headers=collector).status_code == 401


def test_beyond_loopback_nothing_listens_without_tokens(settings: Settings):
    service = settings.service.model_copy(update={"host": "0.0.0.0", "port": 0})
    with pytest.raises(UserError, match=r"refusing to listen on 0\.0\.0\.0 without tokens"):
        serve(settings.model_copy(update={"service": service}), QuietHealth())


def test_a_port_in_use_is_one_sentence(settings: Settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = settings.service.model_copy(update={"port": port})
        with pytest.raises(UserError, match=rf"port {port} of 127\.0\.0\.1 is in use.*--port"):
            serve(settings.model_copy(update={"service": service}), QuietHealth())


def test_generations_flip_under_load_without_a_failed_search(settings: Settings, notes: Path, service: httpx.Client):
    writer = writer_of(settings)
    stop = threading.Event()
    answers: list[dict] = []

    def ask() -> None:
        with httpx.Client(base_url=service.base_url, timeout=60) as client:
            while not stop.is_set():
                answers.append(search(client, "dentist appointment"))

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask) for _ in range(3)]
        agent = settings.agent("main")
        files = AgentFiles(agent)
        provider = choose_provider(agent, settings.credentials).provider
        description = writer.open_reader().meta("identity")
        digest = writer.open_reader().meta("fingerprint")
        for _ in range(6):
            writer.begin(Fingerprint(digest, description), force=True)
            [store, *_] = writer.open_writer(Fingerprint(digest, description))
            for key in files.scan().documents:
                write_document(store, files, key, provider)
            assert writer.complete(digest)
            seen = len(answers)
            wait_until(lambda seen=seen: len(answers) > seen + 5)
        writer.sweep(older_than_seconds=0)
        stop.set()
        for one in asking:
            one.result(60)

    assert len(answers) > 30
    assert all(answer["results"][0]["path"] == "memory/friday.md" for answer in answers)
    assert all(answer["mode"] == "hybrid" and not answer.get("error") for answer in answers)


def test_however_many_ask_for_a_deep_status_one_is_made_at_a_time_and_searches_go_on(
    service: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    running_now, most, go_on = [0], [0], threading.Event()

    def slow(_reader: SqliteReader) -> list[str]:
        running_now[0] += 1
        most[0] = max(most[0], running_now[0])
        go_on.wait(60)
        running_now[0] -= 1
        return []

    monkeypatch.setattr(SqliteReader, "check", slow)
    with ThreadPoolExecutor(60) as askers:
        asked = [
            askers.submit(httpx.get, f"{service.base_url}/v1/status", params={"deep": True}, timeout=60)
            for _ in range(60)
        ]
        wait_until(lambda: running_now[0])
        for _ in range(5):
            assert search(service, "dentist appointment")["results"]
        assert service.get("/v1/status").json()["agents"][0].get("integrity") is None
        go_on.set()
        assert all(one.result().json()["agents"][0]["integrity"] == [] for one in asked)
    assert most == [1]


def test_an_index_too_large_to_be_checked_in_time_is_said_and_is_no_damage(
    service: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    def unfinished(_reader: SqliteReader) -> list[str]:
        raise CheckUnfinished("the index was not looked at whole: that takes longer than 120 s")

    monkeypatch.setattr(SqliteReader, "check", unfinished)
    status = service.get("/v1/status", params={"deep": True}).json()["agents"][0]
    assert (status["ok"], status.get("integrity")) == (True, None)
    assert "120 s" in status["notes"][-1]
