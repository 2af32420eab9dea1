"""Times show what nobody reports."""

from __future__ import annotations

import pytest

from memory.standing_still import (
    BUILD_SECONDS,
    SILENCE_SECONDS,
    build_troubles,
    clock_troubles,
    silence_troubles,
    vector_troubles,
)
from schemas.ports import EndpointCondition, EndpointState, Pending, VectorProgress
from schemas.status import BuildState, IndexState, QueueState, TroubleState

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


def troubles(queue: QueueState, *, index: IndexState | None = None, in_batch_jobs: int = 0) -> list[str]:
    index = index or IndexState(generation="current", building="next", build=BUILD)
    return [one.message for one in build_troubles(index, queue, in_batch_jobs=in_batch_jobs, now=NOW)]


def test_a_document_that_waits_since_tomorrow_is_a_trouble_of_the_clock():
    [trouble] = clock_troubles(Pending(documents=1, oldest_at=NOW + 3600), now=NOW)
    assert (trouble.part, "3600 s in the future" in trouble.message) == ("clock", True)
    assert list(clock_troubles(Pending(documents=1, oldest_at=NOW + 1), now=NOW)) == []
    assert list(clock_troubles(Pending(documents=1, oldest_at=NOW - 3600), now=NOW)) == []


def test_a_build_that_nobody_goes_on_with_is_a_trouble():
    assert "nothing runs" in troubles(QueueState(reachable=False))[0]
    assert "no further for 15 min, with 3 of 10 documents" in troubles(QueueState())[0]


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
    assert troubles(queue, index=index, in_batch_jobs=in_batch_jobs) == []


def silence(*, seconds: float | None, vectors_ago: float | None = None) -> list[str]:
    since = None if seconds is None else NOW - seconds
    state = EndpointState(EndpointCondition.WAITING, None, "openai at http://x/v1 has not answered a request", since)
    progress = None if vectors_ago is None else VectorProgress(rate=1.0, at=NOW - vectors_ago)
    return [one.message for one in silence_troubles(state, progress, provider="openai", now=NOW)]


def test_an_endpoint_that_leaves_requests_without_an_answer_for_long_is_a_trouble():
    [told] = silence(seconds=SILENCE_SECONDS + 1)
    assert told.startswith("openai at http://x/v1 has not answered a request; keywords work meanwhile")
    assert silence(seconds=SILENCE_SECONDS + 1, vectors_ago=SILENCE_SECONDS + 1)


def test_a_slow_endpoint_is_none_as_long_as_vectors_come_in():
    assert (
        silence(seconds=300.0, vectors_ago=5.0) == silence(seconds=SILENCE_SECONDS - 1) == silence(seconds=None) == []
    )
    assert list(silence_troubles(None, None, provider="openai", now=NOW)) == []


@pytest.mark.parametrize(
    ("waiting", "said"),
    [(1, "1 chunk waits for its vector, and none came in for 5 min"), (1200, "1,200 chunks wait for their vectors")],
)
def test_vectors_that_do_not_come_are_a_trouble_that_says_so(waiting: int, said: str):
    index = IndexState(vectors_pending=waiting)
    [trouble] = vector_troubles(index, NOW - 300, (), now=NOW)
    assert trouble.message.startswith(said)
    assert list(vector_troubles(index, None, (), now=NOW)) == []


@pytest.mark.parametrize("part", ["provider openai", "vectors", "embedding", "index"])
def test_what_is_told_as_the_reason_is_not_told_twice(part: str):
    told = TroubleState(part=part, message="refuses", since=NOW)
    assert list(vector_troubles(IndexState(vectors_pending=3), NOW - 300, [told], now=NOW)) == []
