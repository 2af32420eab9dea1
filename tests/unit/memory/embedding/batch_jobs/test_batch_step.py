"""One step of a batch job, against a provider in memory."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pytest

from memory.embedding.batch_jobs.batch_api import BatchLine, BatchUnavailable, JobFile, OpenAIBatches, ProviderJob
from memory.embedding.batch_jobs.batch_ledger import BatchJob, Stage
from memory.embedding.batch_jobs.batch_step import (
    BATCH_TIMING,
    MISSING_LOOKS,
    MOST_ATTEMPTS,
    STOPPING_SECONDS,
    JobRules,
    step,
)
from schemas.conditions import StopReason
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, Transient

T = TypeVar("T")

NOW = 1_000_000.0
RULES = JobRules(poll_seconds=2.0, timeout_seconds=3600.0)


class Provider(OpenAIBatches):
    """Provider of one job that exists if it is `known`; every call raises `error` if there is one.

    A job that is `gone` has no address, is in no list and cannot be cancelled. `fails` names the calls that raise
    `error`, all without it. `unknown` is the name of a state.
    """

    def __init__(
        self,
        state: Stage = Stage.RUNNING,
        *,
        known: bool = False,
        lines: list[BatchLine] | None = None,
        error: RecalldError | None = None,
        gone: bool = False,
        fails: Collection[str] = (),
        unknown: str = "",
    ) -> None:
        self.state, self.known, self.error = state, known, error
        self.gone, self.fails, self.unknown = gone, fails, unknown
        self.lines = lines or [BatchLine("a", np.ones(2, np.float32)), BatchLine("b", reason="not welcome")]
        self.calls: list[str] = []

    def write(self, texts: Iterable[tuple[str, str]]) -> JobFile:
        return JobFile(io.BytesIO(), tuple(text_hash for text_hash, _ in texts))

    def submit(self, file: JobFile, *, reference: str) -> str:
        return self._called("submit", f"job of {len(file.ids)} for {reference}")

    def find(self, reference: str) -> str | None:
        return self._called("find", f"job for {reference}" if self.known else None)

    def look(self, job_id: str) -> ProviderJob | None:
        job = ProviderJob(job_id, self.state, completed=1, unknown_state=self.unknown)
        return self._called("look", None if self.gone else job)

    def results(self, job: ProviderJob, *, texts: int) -> Iterator[BatchLine]:
        return self._called("results", iter(self.lines))

    def cancel(self, job_id: str) -> bool:
        return self._called("cancel", not self.gone)

    def clean_up(self, job_id: str) -> None:
        raise AssertionError("the caller cleans up once the end is in the ledger")

    def _called(self, name: str, answer: T) -> T:
        self.calls.append(name)
        if self.error is not None and (not self.fails or name in self.fails):
            raise self.error
        return answer


@dataclass
class Desk:
    """Owner of two texts, which counts what it keeps."""

    waiting: Collection[str] = ("a", "b")
    submitted: list[tuple[float, Collection[str]]] = field(default_factory=list)
    enough_time: bool = True

    def texts(self, job: BatchJob) -> Iterator[tuple[str, str]]:
        return ((text_hash, f"text {text_hash}") for text_hash in self.waiting)

    def submitting(self, job: BatchJob, hashes: Collection[str]) -> None:
        self.submitted.append((job.tried_at, hashes))

    def collect(self, job: BatchJob, lines: Iterator[BatchLine]) -> int | None:
        usable = sum(line.vector is not None for line in lines)
        return usable if self.enough_time else None


NOTED = BatchJob(
    *("reference", None, "identity", "account", "openai", "model", "main", Stage.SUBMITTING),
    *(NOW - 60.0, 0.0, 0.0, 0.0, None, None, 0, 3, 0, 0, 0, "", ""),
)
INTERRUPTED = replace(NOTED, tried_at=NOW - 60.0)
RUNNING = replace(INTERRUPTED, job_id="batch-1", stage=Stage.RUNNING)
STOPPED = replace(RUNNING, stop_reason=StopReason.CANCELLED, stopped_at=NOW - 1.0)


GONE = {"gone": True}
NO_FILE = {"state": Stage.DONE, "error": BatchUnavailable("HTTP 404"), "fails": ["results"]}
LOOKED_TWICE = replace(RUNNING, missing_since=NOW - BATCH_TIMING.missing, missing_looks=MISSING_LOOKS - 1)
LOST = replace(RUNNING, stage=Stage.LOST, ended_at=NOW - 60.0, message="it was not there")
OVERDUE = replace(RUNNING, made_at=NOW - 3601.0)
STUCK = replace(STOPPED, stage=Stage.STOPPING, stopped_at=NOW - STOPPING_SECONDS - 1.0)
JUST_TRIED = replace(INTERRUPTED, tried_at=NOW - 1.0)
NO_VECTOR = [BatchLine("b", reason="not welcome")]


@pytest.mark.parametrize(
    ("job", "provider", "desk", "expected", "calls"),
    [
        # Submission.
        (NOTED, {}, {}, {"stage": Stage.RUNNING, "job_id": "job of 2 for reference", "texts": 2}, ["submit"]),
        (JUST_TRIED, {"known": True}, {}, {"stage": Stage.SUBMITTING, "look_at": NOW - 1.0 + BATCH_TIMING.unseen}, []),
        (INTERRUPTED, {"known": True}, {}, {"stage": Stage.RUNNING, "job_id": "job for reference"}, ["find"]),
        (INTERRUPTED, {}, {}, {"stage": Stage.RUNNING, "job_id": "job of 2 for reference"}, ["find", "submit"]),
        (NOTED, {}, {"waiting": ()}, {"stage": Stage.CANCELLED, "ended_at": NOW, "came_to_nothing": False}, []),
        (NOTED, {"error": Permanent("large")}, {}, {"stage": Stage.FAILED, "came_to_nothing": True}, ["submit"]),
        (NOTED, {"error": BatchUnavailable("no API")}, {}, {"stage": Stage.FAILED, "message": "no API"}, ["submit"]),
        # A running job.
        (RUNNING, {}, {}, {"stage": Stage.RUNNING, "completed": 1, "look_at": NOW + 2.0}, ["look"]),
        (RUNNING, {"state": Stage.DONE}, {}, {"stage": Stage.DONE, "ended_at": NOW}, ["look", "results"]),
        (RUNNING, {"state": Stage.EXPIRED}, {}, {"stage": Stage.EXPIRED}, ["look", "results"]),
        (RUNNING, {"state": Stage.FAILED}, {}, {"stage": Stage.FAILED}, ["look", "results"]),
        (RUNNING, {"state": Stage.DONE}, {"enough_time": False}, {"stage": Stage.RUNNING, "look_at": NOW}, None),
        (RUNNING, {"state": Stage.DONE, "lines": NO_VECTOR}, {}, {"stage": Stage.FAILED}, None),
        (replace(RUNNING, taken=1), {"state": Stage.DONE, "lines": NO_VECTOR}, {}, {"stage": Stage.DONE}, None),
        (RUNNING, {"error": Permanent("refused")}, {}, {"stage": Stage.RUNNING, "look_at": NOW + 2.0}, None),
        (
            replace(RUNNING, attempts=20),
            {"error": Permanent("refused")},
            {},
            {"look_at": NOW + BATCH_TIMING.longest_pause, "message": "refused"},
            None,
        ),
        (RUNNING, {"error": Throttled("slower", retry_after=900.0)}, {}, {"attempts": 1, "look_at": NOW + 900.0}, None),
        # The end before its time.
        (STOPPED, {}, {}, {"stage": Stage.STOPPING, "stopped_at": NOW}, ["cancel", "look"]),
        (replace(STOPPED, stage=Stage.STOPPING), {}, {}, {"stage": Stage.STOPPING}, ["look"]),
        (STOPPED, {"state": Stage.CANCELLED}, {}, {"stage": Stage.CANCELLED, "came_to_nothing": False}, None),
        (
            OVERDUE,
            {"state": Stage.CANCELLED},
            {},
            {"stage": Stage.CANCELLED, "stop_reason": StopReason.TOO_LONG, "came_to_nothing": True},
            ["cancel", "look", "results"],
        ),
        (STUCK, {}, {}, {"stage": Stage.LOST}, ["look"]),
        (STUCK, {"error": Transient("no answer")}, {}, {"stage": Stage.LOST}, ["look"]),
        (RUNNING, None, {}, {"stage": Stage.RUNNING, "attempts": 1}, None),
        (OVERDUE, None, {}, {"stage": Stage.LOST, "came_to_nothing": False}, None),
        (
            STOPPED,
            {"error": Transient("no answer"), "fails": ["cancel"]},
            {},
            {"stage": Stage.RUNNING},
            ["cancel", "look"],
        ),
        # A job, or its results, that are not there.
        (RUNNING, GONE, {}, {"stage": Stage.RUNNING, "missing_looks": 1, "missing_since": NOW}, ["look"]),
        (replace(LOOKED_TWICE, missing_since=NOW - 599.0), GONE, {}, {"stage": Stage.RUNNING}, ["look"]),
        (replace(LOOKED_TWICE, missing_looks=1), GONE, {}, {"stage": Stage.RUNNING}, ["look"]),
        (LOOKED_TWICE, GONE, {}, {"stage": Stage.LOST, "came_to_nothing": True}, ["look", "cancel"]),
        (LOOKED_TWICE, {}, {}, {"stage": Stage.RUNNING, "missing_looks": 0, "missing_since": None}, ["look"]),
        (LOOKED_TWICE, {"state": Stage.DONE}, {}, {"stage": Stage.DONE}, ["look", "results"]),
        (
            LOOKED_TWICE,
            {**GONE, "error": Transient("no answer"), "fails": ["cancel"]},
            {},
            {"stage": Stage.RUNNING, "missing_looks": 2},
            ["look", "cancel"],
        ),
        (RUNNING, NO_FILE, {}, {"stage": Stage.RUNNING, "missing_looks": 1}, ["look", "results"]),
        (LOOKED_TWICE, NO_FILE, {}, {"stage": Stage.LOST}, ["look", "results"]),
        (INTERRUPTED, {"error": BatchUnavailable("HTTP 404")}, {}, {"stage": Stage.SUBMITTING}, ["find"]),
        # A job that was given up.
        (LOST, GONE, {}, {"stage": Stage.LOST, "ended_at": NOW - 60.0, "look_at": NOW + BATCH_TIMING.late}, ["look"]),
        (LOST, {"error": Terminal("bad key")}, {}, {"stage": Stage.LOST, "message": "it was not there"}, ["look"]),
        (LOST, {}, {}, {"stage": Stage.RUNNING, "open": True, "ended_at": None, "look_at": NOW}, ["look"]),
        (replace(LOST, job_id=None), {"known": True}, {}, {"job_id": "job for reference"}, ["find", "look"]),
        (replace(LOST, job_id=None), {}, {}, {"stage": Stage.LOST}, ["find"]),
        (replace(LOST, stop_reason=StopReason.CANCELLED), {}, {}, {"stage": Stage.LOST}, ["look", "cancel"]),
        (
            replace(LOST, stop_reason=StopReason.CANCELLED),
            {"state": Stage.CANCELLED},
            {},
            {"stage": Stage.RUNNING, "stop_reason": StopReason.CANCELLED},
            ["look"],
        ),
        (LOST, None, {}, {"stage": Stage.LOST, "ended_at": NOW - 60.0}, None),
    ],
)
def test_a_step_follows_from_the_job_and_what_its_provider_says(
    job: BatchJob,
    provider: dict[str, Any] | None,
    desk: dict[str, Any],
    expected: dict[str, object],
    calls: list[str] | None,
) -> None:
    api = None if provider is None else Provider(**provider)
    after = step(job, api, Desk(**desk), RULES, now=NOW)
    assert {name: getattr(after, name) for name in expected} == expected
    assert calls is None or (api is not None and api.calls == calls)


def test_a_job_is_written_down_before_it_is_submitted_and_may_be_stopped_before() -> None:
    desk, provider = Desk(), Provider()
    step(NOTED, provider, desk, RULES, now=NOW)
    assert desk.submitted == [(NOW, ("a", "b"))]
    job = step(INTERRUPTED, Provider(), Desk(), replace(RULES, stop=StopReason.SWITCHED_OFF), now=NOW)
    assert (job.stage, job.stop_reason, job.stopped_at) == (Stage.CANCELLED, StopReason.SWITCHED_OFF, NOW)


@pytest.mark.parametrize("error", [Transient("no answer"), Terminal("bad key")])
def test_failed_submissions_are_bounded_and_wait_longer_each_time(error: RecalldError) -> None:
    provider, job, now = Provider(error=error), NOTED, NOW
    pauses = []
    for _ in range(MOST_ATTEMPTS):
        job = step(job, provider, Desk(), RULES, now=now)
        pauses.append(job.look_at - now)
        now = job.look_at + BATCH_TIMING.unseen
    assert (job.stage, job.attempts, pauses) == (Stage.SUBMITTING, MOST_ATTEMPTS, [2.0, 4.0, 8.0])
    provider.error = None
    job = step(job, provider, Desk(), RULES, now=now)
    assert (job.stage, job.message) == (Stage.FAILED, str(error))


def test_a_stop_that_fails_is_asked_for_again_until_it_is_taken() -> None:
    provider, job = Provider(error=Transient("no answer"), fails=["cancel"]), STOPPED
    for look in range(3):
        job = step(job, provider, Desk(), RULES, now=NOW + look)
    provider.error = None
    job = step(job, provider, Desk(), RULES, now=NOW + 600.0)
    assert (job.stage, job.stopped_at) == (Stage.STOPPING, NOW + 600.0)
    assert provider.calls.count("cancel") == 4
    # The provider has its ten minutes from then on.
    assert step(job, provider, Desk(), RULES, now=NOW + 1000.0).open
    assert provider.calls.count("cancel") == 4


def test_an_unknown_state_is_named_and_runs_until_the_job_is_overdue() -> None:
    provider, job = Provider(unknown="quarantined"), RUNNING
    for attempts in (1, 2, 3):
        job = step(job, provider, Desk(), RULES, now=NOW)
        assert (job.stage, job.attempts, job.completed) == (Stage.RUNNING, attempts, 0)
        assert "quarantined" in job.message
    job = step(replace(job, made_at=OVERDUE.made_at), provider, Desk(), RULES, now=NOW)
    assert (job.stage, job.stop_reason, provider.calls[-2]) == (Stage.STOPPING, StopReason.TOO_LONG, "cancel")


def test_a_clock_that_is_ahead_for_a_moment_makes_no_job_overdue() -> None:
    year = 365 * 86_400.0
    provider = Provider()
    after = step(RUNNING, provider, Desk(), RULES, now=NOW + year, steady=NOW + 5.0)
    assert (after.stage, after.stop_reason, provider.calls) == (Stage.RUNNING, "", ["look"])
    assert step(RUNNING, provider, Desk(), RULES, now=NOW + year, steady=NOW + year).stop_reason == StopReason.TOO_LONG


def test_an_attempt_to_submit_that_is_ahead_counts_as_now() -> None:
    after = step(replace(INTERRUPTED, tried_at=NOW + 86_400.0), Provider(), Desk(), RULES, now=NOW)
    assert after.look_at == NOW + BATCH_TIMING.unseen
    assert step(after, Provider(), Desk(), RULES, now=after.look_at).stage is Stage.RUNNING
