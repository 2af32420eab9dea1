"""Results in the order of a reranker, over a real HTTP server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.conditions import ConditionCode
from schemas.search import SearchAnswer, SearchRequest
from schemas.settings import Settings
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer, Failure
from tests.secret_samples import PASSWORD
from tests.waiting import wait_until
from tests.written_index import searching, with_agent, write_index

QUERY = "dentist appointment on Friday"
NOTES = {
    "memory/friday.md": "The dentist appointment on Friday moved to nine.\n",
    "memory/card.md": "For the dentist: bring the insurance card.\n",
    "memory/garden.md": "On Friday, water the tomatoes and the basil.\n",
}


def best_of_cards(path: str, body: Any) -> Any:
    """Answer as a reranker to which nothing but cards is relevant."""
    assert path == "/v1/rerank"
    scores = [2.5 if "card" in text else -1.0 for text in body["documents"]]
    return {"results": [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]}


@pytest.fixture
def reranker() -> Iterator[EmbeddingServer]:
    with EmbeddingServer(answers=best_of_cards) as server:
        yield server


@pytest.fixture
def indexed(settings: Settings, workspace: Path) -> Settings:
    for path, text in NOTES.items():
        (workspace / path).write_text(text, "utf-8")
    write_index(settings).close()
    return settings


def found(
    settings: Settings, url: str | None, *, query: str = QUERY, hybrid: Any = None, **rerank: Any
) -> SearchAnswer:
    section = {"base_url": url, "timeout_ms": 60_000, **rerank}
    with searching(with_agent(settings, query={"rerank": section, "hybrid": hybrid or {}})) as manager:
        return manager.search(SearchRequest(query=query, min_score=0))


def paths(answer: SearchAnswer) -> list[str]:
    return [result.path for result in answer.results]


@pytest.mark.parametrize("hybrid", [{}, {"fusion": "weighted"}, {"mmr": {"enabled": True, "lambda": 1}}])
def test_results_stand_in_the_order_of_the_reranker(indexed: Settings, reranker: EmbeddingServer, hybrid: Any) -> None:
    plain = found(indexed, None, hybrid=hybrid)
    assert (reranker.requests, paths(plain)[0], plain.results[0].rerank_score) == (0, "memory/friday.md", None)
    answer = found(indexed, reranker.url + "/", hybrid=hybrid, model="reranker-1", api_key="a-secret-key")
    assert (paths(answer)[:2], answer.conditions) == (["memory/card.md", "memory/friday.md"], ())
    assert [hit.rerank_score for hit in answer.results] == [2.5, *[-1.0] * (len(answer.results) - 1)]
    scores = [hit.score for hit in answer.results]
    assert scores == sorted(scores, reverse=True)
    [request] = reranker.log
    assert request.headers["authorization"] == "Bearer a-secret-key"
    assert request.body | {"documents": None} == {
        "model": "reranker-1", "query": QUERY, "documents": None, "top_n": len(request.body["documents"])
    }  # fmt: skip


def test_only_the_first_candidates_are_sent_and_the_others_follow(indexed: Settings, reranker: EmbeddingServer) -> None:
    plain, answer = found(indexed, None), found(indexed, reranker.url, candidates=1)
    assert (paths(answer), len(reranker.log[0].body["documents"])) == (paths(plain), 1)
    assert [hit.rerank_score is None for hit in answer.results] == [False, *[True] * (len(answer.results) - 1)]


FAILURES = {
    "status 500": Failure(status=500),
    "status 302": Failure(status=302, headers={"Location": "/v1/elsewhere"}),
    "no JSON": Failure(raw=b"<html>"),
    "no results": Failure(raw=b"{}"),
    "a wrong index": Failure(raw=b'{"results": [{"index": 99, "relevance_score": 1}]}'),
    "an index twice": Failure(raw=b'{"results": [' + b'{"index": 0, "relevance_score": 1},' * 2 + b"]}"),
    "no number": Failure(raw=b'{"results": [{"index": 0, "relevance_score": NaN}]}'),
    "no answer": Failure(disconnect=True),
    "spaces without end": Failure(wire="endless"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_without_a_usable_answer_the_order_stays_and_the_answer_says_so(
    indexed: Settings, reranker: EmbeddingServer, failure: Failure
) -> None:
    reranker.fail_next(failure)
    answer = found(indexed, reranker.url)
    assert (paths(answer), reranker.requests) == (paths(found(indexed, None)), 1)
    assert [one.code for one in answer.conditions] == [ConditionCode.NOT_RERANKED]
    assert (answer.mode, {hit.rerank_score for hit in answer.results}) == ("hybrid", {None})


def test_a_search_waits_for_the_reranker_no_longer_than_its_deadline(
    indexed: Settings, reranker: EmbeddingServer
) -> None:
    released = threading.Event()
    reranker.fail_next(Failure(held_until=released))
    answer = found(indexed, reranker.url, timeout_ms=50)
    released.set()
    assert (paths(answer), [one.code for one in answer.conditions]) == (
        paths(found(indexed, None)),
        [ConditionCode.NOT_RERANKED],
    )
    assert "in time" in answer.degraded[0]


def test_reranked_answers_are_kept_and_failures_are_not(indexed: Settings, reranker: EmbeddingServer) -> None:
    settings = with_agent(indexed, query={"rerank": {"base_url": reranker.url, "timeout_ms": 60_000}})
    request = SearchRequest(query=QUERY, min_score=0)
    with searching(settings) as manager:
        reranker.fail_next(Failure(status=500))
        answers = [manager.search(request) for _ in range(3)]
        assert reranker.requests == 2
        assert [bool(answer.conditions) for answer in answers] == [True, False, False]
        assert answers[2].results == answers[1].results
        # Failures in a row begin a cool-down: a search then sends nothing.
        reranker.fail_next(Failure(status=500), times=99)
        others = (request.model_copy(update={"query": f"{QUERY} {number}"}) for number in range(99))
        silent = lambda: "failed a moment ago" in manager.search(next(others)).degraded[0]  # noqa: E731
        wait_until(silent)


def test_a_reranker_gets_no_secret_and_nothing_out_of_scope(
    settings: Settings, workspace: Path, reranker: EmbeddingServer
) -> None:
    (workspace / "memory" / "old.md").write_text("The dentist sits beside the bluebird.\n", "utf-8")
    write_index(settings).close()
    later = with_agent(settings, redaction={"patterns": [r"blue\w+"]})
    found(later, reranker.url, query=f"{QUERY} password: {PASSWORD}")
    sent = reranker.log[-1].content.decode()
    assert (PASSWORD in sent, "bluebird" in sent, "[redacted:pattern]" in sent) == (False, False, True)
    narrowed = with_agent(later, query={"rerank": {"base_url": reranker.url}})
    with searching(narrowed) as manager:
        manager.search(SearchRequest(query=QUERY, sources=("sessions",)))
    assert len(reranker.log) == 1


def test_the_key_is_masked_and_the_address_needs_a_scheme(commands: CommandLine) -> None:
    commands.set("RECALLD_QUERY__RERANK__API_KEY", "another-secret-key")
    commands.set("RECALLD_QUERY__RERANK__BASE_URL", "https://me:pass@host/v1")
    shown = commands.say("config", "show", "--json")
    assert ("query.rerank" in shown, "another-secret-key" in shown, "me:pass" in shown) == (True, False, False)
    commands.set("RECALLD_QUERY__RERANK__BASE_URL", "host/v1")
    code, _, err = commands.run("config", "show")
    assert (code, "https?://" in err) == (2, True)
