"""A backend of another package in the real service: it blocks, breaks and lies, and every search is answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from schemas.conditions import Condition, ConditionCode
from schemas.search import SearchAnswer, SearchRequest, SearchResult
from schemas.settings import Settings
from tests import other_backend
from tests.secret_samples import PASSWORD
from tests.serving import running, search
from tests.written_index import write_index

HIT = SearchResult(path="memory/n.md", start_line=1, end_line=1, score=0.5, snippet="by the other", source="memory")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """A function that returns settings of agents, each with a note, the backend and its work; None is recalld's own."""
    other_backend.install(tmp_path / "packages", monkeypatch)

    def make(**works: Callable[[SearchRequest], SearchAnswer] | None) -> Settings:
        agents = []
        for name, work in works.items():
            (tmp_path / name / "memory").mkdir(parents=True)
            (tmp_path / name / "memory" / "n.md").write_text(f"The gateway of {name}.\n", "utf-8")
            backend = "builtin" if work is None else "other"
            agents.append({"id": name, "workspace": tmp_path / name, "provider": "none", "backend": backend})
            if work is not None:
                monkeypatch.setitem(other_backend.SEARCHES, name, work)
        limits = {"timeout_ms": 120_000}
        more = {"agents": agents, "limits": limits, "auth": {"trust_loopback": True}}
        settings = Settings.model_validate({"home": tmp_path / "home", **more})
        for name in works:
            write_index(settings, name).close()
        return settings

    return make


def test_a_backend_that_blocks_holds_up_no_other_agent(served: Callable[..., Settings]) -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def block(_: SearchRequest) -> SearchAnswer:
        begun.set()
        released.wait(60)
        ended.set()
        return SearchAnswer(provider="other", results=(HIT,))

    with running(served(slow=block, quick=None)) as client, ThreadPoolExecutor() as threads:
        blocked = threads.submit(search, client, "gateway", agent="slow", corpus="all")
        assert begun.wait(60)
        assert search(client, "gateway", agent="quick")["results"][0]["snippet"].endswith("of quick.")
        assert client.post("/v1/get", json={"path": "memory/n.md", "agent": "slow"}).json()["status"] == "ok"
        assert not ended.is_set()
        released.set()
        assert [one["snippet"] for one in blocked.result()["results"]] == ["by the other"]
        assert [one["outcome"] for one in blocked.result()["corpora"]] == ["ok", "not-registered"]


class Vicious(BaseException):
    """An error without a text."""

    def __str__(self) -> str:
        raise SystemExit(3)


def raising(error: BaseException) -> Callable[[SearchRequest], NoReturn]:
    def work(_: SearchRequest) -> NoReturn:
        raise error

    return work


def with_condition(code: str, subject: str) -> Callable[[SearchRequest], SearchAnswer]:
    condition = Condition(code, subject)  # type: ignore[arg-type] # as a backend may do
    return lambda _: SearchAnswer(provider="other", results=(HIT,), conditions=(condition,))


#: Agent -> the work of its backend, and the reason of the fallback.
FAILURES: dict[str, tuple[Callable[[SearchRequest], SearchAnswer], str]] = {
    "error": (raising(OSError("no\n disk")), "no disk"),
    "cancelled": (raising(asyncio.CancelledError()), "CancelledError"),
    "exit": (raising(SystemExit(2)), "2"),
    "interrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "generator": (raising(GeneratorExit()), "GeneratorExit"),
    "iteration": (raising(StopIteration()), "coroutine raised StopIteration"),
    "group": (raising(BaseExceptionGroup("two", [SystemExit(1)])), "two (1 sub-exception)"),
    "vicious": (raising(Vicious()), "Vicious"),
    "surrogate": (raising(ValueError("half \ud83d")), "half ?"),
    "long": (raising(ValueError("x" * 1_000_000)), "x" * 300),
    "secret": (raising(ValueError(f"password: {PASSWORD}")), "password: [redacted:password]"),
    "none": (lambda _: None, "'NoneType' object has no attribute 'results'"),  # type: ignore[arg-type,return-value]
    "condition": (with_condition("odd", ""), "'odd' is not a valid ConditionCode"),
    "subject": (with_condition(ConditionCode.INDEX_MISSING, "half \ud83d"), "Error serializing to JSON"),
}


def test_whatever_a_backend_raises_or_returns_a_search_is_answered(served: Callable[..., Settings]) -> None:
    with running(served(**{name: work for name, (work, _) in FAILURES.items()})) as client:
        answers = {name: search(client, "gateway", agent=name) for name in FAILURES}
    assert {name: answer["results"][0]["snippet"] for name, answer in answers.items()} == {
        name: f"The gateway of {name}." for name in FAILURES
    }
    assert all(one["fallback"] and len(one["fallbackReason"]) < 350 for one in answers.values())
    reasons = {
        name: one["fallbackReason"][: len(f"other failed: {FAILURES[name][1]}")] for name, one in answers.items()
    }
    assert reasons == {name: f"other failed: {reason}" for name, (_, reason) in FAILURES.items()}


def test_a_question_without_a_hit_of_the_backend_is_asked_of_the_own_index(served: Callable[..., Settings]) -> None:
    with running(served(main=lambda _: SearchAnswer(provider="other"))) as client:
        found = search(client, "gateway")
        assert [one["path"] for one in found["results"]] == ["memory/n.md"]
        assert (found["fallback"], found["fallbackReason"].startswith("other found nothing")) == (False, True)
        assert search(client, "gateway", corpus="sessions")["results"] == []
        assert search(client, "gateway", corpus="wiki")["corpora"][0]["outcome"] == "not-registered"
        assert search(client, "gateway", sessionKey="agent:another:main")["results"] == []
        assert "fallbackReason" not in search(client, "?!")
