"""The tools' arguments and answers as agents of the reference system know them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from memory.search.tools import GET, SEARCH, call_tool
from schemas.ports import Pending
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.quiet_board import QuietBoard
from tests.written_index import write_index

WIKI = {"corpus": "wiki", "outcome": "not-registered"}


@pytest.fixture
def indexed(settings: Settings, workspace: Path) -> Settings:
    (workspace / "memory" / "tools.md").write_text("  * gateway: port 7373\n    * spare: port 7374\n", "utf-8")
    (workspace / "memory" / "long.md").write_text("".join(f"line {n}\n" for n in range(1, 301)), "utf-8")
    write_index(settings).close()
    return settings


@pytest.fixture
def manager(indexed: Settings) -> Iterator[SearchManager]:
    talks = str(indexed.agents[0].workspace / "talks")
    yield from opened(indexed, indexed.agents[0].model_copy(update={"sessions": (talks,)}))


@pytest.fixture
def notes_only(indexed: Settings) -> Iterator[SearchManager]:
    yield from opened(indexed, indexed.agents[0].model_copy(update={"sources": ("memory",)}))


def opened(settings: Settings, agent: Any, **more: Any) -> Iterator[SearchManager]:
    resources = SearchResources(settings, model_wait_seconds=5)
    made = SearchManager(settings, agent, resources=resources, **more)
    yield made
    made.close()
    resources.close()


def call(manager: SearchManager, name: str, **arguments: Any) -> dict[str, Any]:
    return asyncio.run(call_tool(manager, name, arguments, session_key=None))


def test_an_answer_has_the_known_fields(manager: SearchManager) -> None:
    answer = call(manager, SEARCH, query="gateway port")

    assert answer.keys() == {
        *("results", "provider", "model", "mode", "fallback", "citations"),
        *("degraded", "conditions", "pending", "tookMs"),
    }
    assert {*answer["results"][0]} >= {"path", "startLine", "endLine", "score", "snippet", "source", "citation"}


def test_transcripts_that_are_not_searched_are_said_to_be_unavailable(notes_only: SearchManager) -> None:
    answer = call(notes_only, SEARCH, query="gateway port", corpus="sessions")

    assert (answer["results"], answer["disabled"], answer["unavailable"]) == ([], True, True)
    assert answer["error"]
    assert answer["action"]
    assert call(notes_only, SEARCH, query="gateway port", corpus="all")["results"]


def test_sources_and_corpus_give_the_narrower_one(manager: SearchManager) -> None:
    def found(**asked: Any) -> tuple[bool, bool]:
        answer = manager.search(SearchRequest.model_validate({"query": "gateway port", **asked}))
        assert answer.unavailable is None
        return bool(answer.results), answer.warning is not None

    assert found(corpus="memory", sources=["memory", "sessions"]) == (True, False)
    assert found(corpus="sessions", sources=["memory", "sessions"]) == (False, False)
    assert found(corpus="all", sources=["sessions"]) == (False, False)
    for corpus, sources in (("memory", ["sessions"]), ("sessions", ["memory"]), ("wiki", ["memory"])):
        assert found(corpus=corpus, sources=sources) == (False, True)


def test_a_read_says_how_it_went(manager: SearchManager) -> None:
    read = call(manager, GET, path="memory/long.md")
    assert (read["status"], read["from"], read["lines"], read["truncated"], read["nextFrom"]) == (
        "ok",
        1,
        120,
        True,
        121,
    )
    beyond = call(manager, GET, path="memory/tools.md", **{"from": 500})
    assert (beyond["status"], beyond["text"], beyond["truncated"]) == ("ok", "", False)
    missing = call(manager, GET, path="memory/2026-03-01.md")
    assert (missing["status"], missing["path"], missing["text"]) == ("not_found", "memory/2026-03-01.md", "")
    assert call(manager, GET, path="../outside.md")["status"] == "not_found"


def test_what_cannot_be_read_is_an_error_of_the_read_alone(manager: SearchManager, workspace: Path) -> None:
    (workspace / "talks").mkdir()
    (workspace / "talks" / "broken.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd and no frame")

    read = call(manager, GET, path="sessions/broken.jsonl.zst", corpus="all")

    assert (read["status"], read["text"], read["unavailable"]) == ("error", "", True)
    assert read["corpora"] == [{"corpus": "memory", "outcome": "unavailable", "error": read["error"]}, WIKI]
    assert "disabled" not in read


class _Behind(QuietBoard):
    """Says that so many documents wait."""

    def __init__(self, documents: int) -> None:
        self._documents = documents

    def pending(self, agent: str) -> Pending | None:
        return Pending(documents=self._documents, oldest_at=0.0 if self._documents else None)


@pytest.mark.parametrize(("documents", "stale"), [(2, True), (0, None)])
def test_an_answer_is_stale_while_changed_documents_wait(indexed: Settings, documents: int, stale: bool | None) -> None:
    for manager in opened(indexed, indexed.agents[0], pending=_Behind(documents)):
        answer = manager.search(SearchRequest(query="gateway port", wait_ms=0))
        assert (answer.stale, answer.disabled, bool(answer.results)) == (stale, None, True)
