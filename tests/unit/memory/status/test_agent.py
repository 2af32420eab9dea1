"""Times and figures show what no process reports."""

from __future__ import annotations

import pytest

from memory.status.agent import BUILD_SECONDS, SILENCE_SECONDS, endpoint_conditions, figure_conditions, in_words
from schemas.conditions import Condition, ConditionCode
from schemas.ports import VectorProgress
from schemas.search import SearchAnswer
from schemas.status import BuildState, EndpointCondition, EndpointStatus, IndexState, QueueState

NOW = 1_000_000.0
BUILD = BuildState(
    generation="next",
    files=3,
    of_files=10,
    chunks=3,
    vectors_ready=3,
    vectors_pending=0,
    begun_at=NOW - 5000,
    last_change_at=NOW - BUILD_SECONDS - 1,
)


def codes(queue: QueueState, *, index: IndexState | None = None, in_batch_jobs: int = 0) -> list[ConditionCode]:
    index = index or IndexState(generation="current", building="next", build=BUILD)
    found = figure_conditions("main", index, queue, in_batch_jobs=in_batch_jobs, embeds=True, now=NOW)
    return [one.code for one in found]


MOVING = BUILD.model_copy(update={"last_change_at": NOW - BUILD_SECONDS + 1})


@pytest.mark.parametrize(
    ("index", "queue", "in_batch_jobs", "found"),
    [
        pytest.param(None, QueueState(reachable=False), 0, [ConditionCode.BUILD_ABANDONED], id="nothing runs"),
        pytest.param(None, QueueState(), 0, [ConditionCode.BUILD_STUCK], id="a build does not go on"),
        pytest.param(None, QueueState(pending=3), 0, [], id="documents are on their way"),
        pytest.param(None, QueueState(), 5, [], id="texts are in batch jobs"),
        pytest.param(IndexState(building="next", build=MOVING), QueueState(), 0, [], id="it went on"),
        pytest.param(IndexState(), QueueState(), 0, [], id="all is well"),
        pytest.param(
            IndexState(),
            QueueState(pending=3, oldest_seconds=95.0),
            0,
            [ConditionCode.DOCUMENTS_WAIT],
            id="documents wait for long",
        ),
        pytest.param(
            IndexState(identity_matches=False), QueueState(), 0, [ConditionCode.INDEX_OUTDATED], id="other settings"
        ),
        pytest.param(
            IndexState(vectors_pending=2),
            QueueState(reachable=False),
            0,
            [ConditionCode.VECTORS_UNATTENDED],
            id="vectors and nothing runs",
        ),
    ],
)
def test_figures_that_say_something_is_wrong_are_conditions(
    index: IndexState | None, queue: QueueState, in_batch_jobs: int, found: list[ConditionCode]
):
    assert codes(queue, index=index, in_batch_jobs=in_batch_jobs) == found


LONG, SILENT = SILENCE_SECONDS + 1, ConditionCode.PROVIDER_SILENT


@pytest.mark.parametrize(
    ("condition", "seconds", "vectors_ago", "failing", "found"),
    [
        pytest.param("waiting", LONG, None, "voyage", [SILENT], id="a request without an answer for long"),
        pytest.param("waiting", LONG, LONG, "voyage", [SILENT], id="and no vector since"),
        pytest.param("waiting", LONG, None, "openai", [], id="its failure was reported"),
        pytest.param("waiting", 300.0, 5.0, "voyage", [], id="slow, and vectors come in"),
        pytest.param("waiting", SILENCE_SECONDS - 1, None, "voyage", [], id="not for long"),
        pytest.param("waiting", None, None, "voyage", [], id="no request waits"),
        pytest.param("cooling down", None, None, "voyage", [], id="it asked for a pause"),
        pytest.param("stopped", None, None, "voyage", [ConditionCode.PROVIDER_REFUSES], id="it refuses"),
        pytest.param("stopped", None, None, "openai", [], id="a worker reported that it refuses"),
    ],
)
def test_an_endpoint_that_refuses_or_is_silent_is_a_condition_told_once(
    condition: str, seconds: float | None, vectors_ago: float | None, failing: str, found: list[ConditionCode]
):
    since = None if seconds is None else NOW - seconds
    state = EndpointStatus(EndpointCondition(condition), None, "openai has not answered a request", since)
    progress = VectorProgress() if vectors_ago is None else VectorProgress(rate=1.0, at=NOW - vectors_ago)
    reported = (Condition(ConditionCode.PROVIDER_FAILS, failing),)
    assert [one.code for one in endpoint_conditions(state, progress, reported, provider="openai", now=NOW)] == found


def test_a_condition_in_words_is_the_same_condition_for_the_doctor():
    condition = Condition(ConditionCode.PROVIDER_REFUSES, "openai", params={"error": "bad key"})
    [trouble] = in_words([condition], now=NOW)
    assert isinstance(trouble, Condition)
    assert (trouble.code, trouble.subject, trouble.params) == (condition.code, "openai", condition.params)
    assert (trouble.since, trouble.part) == (NOW, "provider openai"), "it was found just now"


def test_an_answer_with_a_code_of_a_later_version_is_understood():
    answer = SearchAnswer.model_validate_json('{"conditions": [{"code": "of_tomorrow", "subject": "main"}]}')
    assert [condition.code for condition in answer.conditions] == ["of_tomorrow"]
    assert answer.model_dump(exclude_none=True)["conditions"][0]["code"] == "of_tomorrow"
