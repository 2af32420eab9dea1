"""A backend and the own index behind it: every transition, by each call."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory.backends.backend import Backend, QueryRejected
from memory.backends.backend_fallback import BACKOFF_SECONDS, BackendSlots, FallbackMemory
from memory.search.searchable import SearchableMemory
from schemas.search import AlsoIn, GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, Settings
from schemas.status import Availability, BackendStatus
from tests.secret_samples import PASSWORD
from tests.waiting import wait_until

ASKED = SearchRequest(query="gateway")
PATH = GetRequest(path="MEMORY.md")


class Own(SearchableMemory):
    """The own index. `error` is what a search raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.made = 0

    def __call__(self) -> SearchableMemory:
        self.made += 1
        return self

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        if self.error is not None:
            raise self.error
        return SearchAnswer(provider="own")

    def read_file(self, request: GetRequest) -> GetAnswer:
        return GetAnswer(path=request.path, text="own")


SOME = SearchResult(path="MEMORY.md", start_line=1, end_line=1, score=0.5, snippet="words", source="memory")


class Primary(Backend):
    """A backend. `error` is what every call raises from now on."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.closed = 0

    def _told(self, answer: Any) -> Any:
        if self.error is not None:
            raise self.error
        return answer

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        return self._told(SearchAnswer(provider="primary", results=(SOME,)))  # type: ignore[no-any-return]

    def status(self) -> BackendStatus:
        return self._told(BackendStatus(backend="test"))  # type: ignore[no-any-return]

    def sync(self) -> str | None:
        return self._told(None)  # type: ignore[no-any-return]

    def probe_embedding_availability(self) -> Availability:
        return self._told(Availability(available=True))  # type: ignore[no-any-return]

    def probe_vector_availability(self) -> Availability:
        return self._told(Availability(available=True))  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed += 1
        self._told(None)


def agent_of(folder: Path, backend: str = "test", **more: Any) -> AgentSettings:
    (folder / "MEMORY.md").touch()
    return AgentSettings(id="main", workspace=folder, backend=backend, **more)


def asked(memory: FallbackMemory) -> tuple[str | None, bool, str | None]:
    answer = asyncio.run(memory.searched(ASKED))
    return answer.provider, answer.fallback, answer.fallback_reason


#: State of the memory before each call -> what the calls answer.
HEALTHY, FAILED, BOTH, CLOSED, UNMADE = "healthy", "failed", "both failed", "closed", "never made"


def memory_in(state: str, folder: Path) -> tuple[FallbackMemory, Primary, Own]:
    primary, own = Primary(), Own(RuntimeError("own is broken") if state == BOTH else None)

    def make() -> Backend:
        if state == UNMADE:
            raise RuntimeError("it is not installed")
        return primary

    memory = FallbackMemory(agent_of(folder), make, own)
    if state in (FAILED, BOTH):
        primary.error = RuntimeError("it broke")
        asyncio.run(memory.searched(ASKED))
    if state == CLOSED:
        memory.close()
    return memory, primary, own


SEARCHES = {
    HEALTHY: ("primary", False, None),
    FAILED: ("own", True, "test failed: it broke"),
    BOTH: (None, True, "test failed: it broke"),
    CLOSED: ("own", True, "the backend is closed"),
    UNMADE: ("own", True, "it is not installed"),
}


@pytest.mark.parametrize("state", SEARCHES)
def test_a_search_is_answered_in_every_state(tmp_path: Path, state: str) -> None:
    memory, primary, own = memory_in(state, tmp_path)
    assert asked(memory) == asked(memory) == SEARCHES[state]
    if state == BOTH:
        answer = asyncio.run(memory.searched(ASKED))
        assert (answer.unavailable, answer.results) == (True, ())
        assert all(reason in str(answer.error) for reason in ("it broke", "own is broken"))
    wait_until(lambda: primary.closed == (state in (FAILED, BOTH, CLOSED)))
    assert bool(own.made) == (state != HEALTHY)


def test_a_search_of_a_time_is_answered_by_recallds_own_index_which_says_so(tmp_path: Path) -> None:
    memory, primary, _ = memory_in(HEALTHY, tmp_path)
    for limits in ({"since": "7d"}, {"until": "2026-11-23"}):
        answer = asyncio.run(memory.searched(SearchRequest(query="gateway", **limits)))
        assert (answer.provider, answer.fallback, "a time" in str(answer.fallback_reason)) == ("own", True, True)
    assert (asked(memory), primary.closed) == (SEARCHES[HEALTHY], 0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SearchAnswer(unavailable=True, error="its disk is full"), "test failed: its disk is full"),
        (SearchAnswer(unavailable=True), "test failed: it is unavailable"),
        (None, "test failed: it did not answer in time"),
    ],
    ids=["with a reason", "without a reason", "never"],
)
def test_a_backend_that_is_unavailable_or_late_has_failed(
    tmp_path: Path, answer: SearchAnswer | None, reason: str
) -> None:
    class Odd(Primary):
        async def searched(self, request: SearchRequest) -> SearchAnswer:
            return answer or (await asyncio.Event().wait() and SearchAnswer())  # type: ignore[return-value]

    limits = {"timeout_ms": 50 if answer is None else 60_000}
    memory = FallbackMemory(agent_of(tmp_path, limits=limits), Odd, Own())
    assert asked(memory) == ("own", True, reason)


def test_a_query_that_a_backend_rejects_is_no_outage(tmp_path: Path) -> None:
    memory, primary, _ = memory_in(HEALTHY, tmp_path)
    primary.error = QueryRejected("odd quotes")
    provider, fallback, reason = asked(memory)
    assert (provider, fallback, str(reason).endswith(": odd quotes")) == ("own", True, True)
    primary.error = None
    assert asked(memory) == SEARCHES[HEALTHY]
    assert primary.closed == 0


@pytest.mark.parametrize("state", SEARCHES)
def test_every_other_call_is_answered_in_every_state(tmp_path: Path, state: str) -> None:
    memory, _, _ = memory_in(state, tmp_path)
    reason = SEARCHES[state][2]
    status = memory.status()
    assert (status.backend, status.fallback_from) == (("test", None) if reason is None else ("builtin", "test"))
    assert status.problem == memory.sync() == reason
    for probe in (memory.probe_embedding_availability, memory.probe_vector_availability):
        assert probe() == Availability(available=reason is None, reason=reason)
    assert memory.read_file(PATH).text == "own"
    assert memory.close() == (reason or "the backend is closed"), "the first reason stays"


RAISED = {
    "status": (lambda memory: memory.status(), lambda answer: answer.problem == "it broke"),
    "sync": (lambda memory: memory.sync(), lambda answer: answer == "it broke"),
    "probe": (lambda memory: memory.probe_vector_availability(), lambda answer: answer.reason == "it broke"),
    "close": (lambda memory: memory.close(), lambda answer: answer == "the backend is closed"),
}


@pytest.mark.parametrize("name", RAISED)
def test_what_a_backend_raises_elsewhere_is_an_answer_and_no_fallback(tmp_path: Path, name: str) -> None:
    call, is_told = RAISED[name]
    memory, primary, _ = memory_in(HEALTHY, tmp_path)
    primary.error = RuntimeError("it broke")
    assert is_told(call(memory))
    primary.error = None
    if name != "close":
        assert asked(memory) == SEARCHES[HEALTHY]


def test_a_session_out_of_scope_asks_no_memory(tmp_path: Path) -> None:
    primary, own = Primary(), Own()
    memory = FallbackMemory(agent_of(tmp_path, scope={"default": "deny"}), lambda: primary, own)
    answer = asyncio.run(memory.searched(SearchRequest(query="x", session_key="agent:main:main")))
    assert answer == SearchAnswer()


PRIVATE_LINE = "- Transcript: sessions/owner.jsonl\n"

#: Path of a backend's result -> its snippet, and whether a group sees it.
FOUND = {
    "sessions/owner.jsonl": ("words", False),
    "sessions/group.jsonl": ("words", True),
    "memory/of-owner.md": ("words", False),
    "memory/of-group.md": ("words", True),
    "memory/of-owner-once.md": (PRIVATE_LINE, False),
    "MEMORY.md": ("words", False),
    "memory/linked.md": ("words", False),
}


class Finding(Primary):
    """A backend that finds everything."""

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        found = [
            SearchResult(
                path=path,
                start_line=1,
                end_line=1,
                score=1.0,
                snippet=snippet,
                source="sessions" if path.startswith("sessions") else "memory",
                also_in=AlsoIn(count=1, paths=("sessions/owner.jsonl",)),
            )
            for path, (snippet, _) in FOUND.items()
        ]
        return SearchAnswer(provider="primary", results=tuple(found))


@pytest.fixture
def finding(tmp_path: Path) -> FallbackMemory:
    workspace, sessions = tmp_path / "workspace", tmp_path / "sessions"
    (workspace / "memory").mkdir(parents=True)
    sessions.mkdir()
    (workspace / "MEMORY.md").write_text("private\n", "utf-8")
    (workspace / "memory" / "linked.md").hardlink_to(workspace / "MEMORY.md")
    for name in ("owner", "group"):
        (sessions / f"{name}.jsonl").touch()
        (workspace / "memory" / f"of-{name}.md").write_text(f"- Transcript: sessions/{name}.jsonl\n", "utf-8")
    (workspace / "memory" / "of-owner-once.md").write_text("words\n", "utf-8")
    keys = {"agent:main:main": {"sessionId": "owner"}, GROUP: {"sessionId": "group"}}
    (sessions / "sessions.json").write_text(json.dumps(keys), "utf-8")
    return FallbackMemory(agent_of(workspace, sessions=[str(sessions)]), Finding, Own())


GROUP = "agent:main:telegram:group:42"


def test_of_a_backends_results_a_session_gets_those_that_it_may_see(finding: FallbackMemory) -> None:
    shown = {
        key: asyncio.run(finding.searched(SearchRequest(query="x", max_results=100, session_key=key))).results
        for key in (None, "agent:main:main", GROUP)
    }
    assert [one.path for one in shown[None]] == [one.path for one in shown["agent:main:main"]] == list(FOUND)
    assert [one.path for one in shown[GROUP]] == [path for path, (_, is_shown) in FOUND.items() if is_shown]
    assert all(one.also_in for one in shown[None])
    assert not any(one.also_in for one in shown[GROUP])


LONG = "many words " * 3_000_000

#: Changes of a backend's result -> changes of the shown one; None for a result that is not shown.
CHECKED: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({}, {}),
    ({"path": "./memory//n.md", "source": "sessions"}, {}),
    ({"path": "../w/memory/n.md"}, None),
    ({"path": "/etc/passwd"}, None),
    ({"path": "memory/gone.md"}, None),
    ({"path": "memory/link.md"}, None),
    ({"path": "memory/left-out.md"}, None),
    ({"path": "memory/n.md\0"}, None),
    ({"path": "memory/\ud83d.md"}, None),
    ({"path": "page://of-the-backend"}, None),
    ({"path": ""}, None),
    ({"score": float("nan")}, None),
    ({"score": 1.5}, None),
    ({"score": -0.1}, None),
    ({"score": 0.3}, None),
    ({"text_score": float("inf")}, None),
    ({"start_line": 0}, None),
    ({"end_line": 1}, None),
    ({"end_line": 10**30}, None),
    ({"snippet_start_line": 5}, None),
    ({"citation": "https://elsewhere"}, {}),
    ({"snippet": "words\n\nSource: memory/n.md#L2-L4", "citation": "memory/n.md#L2-L4"}, {}),
    ({"snippet": "half \ud83d"}, {"snippet": "half ?"}),
    ({"snippet": f"password: {PASSWORD}"}, {"snippet": "password: [redacted:password]"}),
    ({"snippet": "a project called Xanadu"}, {"snippet": "a project called [redacted:pattern]"}),
    ({"snippet": LONG}, {"snippet": LONG[:98]}),
]


@pytest.mark.parametrize(("changes", "shown"), CHECKED, ids=lambda one: None if one is None else str(one)[:40])
def test_a_result_is_shown_if_it_is_a_document_of_the_agent(
    tmp_path: Path, changes: dict[str, Any], shown: dict[str, Any] | None
) -> None:
    (tmp_path / "memory").mkdir()
    for name in ("n", "left-out"):
        (tmp_path / "memory" / f"{name}.md").touch()
    (tmp_path / "memory" / "link.md").symlink_to("n.md")
    plain = {
        "path": "memory/n.md",
        "start_line": 2,
        "end_line": 4,
        "score": 0.5,
        "snippet": "words",
        "source": "memory",
    }

    class Odd(Primary):
        async def searched(self, request: SearchRequest) -> SearchAnswer:
            assert request.query == "words [redacted:pattern]"
            return SearchAnswer(provider="primary", results=(SearchResult(**{**plain, **changes}),))

    agent = agent_of(
        tmp_path,
        exclude=["memory/left-out.md"],
        redaction={"patterns": ["Xanadu"]},
        limits={"timeout_ms": 120_000, "max_snippet_chars": 100},
    )
    answer = asyncio.run(FallbackMemory(agent, Odd, Own()).searched(SearchRequest(query="words Xanadu", min_score=0.4)))
    expected = {**plain, "citation": "memory/n.md#L2-L4", **(shown or {})}
    assert [one.model_dump(exclude_none=True) for one in answer.results] == ([] if shown is None else [expected])
    assert (answer.provider, answer.fallback) == ("own" if shown is None else "primary", False)


def test_a_backends_answer_is_as_long_as_the_settings_and_the_request_allow(tmp_path: Path) -> None:
    class Many(Primary):
        async def searched(self, request: SearchRequest) -> SearchAnswer:
            return SearchAnswer(results=(SOME.model_copy(update={"snippet": "x" * 400}),) * 50)

    agent = agent_of(tmp_path, query={"max_results": 3}, limits={"max_snippet_chars": 100, "max_injected_chars": 450})
    memory = FallbackMemory(agent, Many, Own())
    for wanted, lengths in ((None, [100] * 3), (1, [100]), (50, [100] * 4 + [50])):
        answer = asyncio.run(memory.searched(SearchRequest(query="x", max_results=wanted)))
        assert [len(one.snippet) for one in answer.results] == lengths


class Blocking(Primary):
    """A backend of which each call blocks until `released`. `begun` counts them."""

    released: threading.Event
    begun = 0

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        type(self).begun += 1
        self.released.wait(60)
        return await super().searched(request)


@pytest.fixture
def blocking() -> Iterator[type[Blocking]]:
    """A class of its own, whose calls end with the test."""
    released = threading.Event()
    yield type("OneBlocking", (Blocking,), {"released": released})
    released.set()


def test_a_backend_with_two_stuck_calls_gets_no_third_one_until_one_returns(
    tmp_path: Path, blocking: type[Blocking]
) -> None:
    slots, agent = Slots(tmp_path), agent_of(tmp_path, limits={"timeout_ms": 1_000})
    slots.kind = blocking
    reasons = []
    for _ in range(4):
        reasons.append(asked(slots.memory(agent))[2])
        slots.now += BACKOFF_SECONDS
    late, stuck = "test failed: it did not answer in time", "test failed: 2 earlier calls of it have not returned"
    assert reasons == [late, late, stuck, stuck]
    assert (blocking.begun, len(slots.made)) == (2, 2)
    blocking.released.set()

    def answers() -> bool:
        slots.now += BACKOFF_SECONDS
        return asked(slots.memory(agent)) == SEARCHES[HEALTHY]

    wait_until(answers)


def test_a_backend_that_is_slow_to_begin_holds_up_no_event_loop(tmp_path: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    def make() -> Backend:
        begun.set()
        released.wait(60)
        return Primary()

    async def ask() -> tuple[str | None, bool]:
        memory = FallbackMemory(agent_of(tmp_path), make, Own())
        search = asyncio.create_task(memory.searched(ASKED))
        await asyncio.to_thread(begun.wait, 60)
        was_done = search.done()
        released.set()
        return (await search).provider, was_done

    assert asyncio.run(ask()) == ("primary", False)


ENDING = """
import asyncio, pathlib, sys, threading
from memory.backends.backend_fallback import FallbackMemory
from memory.search.manager import UnavailableMemory
from schemas.search import SearchRequest
from schemas.settings import AgentSettings

