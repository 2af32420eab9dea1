"""The manager behind every door."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from memory.search.freshness import Freshness
from memory.search.manager import SearchManager, get_search_manager
from memory.search.resources import SearchResources
from memory.search.tool_definitions import call_tool
from memory.status.run_files import WATCH_STATE_PATH, this_process, write_derived
from schemas.conditions import ConditionCode
from schemas.errors import BrokerUnavailable
from schemas.ports import Event, Pending, PendingReader
from schemas.search import SearchRequest
from schemas.settings import Settings
from schemas.status import Availability
from tests.quiet_health import QuietHealth
from tests.without_fts5 import without_fts5
from tests.written_index import with_agent, write_index

DENTIST = "# Friday\n\nThe dentist appointment moved to nine.\n"


class ScriptedHealth(QuietHealth):
    """A queue that says what a test tells it to."""

    def __init__(self, pending: Pending | None = None) -> None:
        self.state = pending

    def pending(self, agent: str) -> Pending | None:
        return self.state


@pytest.fixture
def notes(workspace: Path) -> Path:
    (workspace / "MEMORY.md").write_text("Long-term: the server is called Basalt.\n", "utf-8")
    (workspace / "memory" / "2026-11-20.md").write_text(DENTIST, "utf-8")
    (workspace / "memory" / "zh.md").write_text("我们决定周五迁移数据库。\n", "utf-8")
    return workspace


class Opening(Protocol):
    def __call__(
        self, pending: PendingReader | None = None, inbox: Any = None, *, timeout_ms: int = 15_000, **changes: object
    ) -> SearchManager: ...


@pytest.fixture
def opened(settings: Settings, notes: Path) -> Iterator[Opening]:
    """Opens managers of an agent with such changes of its settings, and closes them."""
    write_index(settings)
    with ExitStack() as stack:

        def make(
            pending: PendingReader | None = None, inbox: Any = None, *, timeout_ms: int = 15_000, **changes: object
        ) -> SearchManager:
            agent = settings.agents[0]
            limits = agent.limits.model_copy(update={"timeout_ms": timeout_ms})
            agent = agent.model_copy(update={"limits": limits, **changes})
            resources = SearchResources(settings, model_wait_seconds=5)
            stack.callback(resources.close)
            changed = settings.model_copy(update={"agents": (agent,)})
            made, error = get_search_manager(changed, "main", resources=resources, pending=pending, inbox=inbox)
            assert isinstance(made, SearchManager), error
            stack.callback(made.close)
            return made

        yield make


def test_until_there_is_an_index_of_another_embedding_the_old_one_is_asked(opened: Opening):
    manager = opened(output_dimensionality=32)
    answer = manager.search(SearchRequest(query="dentist appointment"))
    assert (answer.mode, answer.degraded) == ("hybrid", ())
    assert answer.results[0].vector_score is not None
    status = manager.status()
    assert (status.mode, status.degraded, status.index.identity_matches) == ("hybrid", (), False)
    assert '"dimensions":32' in manager.embedder.documents.identity


@pytest.mark.parametrize(
    ("setting", "session_key", "cited"),
    [
        ("auto", None, True),
        ("auto", "agent:main:main", True),
        ("auto", "agent:main:slack:channel:1", False),
        ("auto", "agent:main:Telegram:Group:1", False),
        ("on", "agent:main:telegram:group:1", True),
        ("off", None, False),
    ],
)
def test_citations_are_on_or_off_or_for_private_sessions(
    opened: Opening, setting: str, session_key: str | None, cited: bool
):
    manager = opened(citations=setting)
    answer = manager.search(SearchRequest(query="dentist", session_key=session_key))
    assert answer.citations is cited
    assert (answer.results[0].citation is not None) is cited
    shown = asyncio.run(call_tool(manager, "memory_search", {"query": "dentist"}, session_key=session_key))
    assert ("\n\nSource: memory/2026-11-20.md#L1-L3" in shown["results"][0]["snippet"]) is cited


def test_what_is_behind_is_said(settings: Settings, opened: Opening):
    (settings.agents[0].workspace / "memory" / "new.md").write_text("The dentist wrote.\n", "utf-8")
    write_index(settings, vectors=False)
    health = ScriptedHealth(Pending(documents=3, oldest_at=time.time() - 500))
    manager = opened(health)
    pending = manager.search(SearchRequest(query="dentist", wait_ms=0)).pending
    assert (pending.documents, pending.vectors) == (3, 1)
    assert pending.oldest_seconds == pytest.approx(500, abs=120)

    health.state = None
    unknown = manager.search(SearchRequest(query="dentist"))
    assert unknown.results
    assert ConditionCode.QUEUE_UNREACHABLE in [one.code for one in unknown.conditions]
    assert not unknown.fallback


def test_no_vector_is_to_come_where_the_settings_ask_for_none(settings: Settings, notes: Path):
    store = write_index(settings, vectors=False)
    agent = settings.agents[0]
    for provider, pending in (("stub", 3), ("none", 0)):
        asked = agent.model_copy(update={"provider": provider})
        assert Freshness(settings, asked, pending=None, inbox=None).vectors_pending(store, "revision") == pending


def test_producers_are_asked_only_while_they_hold_something_back(settings: Settings, opened: Opening):
    class Inbox:
        asked = 0

        def ask(self, event: Event, timeout_seconds: float) -> bool:
            assert event == Event(kind="flush", agent="main")
            self.asked += 1
            health.state = Pending()
            return True

    write_derived(settings.home / WATCH_STATE_PATH, {"main": {"mode": "events", **this_process()}})
    health, inbox = ScriptedHealth(Pending()), Inbox()
    manager = opened(health, inbox)
    for state, wait_ms, asked in (
        (Pending(), None, 0),
        (Pending(held_back=True), 0, 0),
        (Pending(held_back=True), None, 1),
        (Pending(documents=1), None, 2),
        (Pending(), 1_000, 3),
    ):
        health.state = state
        assert manager.search(SearchRequest(query="dentist", wait_ms=wait_ms)).results
        assert inbox.asked == asked


def test_without_fts5_vectors_answer_and_say_so_until_it_is_back(opened: Opening):
    with without_fts5():
        manager = opened()
        answer, status = manager.search(SearchRequest(query="dentist appointment")), manager.status()
        manager.close()
        assert answer.results[0].path == "memory/2026-11-20.md"
        assert answer.results[0].text_score is None
        assert (answer.mode, answer.fallback) == ("vector", True)
        assert [one.code for one in answer.conditions] == [ConditionCode.VECTORS_ONLY]
        assert (status.ok, status.mode, status.degraded) == (False, "vector", answer.degraded)
        assert status.conditions == answer.conditions
        assert not status.text_search.available
        assert [trouble.part for trouble in status.troubles] == ["keywords"]
    manager = opened(ScriptedHealth(Pending()))
    again, status = manager.search(SearchRequest(query="dentist appointment")), manager.status()
    assert (again.mode, again.degraded) == ("hybrid", ())
    assert (status.ok, status.mode, status.degraded) == (True, "hybrid", ())


class Hanging(QuietHealth):
    """A broker that does not answer while a test runs."""

    def __init__(self, release: threading.Event) -> None:
        self.release = release

    def pending(self, agent: str) -> Pending | None:
        self.release.wait(60)
        return None


def test_a_broker_that_hangs_keeps_no_search_from_its_deadline(opened: Opening):
    release = threading.Event()
    answer = opened(Hanging(release), timeout_ms=200).search(SearchRequest(query="dentist"))
    assert not release.is_set()
    release.set()
    assert [one.code for one in answer.conditions] == [ConditionCode.SEARCH_LATE]


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward, so that a limit passes without waiting."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped

    def skip(self, seconds: float) -> None:
        self.skipped += seconds


def test_at_the_deadline_a_search_shows_what_keywords_have_found(opened: Opening, monkeypatch: pytest.MonkeyPatch):
    release, manager = threading.Event(), opened(timeout_ms=60_000)
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SkippingLoop)

        def hanging(*_: object) -> dict[int, float]:
            # Keywords have been found by now: their candidates are scored.
            loop.call_soon_threadsafe(loop.skip, 60)
            release.wait(60)
            return {}

        monkeypatch.setattr("memory.store.sqlite.reader.SqliteReader.vector_scores", hanging)
        answer = runner.run(manager.searched(SearchRequest(query="dentist", wait_ms=0)))
        assert not release.is_set()
        release.set()
    assert [hit.path for hit in answer.results] == ["memory/2026-11-20.md"]
    assert (answer.mode, answer.fallback) == ("keyword", True)
    assert [one.code for one in answer.conditions] == [ConditionCode.SEARCH_LATE_KEYWORDS]


@pytest.mark.long
def test_waiting_for_pending_documents_leaves_time_to_search(opened: Opening):
    manager = opened(ScriptedHealth(Pending(documents=1)), timeout_ms=16_000)
    answer = manager.search(SearchRequest(query="dentist", wait_ms=60_000))
    assert [hit.path for hit in answer.results] == ["memory/2026-11-20.md"]
    assert answer.degraded == ()


def test_no_manager_comes_with_a_sentence(settings: Settings):
    manager, error = get_search_manager(settings, "nobody")
    assert manager is None
    assert "'nobody' (known: main)" in str(error)
    manager, error = get_search_manager(with_agent(settings, enabled=False), "main")
    assert (manager, "enabled = false" in str(error)) == (None, True)


def test_a_manager_is_synchronised_and_probed(opened: Opening):
    class Inbox:
        def __init__(self) -> None:
            self.events: list[Event] = []

        def put(self, event: Event) -> None:
            if self.events:
                raise BrokerUnavailable("no answer")
            self.events.append(event)

    inbox = Inbox()
    manager = opened(inbox=inbox)
    assert (manager.sync(), manager.sync()) == (None, "no answer")
    assert inbox.events == [Event(kind="reconcile", agent="main")]
    assert "recalld index" in str(opened().sync())
    assert manager.probe_embedding_availability() == manager.probe_vector_availability() == Availability(available=True)
    probe = opened(provider="none").probe_embedding_availability()
    assert (probe.available, bool(probe.reason)) == (False, True)
