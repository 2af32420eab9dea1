"""The two tools that agents know."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from memory.search.searchable import SearchableMemory
from memory.search.tool_definitions import GET, SEARCH, TOOLS, ToolArgumentsRefused, call_tool
from schemas.errors import UserError
from schemas.search import GetAnswer, GetRequest, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import Limits


def result(number: int, snippet: str = "what was said", *, cited: bool = True) -> SearchResult:
    return SearchResult(
        path=f"memory/{number}.md",
        start_line=1,
        end_line=2,
        score=0.5,
        snippet=snippet,
        source="memory",
        citation=f"memory/{number}.md#L1-L2" if cited else None,
    )


class Memory(SearchableMemory):
    """Answers what a test tells it to, and remembers what it was asked."""

    def __init__(self, *results: SearchResult, max_injected_chars: int = 4000) -> None:
        self._results = results
        self._limits = Limits(max_injected_chars=max_injected_chars)
        self.asked: list[SearchRequest] = []
        self.read: list[GetRequest] = []
        self.broken: Exception | None = None

    @property
    def limits(self) -> Limits:
        return self._limits

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        if self.broken is not None:
            raise self.broken
        self.asked.append(request)
        return SearchAnswer(results=self._results, mode="keyword", citations=True)

    def read_file(self, request: GetRequest) -> GetAnswer:
        if self.broken is not None:
            raise self.broken
        self.read.append(request)
        return GetAnswer(path=request.path, text="a line", lines=1, total_lines=9, truncated=True, next_from=2)


def call(memory: SearchableMemory, name: str, session_key: str | None = None, /, **arguments: Any) -> dict[str, Any]:
    answer = asyncio.run(call_tool(memory, name, arguments, session_key=session_key))
    json.dumps(answer, allow_nan=False)
    return answer


def test_a_search_is_asked_as_the_model_says_in_the_session_that_the_door_knows():
    memory = Memory(result(1))
    answer = call(memory, SEARCH, "agent:main:main", query="gateway", maxResults=3, minScore=0.2)

    assert memory.asked == [SearchRequest(query="gateway", max_results=3, min_score=0.2, session_key="agent:main:main")]
    [hit] = answer["results"]
    assert hit["snippet"].endswith(f"\n\nSource: {hit['citation']}")
    assert (hit["path"], hit["startLine"], hit["endLine"]) == ("memory/1.md", 1, 2)
    assert hit["citation"] == "memory/1.md#L1-L2"
    assert "warning" not in answer
    assert "disabled" not in answer


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        (
            SEARCH,
            {"query": "x", "limit": 3, "k": 1},
            "memory_search: unknown argument limit, k; valid are query, maxResults, minScore",
        ),
        (SEARCH, {"query": "x", "startLine": 3}, "memory_search: unknown argument startLine; valid are query"),
        # A session says nothing about itself: the door knows it.
        (
            SEARCH,
            {"query": "x", "sessionKey": "agent:main:main"},
            "memory_search: unknown argument sessionKey; valid are query, maxResults, minScore",
        ),
        (SEARCH, {}, "memory_search: query is missing"),
        (SEARCH, {"query": ["x"]}, "memory_search: query must be a text"),
        (SEARCH, {"query": "x", "queries": ["y"] * 5}, "memory_search: queries must have at most 4 entries"),
        (SEARCH, {"query": "x", "queries": "y"}, "memory_search: queries must be a list"),
        (SEARCH, {"query": "x", "maxResults": "many"}, "maxResults must be a whole number"),
        (SEARCH, {"query": "x", "minScore": float("nan")}, "minScore must be at most 1"),
        (SEARCH, {"query": "x", "minScore": 7}, "minScore must be at most 1"),
        (SEARCH, {"query": "x", "corpus": "notes"}, "memory_search: corpus must be 'memory'"),
        (GET, {"path": "a.md", "corpus": "sessions"}, "memory_get: corpus must be 'memory'"),
        (GET, {"path": ""}, "memory_get: path must not be empty"),
        (GET, {"path": "a.md", "from": "three"}, "memory_get: from must be a whole number"),
        ("memory_forget", {}, "unknown tool memory_forget; valid are memory_search, memory_get"),
    ],
)
def test_a_wrong_call_is_refused_in_one_sentence_and_asks_nothing(name, arguments, sentence):
    memory = Memory()
    with pytest.raises(ToolArgumentsRefused) as refused:
        asyncio.run(call_tool(memory, name, arguments, session_key=None))

    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, UserError)
    assert (memory.asked, memory.read) == ([], [])


@pytest.mark.parametrize(("asked", "searched"), [(0, 1), (200, 100), (4.9, 4)])
def test_the_number_of_results_is_brought_within_its_limits(asked, searched):
    memory = Memory()
    call(memory, SEARCH, query="x", maxResults=asked)
    assert [request.max_results for request in memory.asked] == [searched]


@pytest.mark.parametrize(
    ("arguments", "first", "lines"),
    [
        ({"from": 0}, 1, None),
        ({"from": 2.7, "lines": 10**400}, 2, 100_000),
        ({"startLine": 3, "lines": -5}, 3, 1),
        ({"startLine": 3, "from": 8}, 8, None),
    ],
)
def test_lines_of_a_read_are_brought_within_their_limits(arguments, first, lines):
    memory = Memory()
    call(memory, GET, path="a.md", **arguments)
    assert [(request.from_, request.lines) for request in memory.read] == [(first, lines)]


@pytest.mark.parametrize("name", [SEARCH, GET])
def test_a_memory_that_fails_is_an_answer(name):
    memory = Memory()
    memory.broken = RuntimeError("secret words of a note")
    answer = call(memory, name, **{next(iter(TOOLS[name].input_schema["properties"])): "a.md"})

    assert (answer["disabled"], answer["unavailable"]) == (True, True)
    assert ("RuntimeError" in answer["error"], "secret" in answer["error"]) == (True, False)
    assert answer["warning"]
    assert answer["action"]
    assert answer.get("results", []) == []
    assert answer.get("text", "") == ""
