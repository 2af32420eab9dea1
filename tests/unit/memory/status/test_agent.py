"""Times and figures show what no process reports."""

from __future__ import annotations

import pytest

from memory.status.agent import (
    BUILD_SECONDS,
    SILENCE_SECONDS,
    build_conditions,
    clock_conditions,
    endpoint_conditions,
    figure_conditions,
    trouble_of,
)
from schemas.conditions import Condition, ConditionCode
from schemas.ports import Pending, VectorProgress
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
    return [one.code for one in build_conditions(index, queue, in_batch_jobs=in_batch_jobs, now=NOW)]


def test_a_document_that_waits_since_tomorrow_is_a_condition_of_the_clock():
    [found] = clock_conditions(Pending(documents=1, oldest_at=NOW + 3600), now=NOW)
    assert (found.code, found.params) == (ConditionCode.CLOCK_DIFFERS, {"seconds": 3600.0})
    assert list(clock_conditions(Pending(documents=1, oldest_at=NOW + 1), now=NOW)) == []
    assert list(clock_conditions(Pending(documents=1, oldest_at=NOW - 3600), now=NOW)) == []


def test_a_build_that_does_not_go_on_is_a_condition():
    assert codes(QueueState(reachable=False)) == [ConditionCode.BUILD_ABANDONED]
    assert codes(QueueState()) == [ConditionCode.BUILD_STUCK]


@pytest.mark.parametrize(
    ("queue", "index", "in_batch_jobs"),
    [
        (QueueState(), IndexState(generation="current"), 0),
        (QueueState(pending=3), None, 0),
        (QueueState(), None, 5),
        (
            QueueState(),
            IndexState(building="next", build=BUILD.model_copy(update={"last_change_at": NOW - BUILD_SECONDS + 1})),
            0,
        ),
    ],
)
def test_a_build_that_gets_on_or_has_a_reason_to_wait_is_none(
    queue: QueueState, index: IndexState | None, in_batch_jobs: int
):
    assert codes(queue, index=index, in_batch_jobs=in_batch_jobs) == []


@pytest.mark.parametrize(
    ("index", "queue", "code"),
    [
        (IndexState(), QueueState(pending=3, oldest_seconds=95.0), ConditionCode.DOCUMENTS_WAIT),
        (IndexState(identity_matches=False), QueueState(), ConditionCode.INDEX_OUTDATED),
        (IndexState(vectors_pending=2), QueueState(reachable=False), ConditionCode.VECTORS_UNATTENDED),
    ],
)
def test_figures_that_say_something_is_wrong_are_conditions(index: IndexState, queue: QueueState, code: ConditionCode):
    assert [one.code for one in figure_conditions("main", index, queue, embeds=True)] == [code]
    assert list(figure_conditions("main", IndexState(), QueueState(), embeds=True)) == []


LONG = SILENCE_SECONDS + 1


@pytest.mark.parametrize(
    ("seconds", "vectors_ago", "failing", "silent"),
    [
        pytest.param(LONG, None, "voyage", True, id="a request without an answer for long"),
        pytest.param(LONG, LONG, "voyage", True, id="and no vector since"),
        pytest.param(LONG, None, "openai", False, id="its failure was reported"),
        pytest.param(300.0, 5.0, "voyage", False, id="slow, and vectors come in"),
        pytest.param(SILENCE_SECONDS - 1, None, "voyage", False, id="not for long"),
        pytest.param(None, None, "voyage", False, id="no request waits"),
    ],
)
def test_an_endpoint_is_silent(seconds: float | None, vectors_ago: float | None, failing: str, silent: bool):
    since = None if seconds is None else NOW - seconds
    state = EndpointStatus(EndpointCondition.WAITING, None, "openai has not answered a request", since)
    progress = None if vectors_ago is None else VectorProgress(rate=1.0, at=NOW - vectors_ago)
    found = (Condition(ConditionCode.PROVIDER_FAILS, failing),)
    codes = [one.code for one in endpoint_conditions(state, progress, found, provider="openai", now=NOW)]
    assert codes == [ConditionCode.PROVIDER_SILENT] * silent


def test_an_endpoint_that_refuses_is_a_condition_though_no_worker_met_it():
    refuses = EndpointStatus(EndpointCondition.STOPPED, reason="the key is refused")
    [found] = endpoint_conditions(refuses, None, (), provider="openai", now=NOW)
    assert (found.code, found.subject) == (ConditionCode.PROVIDER_REFUSES, "openai")


def test_status_shows_a_condition_with_its_code_its_part_and_since_when():
    shown = trouble_of(Condition(ConditionCode.PROVIDER_FAILS, "openai", 5.0, {"error": "HTTP 500"}), now=NOW)
    assert (shown.code, shown.subject, shown.part, shown.since) == ("provider_fails", "openai", "provider openai", 5.0)
    assert shown.params == {"error": "HTTP 500"}
    assert trouble_of(Condition(ConditionCode.CLOCK_DIFFERS, params={"seconds": 9.0}), now=NOW).since == NOW
