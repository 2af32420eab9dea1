"""Neither keywords nor vectors: every door says that memory is unavailable and what to do, until one is back."""

from __future__ import annotations

from schemas.settings import Settings
from tests.daemon import recalld
from tests.mcp_clients import calling, found, over_http
from tests.serving import running, search
from tests.without_fts5 import without_fts5
from tests.written_index import write_index

WHY = "keywords cannot be searched: this SQLite has no FTS5"


def test_without_keywords_and_without_a_provider_every_door_says_so_and_what_to_do(settings: Settings) -> None:
    note = settings.agents[0].workspace / "MEMORY.md"
    note.write_text("The dentist appointment is on Friday.\n", "utf-8")
    write_index(settings)
    agent = settings.agents[0].model_copy(update={"provider": "none"})
    bare = settings.model_copy(update={"agents": (agent,), "provider": "none"})
    with without_fts5(), running(bare) as client:
        answers = [
            search(client, "dentist"),
            found(over_http(f"{client.base_url}/mcp", calling("memory_search", query="dentist"))),
        ]
        for answer in answers:
            assert (answer["results"], answer["disabled"], answer["unavailable"]) == ([], True, True)
            assert WHY in answer["error"]
            assert answer["action"]
        said = recalld("search", "dentist", home=settings.home)
        assert said.returncode == 1
        assert WHY in said.stderr
        assert "recalld status" in said.stderr
        status = client.get("/v1/status").json()["agents"][0]
        assert (status["ok"], status["mode"]) == (False, "none")
    with running(settings) as client:
        again = search(client, "dentist")
        assert (again["mode"], again.get("degraded", [])) == ("hybrid", [])
