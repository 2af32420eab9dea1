"""Several phrasings of one question: a search for each, one list of results."""

from __future__ import annotations

import asyncio
from pathlib import Path

from memory.backends.backend_fallback import FallbackMemory
from memory.search.owners_memory import OwnersMemory
from memory.search.phrasings import LEAST_RESULTS, by_phrasings, fused_by_place
from schemas.conditions import Condition, ConditionCode
from schemas.search import SearchAnswer, SearchRequest, SearchResult
from schemas.settings import AgentSettings, Limits, MemorySettings
from tests.unit.memory.backends.test_fallback import Own, Primary
from tests.unit.memory.search.test_owners_memory import Scripted, result


def listed(*entries: tuple[str, float], text: str = "") -> tuple[SearchResult, ...]:
    return tuple(result(path, score, text) for path, score in entries)


def test_a_passage_that_two_searches_find_stands_before_the_first_of_one():
    lists = listed(("a", 0.9), ("b", 0.6), ("c", 0.4)), listed(("d", 0.8), ("c", 0.7)), listed(("d", 0.3), ("c", 0.2))
    fused = fused_by_place(lists, max_results=3)
    assert [(hit.path, hit.score) for hit in fused] == [("c", 0.9), ("d", 0.9), ("a", 0.9)]


def test_one_passage_is_shown_once_as_the_search_found_it_that_puts_it_first():
    lists = (*listed(("b", 0.5)), result("a", 0.4, "late words")), listed(("a", 0.6), text="first words")
    assert next((hit.path, hit.snippet) for hit in fused_by_place(lists, max_results=6)) == ("a", "first words")
    copies = listed(("a", 0.5), text="one  text"), listed(("copy", 0.5), text="one text\n")
    assert [hit.path for hit in fused_by_place(copies, max_results=6)] == ["a"]


def test_each_phrasing_is_searched_once_with_the_filters_of_the_request():
    async def search(request: SearchRequest) -> SearchAnswer:
        asked.append(request)
        if request.query == "z":
            return SearchAnswer(unavailable=True, warning="this question was not searched for")
        return SearchAnswer(results=listed(("a", 0.5)), conditions=(Condition(ConditionCode.OTHER_MODEL),))

    asked: list[SearchRequest] = []
    request = SearchRequest(query="x", queries=("y", " ", "x", "z"), session_key="k", min_score=0.2)
    answer = asyncio.run(by_phrasings(search, request, max_results=6))
    alike = {"session_key": "k", "min_score": 0.2, "max_results": LEAST_RESULTS}
    assert asked == [SearchRequest.model_validate({"query": text, **alike}) for text in ("x", "y", "z")]
    assert ([hit.path for hit in answer.results], answer.unavailable) == (["a"], None)
    assert [one.code for one in answer.conditions] == [ConditionCode.OTHER_MODEL]
    assert answer.warning == "this question was not searched for"


def test_all_agents_are_searched_for_each_phrasing_until_one_deadline():
    slow, ada = Scripted(None), Scripted(SearchAnswer(results=listed(("a", 0.5)), mode="hybrid"))
    owner = OwnersMemory({"ada": ada, "slow": slow}, MemorySettings(limits=Limits(timeout_ms=3_000)))
    answer = owner.search(SearchRequest(query="x", queries=("y", "z")))
    assert sorted(request.query for request in ada.requests) == ["x", "y", "z"]
    assert [(hit.agent, hit.path) for hit in answer.results] == [("ada", "a")]
    assert [one.code for one in answer.conditions] == [ConditionCode.SEARCH_LATE]


def test_a_backend_searches_each_phrasing_without_secrets(tmp_path: Path):
    class Many(Primary):
        async def searched(self, request: SearchRequest) -> SearchAnswer:
            asked.append(request.query)
            lines = range(1, 9)
            return SearchAnswer(results=tuple(result("MEMORY.md", 0.5, start_line=n, end_line=n) for n in lines))

    asked: list[str] = []
    (tmp_path / "MEMORY.md").touch()
    agent = AgentSettings(id="main", workspace=tmp_path, redaction={"patterns": ["Xanadu"]})
    request = SearchRequest(query="x", queries=("of Xanadu",))
    answer = asyncio.run(FallbackMemory(agent, Many, Own()).searched(request))
    assert (sorted(asked), answer.fallback) == (["of [redacted:pattern]", "x"], False)
    assert [hit.path for hit in answer.results] == ["MEMORY.md"]
