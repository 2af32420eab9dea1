"""Results in the order of a reranker, over a real HTTP server on loopback."""

from __future__ import annotations

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

REQUEST = SearchRequest(query=f"dentist on Friday, password: {PASSWORD}", min_score=0)


def cards_first(path: str, body: Any) -> Any:
    """Answer as a reranker to which nothing but cards is relevant."""
    assert path == "/v1/rerank"
    scores = [2.5 if "card" in text else -1.0 for text in body["documents"]]
    return {"results": [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]}


@pytest.fixture
def reranker() -> Iterator[EmbeddingServer]:
    with EmbeddingServer(answers=cards_first) as server:
        yield server


@pytest.fixture
def indexed(settings: Settings, workspace: Path) -> Settings:
    (workspace / "memory" / "friday.md").write_text("The dentist on Friday is beside the bluebird.\n", "utf-8")
    (workspace / "memory" / "card.md").write_text("For the dentist: bring the insurance card.\n", "utf-8")
    write_index(settings).close()
    return with_agent(settings, redaction={"patterns": [r"blue\w+"]})


def reranking(settings: Settings, url: str | None, *, hybrid: Any = None, **rerank: Any) -> Settings:
    rerank = {"base_url": url, "timeout_ms": 60_000, **rerank}
    return with_agent(settings, query={"rerank": rerank, "hybrid": hybrid or {}})


def found(settings: Settings, request: SearchRequest = REQUEST) -> SearchAnswer:
    with searching(settings) as manager:
        return manager.search(request)


def paths(answer: SearchAnswer) -> list[str]:
    return [result.path for result in answer.results]


@pytest.mark.parametrize("hybrid", [{}, {"fusion": "weighted"}, {"mmr": {"enabled": True, "lambda": 1}}])
def test_results_stand_in_the_order_of_the_reranker(indexed: Settings, reranker: EmbeddingServer, hybrid: Any) -> None:
    plain = found(reranking(indexed, None, hybrid=hybrid))
    assert (reranker.requests, paths(plain)[0], plain.results[0].rerank_score) == (0, "memory/friday.md", None)
    settings = reranking(indexed, reranker.url, hybrid=hybrid, model="a", api_key="a-secret-key", candidates=2)
    answer = found(settings)
    assert (paths(answer)[:2], answer.conditions) == (["memory/card.md", "memory/friday.md"], ())
    assert [hit.rerank_score for hit in answer.results] == [2.5, -1, *[None] * (len(answer.results) - 2)]
    scores = [hit.score for hit in answer.results]
    assert scores == sorted(scores, reverse=True)
    found(settings, REQUEST.model_copy(update={"sources": ("sessions",)}))
    [request] = reranker.log  # nothing out of scope
    assert request.headers["authorization"] == "Bearer a-secret-key"
    masked = REQUEST.query.replace(PASSWORD, "[redacted:password]")
    assert request.body.pop("documents")[0] == "The dentist on Friday is beside the [redacted:pattern].\n"
    assert request.body == {"model": "a", "query": masked, "top_n": 2}


FAILURES = {
    "status 500": Failure(status=500),
    "a redirect": Failure(status=302, headers={"Location": "/v1/elsewhere"}),
    "no JSON": Failure(raw=b"<html>"),
    "no results": Failure(raw=b"{}"),
    "a wrong index": Failure(raw=b'{"results": [{"index": 99, "relevance_score": 1}]}'),
    "no number": Failure(raw=b'{"results": [{"index": 0, "relevance_score": NaN}]}'),
    "a closed connection": Failure(disconnect=True),
    "spaces without end": Failure(wire="endless"),
    "silence until the deadline": Failure(wire="silent"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_without_a_usable_answer_the_order_stays_and_the_answer_says_so(
    indexed: Settings, reranker: EmbeddingServer, failure: Failure
) -> None:
    reranker.fail_next(failure)
    seconds = 3 if failure.wire else 60
    answer = found(reranking(indexed, reranker.url, candidates=1, timeout_ms=seconds * 1_000))
    assert (paths(answer), reranker.requests, answer.mode) == (paths(found(indexed)), 1, "hybrid")
    assert [one.code for one in answer.conditions] == [ConditionCode.NOT_RERANKED]


def test_reranked_answers_are_kept_and_failures_in_a_row_begin_a_cool_down(
    indexed: Settings, reranker: EmbeddingServer
) -> None:
    with searching(reranking(indexed, reranker.url)) as manager:
        reranker.fail_next(Failure(status=500))
        answers = [manager.search(REQUEST) for _ in range(3)]
        assert (reranker.requests, [bool(answer.conditions) for answer in answers]) == (2, [True, False, False])
        assert answers[2].results == answers[1].results
        reranker.fail_next(Failure(status=500), times=99)
        others = (SearchRequest(query=f"dentist {number}") for number in range(99))
        silent = lambda: "failed a moment ago" in manager.search(next(others)).degraded[0]  # noqa: E731
        wait_until(silent)


def test_the_key_of_a_reranker_is_masked_and_its_address_needs_a_scheme(commands: CommandLine) -> None:
    commands.set("RECALLD_QUERY__RERANK__API_KEY", "another-secret-key")
    commands.set("RECALLD_QUERY__RERANK__BASE_URL", "https://me:pass@host/v1")
    shown = commands.say("config", "show", "--json")
    assert ("query.rerank" in shown, "another-secret-key" in shown, "me:pass" in shown) == (True, False, False)
    commands.set("RECALLD_QUERY__RERANK__BASE_URL", "host/v1")
    code, _, err = commands.run("config", "show")
    assert (code, "https?://" in err) == (2, True)