class Backend:
    async def searched(self, request):
        threading.Event().wait()
    close = searched

agent = AgentSettings(id="main", workspace=pathlib.Path(sys.argv[1]), backend="test", limits={"timeout_ms": 200})
memory = FallbackMemory(agent, Backend, lambda: UnavailableMemory(agent, "own"))
print(asyncio.run(memory.searched(SearchRequest(query="x"))).fallback_reason)
"""


def test_the_end_of_a_process_waits_for_no_stuck_call(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.splitlines()[-1].startswith("test failed: ")


def test_a_state_that_cannot_be_sent_is_a_problem(tmp_path: Path) -> None:
    class Odd(Primary):
        problem = f"password: {PASSWORD}\n\ud83d"
        model = "qmd"

        def status(self) -> BackendStatus:
            return BackendStatus(backend="test", model=self.model, problem=self.problem)

    odd = Odd()
    memory = FallbackMemory(agent_of(tmp_path), lambda: odd, Own())
    assert memory.status().problem == "password: [redacted:password] ?"
    odd.model = "\ud83d"
    assert "surrogates not allowed" in str(memory.status().problem)


def test_a_request_that_is_cancelled_ends_without_an_answer(tmp_path: Path, blocking: type[Blocking]) -> None:
    async def cancel() -> int:
        memory = FallbackMemory(agent_of(tmp_path), blocking, own := Own())
        search = asyncio.create_task(memory.searched(ASKED))
        while not blocking.begun:
            await asyncio.sleep(0)
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search
        return own.made

    assert asyncio.run(cancel()) == 0


class Slots:
    """Slots on a clock of the test, with backends of the test."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.made: list[Primary] = []
        self.kind = Primary
        settings = Settings.model_validate({"home": folder})
        self.slots = BackendSlots(settings, maker=lambda _: self.make, clock=lambda: self.now)
        self.own = Own()

    def make(self, settings: Settings, agent: AgentSettings) -> Backend:
        self.made.append(self.kind())
        return self.made[-1]

    def memory(self, agent: AgentSettings) -> FallbackMemory:
        return self.slots.memory(agent, self.own)


