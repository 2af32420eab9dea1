"""The owner's memory of several agents: one answer of all, in time and with the agents' names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from memory.search.owners_memory import AGENTS_AT_A_TIME, OwnersMemory, fused_results, joined
from memory.search.searchable import SearchableMemory
from schemas.conditions import Condition, ConditionCode
from schemas.search import AlsoIn, GetAnswer, GetRequest, PendingState, SearchAnswer, SearchRequest, SearchResult
from schemas.settings import Limits, MemorySettings


def result(path: str, score: float, text: str = "", **more: object) -> SearchResult:
    fields = {"path": path, "start_line": 1, "end_line": 1, "score": score, "snippet": text or path, "source": "memory"}
    return SearchResult.model_validate(fields | more)


class Scripted(SearchableMemory):
    """A memory with a given answer; without one it never answers. `texts` are its documents."""

    def __init__(self, answer: SearchAnswer | None, **texts: str) -> None:
        self._answer = answer
        self._texts = texts
        self.requests: list[SearchRequest] = []

    async def searched(self, request: SearchRequest) -> SearchAnswer:
        self.requests.append(request)
        if self._answer is None:
            await asyncio.Event().wait()
        assert self._answer is not None
        return self._answer

    def read_file(self, request: GetRequest) -> GetAnswer:
        text = self._texts.get(request.path)
        return GetAnswer(path=request.path, text=text or "", status="not_found" if text is None else "ok")


def owners(memories: Mapping[str, SearchableMemory], *, timeout_ms: int = 15_000) -> OwnersMemory:
    return OwnersMemory(memories, MemorySettings(limits=Limits(timeout_ms=timeout_ms)))


def test_a_strong_result_stands_before_the_weak_first_results_of_hundreds():
    results = {f"agent-{number}": (result(f"weak-{number}", 0.4), result("none", 0.3)) for number in range(200)}
    results["agent-77"] = (result("first", 0.9), result("second", 0.8))
    fused = fused_results(results, max_results=3)
    assert [(hit.agent, hit.path) for hit in fused[:2]] == [("agent-77", "first"), ("agent-77", "second")]
    assert len(fused) == 3


def test_equal_texts_of_agents_are_one_result_that_counts_the_others():
    ada = (result("a.md", 0.7, "The port is  7373.", also_in=AlsoIn(count=1, paths=("b.md",))),)
    bob = (result("c.md", 0.9, "The port is 7373.\n"), result("d.md", 0.5))
    fused = fused_results({"ada": ada, "bob": bob}, max_results=6)
    assert [(hit.agent, hit.path, hit.also_in) for hit in fused] == [
        ("bob", "c.md", AlsoIn(count=2, paths=())),
        ("bob", "d.md", None),
    ]


def test_conditions_and_failures_of_some_agents_name_them_and_the_others_answer():
    lack = Condition(ConditionCode.KEYWORDS_ONLY, params={"reason": "no key"})
    words = SearchAnswer(results=(result("a.md", 0.5),), mode="keyword", degraded=("no key: keywords only",))
    words = words.model_copy(update={"conditions": (lack,), "pending": PendingState(documents=2, oldest_seconds=9)})
    broken = SearchAnswer(unavailable=True, error="the index is damaged", action="run `recalld rebuild`")
    answers = {"ada": words, "bob": words, "carl": broken, "dora": SearchAnswer(mode="hybrid", provider="local")}

    answer = joined(answers, max_results=6)
    assert [line.partition(": ")[0] for line in answer.degraded] == ["ada, bob", "carl"]
    assert (words.degraded[0] in answer.degraded[0], str(broken.error) in answer.degraded[1]) == (True, True)
    assert [(one.code, one.subject) for one in answer.conditions] == [
        (ConditionCode.KEYWORDS_ONLY, "ada, bob"),
        (ConditionCode.AGENT_NOT_SEARCHED, "carl"),
    ]
    assert (answer.mode, answer.unavailable, answer.pending.documents) == ("hybrid", None, 4)
    assert [hit.agent for hit in answer.results] == ["ada"]
    alone = joined({"carl": broken}, max_results=6)
    assert (alone.unavailable, alone.error, alone.action) == (True, broken.error, broken.action)


@pytest.mark.parametrize("hanging", [1, 3 * AGENTS_AT_A_TIME])
def test_agents_that_hang_delay_the_others_no_longer_than_the_deadline(hanging: int):
    memories: dict[str, SearchableMemory] = {f"slow-{number}": Scripted(None) for number in range(hanging)}
    memories["ada"] = Scripted(SearchAnswer(results=(result("a.md", 0.5),), mode="hybrid"))
    answer = owners(memories, timeout_ms=4_000).search(SearchRequest(query="port"))
    assert [(hit.agent, hit.path) for hit in answer.results] == [("ada", "a.md")]
    assert answer.took_ms < 8_000, "less than two rounds of the deadline"
    assert {one.code for one in answer.conditions} == {ConditionCode.SEARCH_LATE}
    assert "slow-0" in answer.degraded[0]
    assert "ada" not in answer.degraded[0]


def test_every_agent_is_asked_for_as_many_results_as_the_whole_answer_has():
    memory = Scripted(SearchAnswer())
    owners({"ada": memory, "bob": memory}).search(SearchRequest(query="port", max_results=9, session_key="agent:ada:x"))
    assert [(request.max_results, request.session_key) for request in memory.requests] == [(9, "agent:ada:x")] * 2


def test_a_document_is_read_from_the_only_agent_that_has_it():
    memory = owners({"ada": Scripted(None, a="of ada", both="1"), "bob": Scripted(None, b="of bob", both="2")})
    answer = memory.read_file(GetRequest(path="b"))
    assert (answer.agent, answer.text) == ("bob", "of bob")
    several = memory.read_file(GetRequest(path="both"))
    assert (several.status, several.text) == ("error", "")
    assert "ada, bob" in str(several.error)
    assert memory.read_file(GetRequest(path="c")).status == "not_found"
