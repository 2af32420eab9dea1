"""Further requests of the page besides search, get and status, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.service.overview import MAX_DEAD_LETTERS
from memory.store.writer import Store
from schemas.conditions import Condition, ConditionCode
from schemas.documents import DocumentKey
from schemas.ports import Pending
from schemas.settings import Settings
from schemas.status import BrokerState, EndpointCondition, EndpointStatus, ProcessState
from tests.quiet_health import QuietHealth
from tests.serving import running
from tests.storing import document, key
from tests.written_index import write_index


@pytest.fixture
def store(settings: Settings, workspace: Path) -> Iterator[Store]:
    (workspace / "memory" / "2026-01-16.md").write_text("The gateway failed.\n", "utf-8")
    (workspace / "memory" / "topic.md").write_text("About gateways.\n", "utf-8")
    written = write_index(settings)
    yield written
    written.close()


def sign(role: str, *, silent_seconds: float) -> ProcessState:
    """A process of another machine."""
    now = time.time()
    return ProcessState(
        role=role,
        host="elsewhere",
        pid=7,
        started_at=now - 600,
        heard_at=now - silent_seconds,
        condition="silent" if silent_seconds > 10 else "well",
        code=ConditionCode.PROCESS_SILENT if silent_seconds > 10 else None,
    )


def test_the_queue_says_what_waits_and_what_is_there(settings: Settings, store: Store) -> None:
    class ScriptedHealth(QuietHealth):
        def pending(self, agent: str) -> Pending | None:
            return Pending(documents=3, running=1, oldest_at=time.time() - 7)

        def endpoint(self, account: str, model: str) -> EndpointStatus | None:
            return EndpointStatus(EndpointCondition.COOLING_DOWN, 123.0)

        def conditions(self, agent: str) -> tuple[Condition, ...]:
            return (Condition(ConditionCode.FOLDER_UNLISTABLE, "/ws", 5.0, {"error": "cannot be read"}),)

    with running(settings, ScriptedHealth()) as client:
        answer = client.get("/v1/queue").json()
    [agent] = answer["agents"]
    assert abs(answer["at"] - time.time()) < 30
    assert 6 < agent["queue"].pop("oldestSeconds") < 30
    assert agent["queue"] == {"reachable": True, "pending": 3, "running": 1}
    counts = agent["counts"]
    assert (counts["files"], counts["chunks"], counts["vectorsReady"]) == (2, 2, 2)
    assert counts["lastCommitAt"] <= time.time()
    assert (agent["provider"], agent["model"]) == ("stub", "hashed-words-64")
    assert agent["endpoint"] == {"condition": "cooling down", "until": 123.0}
    [trouble] = agent["troubles"]
    assert (trouble["code"], trouble["part"], trouble["since"]) == ("folder_unlistable", "files", 5.0)


class SilentWatcher(QuietHealth):
    def processes(self) -> tuple[ProcessState, ...]:
        return (sign("watch", silent_seconds=60.0), sign("serve", silent_seconds=0.0))


def test_processes_that_are_not_well_are_everybodys_trouble(settings: Settings, store: Store) -> None:
    with running(settings, SilentWatcher()) as client:
        [agent] = client.get("/v1/queue").json()["agents"]
        answer = client.post("/v1/search", json={"query": "dentist", "waitMs": 0}).json()
    [trouble] = agent["troubles"]
    assert trouble["part"] == "watch"
    assert trouble["code"] == "process_silent"
    assert answer["degraded"] == [trouble["message"]]
    assert [(one["code"], one["subject"]) for one in answer["conditions"]] == [("process_silent", "watch")]
    assert answer["fallback"] is False


def test_a_queue_that_takes_nothing_new_is_reported_and_no_process_called_silent(
    settings: Settings, store: Store
) -> None:
    class ScriptedHealth(SilentWatcher):
        def broker(self) -> BrokerState:
            full = {"warning": "its memory is full", "writable": False}
            return BrokerState(reachable=True, private=False, server="valkey 9", persistence="none", **full)

    with running(settings, ScriptedHealth()) as client:
        [agent] = client.get("/v1/queue").json()["agents"]
        answer = client.post("/v1/search", json={"query": "dentist", "waitMs": 0}).json()
        page = client.get("/metrics").text
    [trouble] = agent["troubles"]
    assert (trouble["part"], trouble["code"]) == ("broker", ConditionCode.BROKER_READ_ONLY)
    assert [one["code"] for one in answer["conditions"]] == [ConditionCode.CHANGES_UNSEEN]
    assert "recalld_broker_up 0.0" in page


def test_a_commit_changes_the_revision_and_the_counts_and_nothing_else_does(settings: Settings, store: Store) -> None:
    with running(settings) as client:

        def seen() -> tuple[str, int, int]:
            [agent] = client.get("/v1/queue").json()["agents"]
            return agent["revision"], agent["counts"]["files"], agent["deadLetters"]

        before = seen()
        assert seen() == before
        assert before[0].isalnum()
        store.write([document(key("memory/new.md"), "new")])
        after = seen()
        assert (after[1:], after[0] != before[0]) == ((3, 0), True)
        store.add_dead_letter(key("memory/bad.md"), reason="too large", error_class="TooLarge")
        assert (seen()[2], seen()[0] != after[0]) == (1, True)


def test_an_index_that_is_missing_or_damaged_and_a_queue_that_is_away_are_answers(settings: Settings) -> None:
    class Away(QuietHealth):
        def pending(self, agent: str) -> Pending | None:
            return None

    with running(settings, Away()) as client:
        [agent] = client.get("/v1/queue").json()["agents"]
        assert agent["queue"]["reachable"] is False
        assert "counts" not in agent
        assert "error" not in agent
        assert client.get("/v1/timeline").json() == {"agent": "main", "years": [], "days": []}
        assert client.get("/v1/dead-letters").json() == {"total": 0, "deadLetters": []}
    write_index(settings).close()
    folder = settings.indexes_path / "main"
    (folder / (folder / "CURRENT").read_text().strip()).write_bytes(b"no database" * 5000)
    with running(settings) as client:
        [agent] = client.get("/v1/queue").json()["agents"]
        assert agent["error"]
        assert [client.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        assert client.post("/v1/search", json={"query": "dentist"}).json()["unavailable"] is True
        assert client.get("/v1/timeline").json()["error"] == agent["error"]
        assert client.get("/v1/dead-letters").json()["total"] == 0


def test_dead_letters_come_newest_first_and_not_without_end(settings: Settings, store: Store) -> None:
    for number in range(MAX_DEAD_LETTERS + 5):
        store.add_dead_letter(DocumentKey("memory", f"memory/{number}.md"), reason="bad", error_class="Permanent")
    with running(settings) as client:
        answer = client.get("/v1/dead-letters").json()
    assert answer["total"] == MAX_DEAD_LETTERS + 5
    times = [letter["lastAt"] for letter in answer["deadLetters"]]
    assert len(times) == MAX_DEAD_LETTERS
    assert times == sorted(times, reverse=True)
    assert answer["deadLetters"][0]["agent"] == "main"
    assert answer["deadLetters"][0]["reason"] == "bad"


def test_the_timeline_follows_the_index(settings: Settings, store: Store) -> None:
    with running(settings) as client:
        first = client.get("/v1/timeline").json()
        assert first["years"] == [{"year": 2026, "days": 1, "notes": 1, "chunks": 1}]
        assert first["days"] == [
            {"date": "2026-01-16", "chunks": 1, "notes": [{"path": "memory/2026-01-16.md", "chunks": 1}]}
        ]
        store.write([document(key("memory/2024-02-29.md"), "one", "two")])
        again = client.get("/v1/timeline", params={"year": 2024}).json()
        assert [year["year"] for year in again["years"]] == [2024, 2026]
        assert again["days"][0]["chunks"] == 2
        assert client.get("/v1/timeline", params={"year": 0}).json()["error"].startswith("year must be")


def test_terms_are_what_a_query_looks_for(settings: Settings) -> None:
    with running(settings) as client:
        answer = client.post("/v1/terms", json={"query": "When did the deployments fail? 数据库"}).json()
        assert "数据" in answer["terms"]
        assert "据库" in answer["terms"]
        assert any("deployments".startswith(term) for term in answer["terms"])
        assert "the" not in answer["terms"]
        assert answer["forms"] == []
        forms = client.post("/v1/terms", json={"query": "Verwaltungen 数据库"}).json()["forms"]
        assert forms == ["verwa"]
        unknown = client.post("/v1/terms", json={"query": "x", "agent": "main"})
        assert (unknown.status_code, "agent" in unknown.json()["error"]) == (422, True)


def test_the_pages_files_are_served_by_kind_and_asked_for_again_only_when_changed(settings: Settings) -> None:
    kinds = {
        "/": "text/html; charset=utf-8",
        "/docs": "text/html; charset=utf-8",
        "/page/main.js": "text/javascript; charset=utf-8",
        "/page/base.css": "text/css; charset=utf-8",
        "/page/icon.svg": "image/svg+xml",
    }
    with running(settings) as client:
        for path, kind in kinds.items():
            first = client.get(path)
            assert (first.status_code, first.headers["content-type"]) == (200, kind)
            assert first.headers["cache-control"] == "no-cache"
            assert first.headers["x-content-type-options"] == "nosniff"
            assert "script-src 'self'" in first.headers["content-security-policy"]
            again = client.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
            assert (again.status_code, again.content) == (304, b"")
            assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200
            assert client.head(path).headers["content-length"] == str(len(first.content))
        for path in ("/page/none.js", "/page/", "/page/..%2fapp.py", "/page/../app.py", "/page/main.py"):
            missing = client.get(path)
            assert (missing.status_code, missing.json()) == (404, {"error": "Not Found"})