def test_an_agent_has_one_backend_for_its_settings(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    one = agent_of(tmp_path)
    assert slots.memory(one) is slots.memory(one)
    assert slots.memory(agent_of(tmp_path, model="other")) is not slots.memory(one)
    assert slots.memory(one.model_copy(update={"id": "second"})) is not slots.memory(one)
    wait_until(lambda: len(slots.made) == 3)
    slots.slots.close()
    assert [primary.closed for primary in slots.made] == [1, 1, 1]


def test_a_backend_that_failed_leaves_its_slot_and_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    slots, agent = Slots(tmp_path), agent_of(tmp_path)
    first = slots.memory(agent)
    assert asked(first) == SEARCHES[HEALTHY]
    slots.made[0].error = RuntimeError("it broke")
    assert asked(first) == SEARCHES[FAILED]
    slots.now = BACKOFF_SECONDS - 0.1
    assert asked(slots.memory(agent)) == SEARCHES[FAILED]
    assert len(slots.made) == 1
    slots.now = BACKOFF_SECONDS
    assert asked(slots.memory(agent)) == SEARCHES[HEALTHY]
    assert asked(first) == SEARCHES[FAILED]
    assert len(slots.made) == 2


def test_what_is_no_backend_is_the_own_index_with_the_reason(tmp_path: Path) -> None:
    slots = BackendSlots(Settings.model_validate({"home": tmp_path}), maker=lambda _: lambda *_: Own())  # type: ignore[arg-type,return-value]
    assert "'odd'" in str(asked(slots.memory(agent_of(tmp_path, "odd"), Own()))[2])
