"""The manager behind every door."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memory.search.manager import SearchManager, get_search_manager
from memory.search.resources import SearchResources
from memory.search.tools import call_tool
from memory.status.run_files import WATCH_STATE_PATH, this_process, write_derived
from schemas.conditions import ConditionCode
from schemas.errors import BrokerUnavailable, Transient
from schemas.ports import Event, Pending
from schemas.search import SearchRequest
from schemas.settings import Settings
from tests.quiet_board import QuietBoard
from tests.waiting import wait_until
from tests.without_fts5 import without_fts5
from tests.written_index import write_index

DENTIST = "# Friday\n\nThe dentist appointment moved to nine.\n"


class HealthStore(QuietBoard):
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


@pytest.fixture
def resources(settings: Settings) -> Iterator[SearchResources]:
    shared = SearchResources(settings, model_wait_seconds=5)
    yield shared
    shared.close()


@contextmanager
def asked(settings: Settings) -> Iterator[SearchManager]:
    """A manager of its own, beside an empty queue."""
    with_resources = SearchResources(settings, model_wait_seconds=5)
    made, error = get_search_manager(settings, "main", resources=with_resources, pending=HealthStore(Pending()))
    assert isinstance(made, SearchManager), error
    try:
        yield made
    finally:
        made.close()
        with_resources.close()


def test_until_an_index_of_another_embedding_is_there_the_old_one_is_asked_in_its_own(
    settings: Settings, resources: SearchResources, notes: Path
):
    write_index(settings)
    changed = settings.agents[0].model_copy(update={"output_dimensionality": 32})
    manager = SearchManager(settings.model_copy(update={"agents": (changed,)}), changed, resources=resources)
    try:
        answer = manager.search(SearchRequest(query="dentist appointment"))
        assert (answer.mode, answer.degraded) == ("hybrid", ())
        assert answer.results[0].vector_score is not None
        status = manager.status()
        assert (status.mode, status.degraded, status.index.identity_matches) == ("hybrid", (), False)
        assert manager.provider is not None
        assert '"dimensions":32' in manager.provider.identity
    finally:
        manager.close()


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
    settings: Settings, resources: SearchResources, notes: Path, setting: str, session_key: str | None, cited: bool
):
    write_index(settings)
    agent = settings.agents[0].model_copy(update={"citations": setting})
    manager, _ = get_search_manager(settings.model_copy(update={"agents": (agent,)}), "main", resources=resources)

    answer = manager.search(SearchRequest(query="dentist", session_key=session_key))
    assert answer.citations is cited
    assert (answer.results[0].citation is not None) is cited
    shown = asyncio.run(call_tool(manager, "memory_search", {"query": "dentist"}, session_key=session_key))
    assert ("\n\nSource: memory/2026-11-20.md#L1-L3" in shown["results"][0]["snippet"]) is cited
    manager.close()


def test_what_is_behind_is_said(settings: Settings, resources: SearchResources, notes: Path):
    write_index(settings, vectors=False)
    board = HealthStore(Pending(documents=3, oldest_at=time.time() - 5))
    manager, _ = get_search_manager(settings, "main", resources=resources, pending=board)

    answer = manager.search(SearchRequest(query="dentist"))
    assert answer.pending.documents == 3
    assert answer.pending.oldest_seconds == pytest.approx(5, abs=2)
    assert answer.pending.vectors == 3

    board.state = None
    unknown = manager.search(SearchRequest(query="dentist"))
    assert unknown.results
    assert ConditionCode.QUEUE_UNREACHABLE in [one.code for one in unknown.conditions]
    assert not unknown.fallback
    manager.close()


def test_a_search_waits_for_pending_documents_when_asked_to(settings: Settings, resources: SearchResources, notes):
    write_index(settings)
    board = HealthStore(Pending(documents=1))
    manager, _ = get_search_manager(settings, "main", resources=resources, pending=board)
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(manager.search(SearchRequest(query="dentist", wait_ms=30_000)))
    )
    asking.start()
    assert not answers
    board.state = Pending()
    asking.join(60)

    assert answers[0].pending.documents == 0
    late = HealthStore(Pending(documents=1))
    impatient, _ = get_search_manager(settings, "main", resources=resources, pending=late)
    assert impatient.search(SearchRequest(query="dentist", wait_ms=30)).pending.documents == 1
    manager.close()
    impatient.close()


def test_producers_are_asked_only_while_they_hold_something_back(settings: Settings, resources: SearchResources, notes):
    class Inbox:
        asked = 0

        def ask(self, event: Event, timeout_seconds: float) -> bool:
            assert event == Event(kind="flush", agent="main")
            self.asked += 1
            board.state = Pending()
            return True

    write_index(settings)
    write_derived(settings.home / WATCH_STATE_PATH, {"main": {"mode": "events", **this_process()}})
    board, inbox = HealthStore(Pending()), Inbox()
    manager, _ = get_search_manager(settings, "main", resources=resources, pending=board, inbox=inbox)
    for state, wait_ms, asked in (
        (Pending(), None, 0),
        (Pending(held_back=True), 0, 0),
        (Pending(held_back=True), None, 1),
        (Pending(documents=1), None, 2),
        (Pending(), 1_000, 3),
    ):
        board.state = state
        assert manager.search(SearchRequest(query="dentist", wait_ms=wait_ms)).results
        assert inbox.asked == asked
    manager.close()


def test_a_dead_provider_leaves_keywords_and_says_so(settings: Settings, notes: Path, monkeypatch):
    write_index(settings)

    def down(self, text):
        raise Transient("the endpoint refused the connection")

    monkeypatch.setattr("memory.embedding.providers.stub.StubProvider.embed_query", down)
    with_resources = SearchResources(settings, model_wait_seconds=5)
    manager, _ = get_search_manager(settings, "main", resources=with_resources)

    answer = manager.search(SearchRequest(query="dentist"))
    assert [hit.path for hit in answer.results] == ["memory/2026-11-20.md"]
    assert (answer.mode, answer.fallback) == ("keyword", True)
    assert answer.fallback_reason == "the endpoint refused the connection: keywords only"
    assert answer.degraded == (answer.fallback_reason,)
    probe = manager.probe_embedding_availability()
    assert (probe.available, probe.reason) == (False, "the endpoint refused the connection")
    manager.close()
    with_resources.close()


def test_without_fts5_vectors_answer_and_say_so_until_it_is_back(settings: Settings, notes: Path):
    write_index(settings)
    with without_fts5():
        with asked(settings) as manager:
            answer, status = manager.search(SearchRequest(query="dentist appointment")), manager.status()
        assert answer.results[0].path == "memory/2026-11-20.md"
        assert answer.results[0].text_score is None
        assert (answer.mode, answer.fallback) == ("vector", True)
        assert [one.code for one in answer.conditions] == [ConditionCode.VECTORS_ONLY]
        assert (status.ok, status.mode, status.degraded) == (False, "vector", answer.degraded)
        assert status.conditions == answer.conditions
        assert not status.text_search.available
        assert [trouble.part for trouble in status.troubles] == ["keywords"]
    with asked(settings) as manager:
        again, status = manager.search(SearchRequest(query="dentist appointment")), manager.status()
    assert (again.mode, again.degraded) == ("hybrid", ())
    assert (status.ok, status.mode, status.degraded) == (True, "hybrid", ())


def test_at_the_deadline_a_search_shows_what_keywords_have_found(
    settings: Settings, resources: SearchResources, notes, monkeypatch
):
    write_index(settings)
    agent = settings.agents[0]
    quick = agent.model_copy(update={"limits": agent.limits.model_copy(update={"timeout_ms": 1000})})
    hurried = settings.model_copy(update={"agents": (quick,)})
    release = threading.Event()
    monkeypatch.setattr("memory.store.sqlite.reader.SqliteReader.search_vectors", lambda *_: release.wait(60) and [])
    manager, _ = get_search_manager(hurried, "main", resources=resources)

    answer = manager.search(SearchRequest(query="dentist"))
    release.set()
    assert [hit.path for hit in answer.results] == ["memory/2026-11-20.md"]
    assert (answer.mode, answer.fallback) == ("keyword", True)
    assert answer.degraded == ("the search did not finish within 1 s: keywords only",)
    assert answer.took_ms < 5000
    manager.close()


def test_a_broker_that_hangs_keeps_no_search_from_its_deadline(settings: Settings, resources: SearchResources, notes):
    class Hanging(QuietBoard):
        release = threading.Event()

        def pending(self, agent: str) -> Pending | None:
            self.release.wait(60)
            return None

    write_index(settings)
    agent = settings.agents[0]
    quick = agent.model_copy(update={"limits": agent.limits.model_copy(update={"timeout_ms": 200})})
    board = Hanging()
    hurried = settings.model_copy(update={"agents": (quick,)})
    manager, _ = get_search_manager(hurried, "main", resources=resources, pending=board)

    answer = manager.search(SearchRequest(query="dentist"))
    board.release.set()
    assert [one.code for one in answer.conditions] == [ConditionCode.SEARCH_LATE]
    assert answer.took_ms < 5000
    manager.close()


def test_a_search_after_the_end_of_its_service_is_an_answer(settings: Settings, notes: Path):
    write_index(settings)
    resources = SearchResources(settings)
    manager, _ = get_search_manager(settings, "main", resources=resources)
    resources.close()
    answer = manager.search(SearchRequest(query="dentist"))
    assert (answer.results, answer.unavailable) == ((), True)
    manager.close()


def test_waiting_for_pending_documents_leaves_time_to_search(settings: Settings, resources: SearchResources, notes):
    write_index(settings)
    agent = settings.agents[0]
    quick = agent.model_copy(update={"limits": agent.limits.model_copy(update={"timeout_ms": 3000})})
    hurried = settings.model_copy(update={"agents": (quick,)})
    manager, _ = get_search_manager(hurried, "main", resources=resources, pending=HealthStore(Pending(documents=1)))

    answer = manager.search(SearchRequest(query="dentist", wait_ms=60_000))
    assert [hit.path for hit in answer.results] == ["memory/2026-11-20.md"]
    assert answer.degraded == ()
    manager.close()


def test_no_manager_comes_with_a_sentence(settings: Settings):
    manager, error = get_search_manager(settings, "nobody")
    assert manager is None
    assert error == "no agent is called 'nobody' (known: main)"

    off = settings.model_copy(update={"agents": (settings.agents[0].model_copy(update={"enabled": False}),)})
    assert get_search_manager(off, "main") == (None, "the memory of agent 'main' is switched off (enabled = false)")


def test_a_manager_of_its_own_leaves_no_thread_behind(settings: Settings, notes: Path):
    write_index(settings)
    before = set(threading.enumerate())
    manager, _ = get_search_manager(settings, "main")
    manager.search(SearchRequest(query="dentist"))
    manager.close()

    wait_until(lambda: set(threading.enumerate()) <= before)


def test_sync_leaves_a_request_or_says_why_not(settings: Settings, resources: SearchResources):
    class Inbox:
        events: list[Event]
        down = False

        def __init__(self) -> None:
            self.events = []

        def put(self, event: Event) -> None:
            if self.down:
                raise BrokerUnavailable("the queue does not answer")
            self.events.append(event)

        def take(self, timeout_seconds: float):
            return None

    inbox = Inbox()
    manager, _ = get_search_manager(settings, "main", resources=resources, inbox=inbox)
    assert manager.sync() is None
    assert inbox.events == [Event(kind="reconcile", agent="main")]
    inbox.down = True
    assert manager.sync() == "the queue does not answer"
    manager.close()
    alone, _ = get_search_manager(settings, "main", resources=resources)
    assert "recalld index" in alone.sync()
    alone.close()
