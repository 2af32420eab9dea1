"""Decisions that change, asked for by the time at which they fell: real notes and transcripts, on a given day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from memory.search.manager import SearchManager
from memory.search.resources import SearchResources
from recalld.settings.load import load
from schemas.search import SearchRequest
from tests.commanding import CommandLine
from tests.serving import search
from tests.transcript_files import message_line

NOTES = {
    "2026-09-24": "Retry policy: we decided on three retries with a fixed pause. 重试策略：我们决定固定间隔重试三次。",
    "2026-10-14": "Retry policy: we decided on five retries with growing pauses. 重试策略：我们决定改成重试五次。",
    "2026-10-20": "The balcony has new tomatoes and basil.",
}
TALKS = {
    "2026-11-03": "About the retry policy we decided that the pauses get jitter. 关于重试策略，我们决定加上抖动。",
    "2026-11-18": "The retry policy is reversed: three of them, with fixed pauses again. 重试策略改回固定间隔，三次。",
}
MONDAY = datetime(2026, 11, 23, 9, tzinfo=UTC)


@pytest.fixture
def home_of_decisions(commands: CommandLine) -> CommandLine:
    sessions = commands.home.parent / "sessions"
    sessions.mkdir()
    commands.configure(f'sessions = ["{sessions}"]\nprovider = "none"')
    for day, text in NOTES.items():
        (commands.workspace / "memory" / f"{day}.md").write_text(f"{text}\n", "utf-8")
    for day, text in TALKS.items():
        line = message_line("openclaw", "user", text, at=datetime.fromisoformat(f"{day}T10:00+00:00"))
        (sessions / f"{day[-2:]}.jsonl").write_bytes(line)
    commands.say("index")
    return commands


@pytest.fixture
def memory(home_of_decisions: CommandLine) -> Iterator[SearchManager]:
    settings = load(
        config=str(home_of_decisions.home.parent / "recalld.toml"), home=str(home_of_decisions.home)
    ).settings
    resources = SearchResources(settings, model_wait_seconds=5)
    manager = SearchManager(settings, settings.agents[0], resources=resources, clock=MONDAY.timestamp)
    yield manager
    manager.close()
    resources.close()


def paths(memory: SearchManager, query: str, *, timezone: str = "Europe/Berlin", **times: str) -> list[str]:
    answer = memory.search(SearchRequest(query=query, min_score=0, timezone=timezone, **times))
    assert answer.error is None
    return [Path(result.path).stem for result in answer.results]


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("what did we decide about the retry policy last week", "18"),
        ("what did we decide about the retry policy on 3 November", "03"),
        ("what did we decide about the retry policy last month", "2026-10-14"),
        ("what did we decide about the retry policy two months ago", "2026-09-24"),
        ("what did we decide about the retry policy in September", "2026-09-24"),
        ("上周我们对重试策略有什么决定", "18"),
        ("九月我们对重试策略有什么决定", "2026-09-24"),
    ],
)
def test_the_decision_of_the_named_time_comes_first(memory: SearchManager, question: str, first: str) -> None:
    order = paths(memory, question)
    assert order[0] == first
    assert {"2026-09-24", "2026-10-14", "03", "18"} <= set(order), "nothing is hidden"


def test_days_are_those_of_the_requests_time_zone(memory: SearchManager) -> None:
    question = "what did we decide about the retry policy four days ago"
    assert paths(memory, question, timezone="Pacific/Honolulu")[0] == "18", "it is Sunday there"
    assert paths(memory, question)[0] != "18"


def test_since_and_until_limit_a_search(memory: SearchManager) -> None:
    assert set(paths(memory, "retry policy", since="october", until="2026-11-03")) <= {"2026-10-14", "2026-10-20", "03"}
    assert paths(memory, "retry policy", since="last week")[:1] == ["18"]
    assert paths(memory, "2026-09-24.md", since="7d") != ["2026-09-24"]
    assert paths(memory, "retry", until="2026-09-23") == []


def test_every_door_takes_times_and_refuses_unknown_ones_alike(home_of_decisions: CommandLine) -> None:
    answer = home_of_decisions.json("search", "retry policy", "--since", "2026-10-01", "--until", "2026-10-15")
    assert [Path(result["path"]).stem for result in answer["results"]] == ["2026-10-14"]
    code, out, _ = home_of_decisions.run("search", "retry policy", "--since", "someday", "--json")
    assert (code, json.loads(out)["results"], "someday" in json.loads(out)["error"]) == (1, [], True)


def test_a_service_refuses_unknown_times_in_its_answer(service: httpx.Client) -> None:
    for field, text in (("since", "someday"), ("until", "soon"), ("timezone", "Europe/Atlantis")):
        answer = search(service, "dentist", **{field: text})
        assert (answer["results"], text in answer["error"], answer.get("disabled")) == ([], True, None)
    assert search(service, "dentist", since="1d", timezone="Asia/Tokyo")["results"]
