"""One step of a batch job, against a provider in memory."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from memory.embedding.batch_jobs.batch_api import (
    BatchLine,
    BatchUnavailable,
    JobFile,
    OpenAIBatches,
    ProviderJob,
)
from memory.embedding.batch_jobs.batch_ledger import BatchJob, Stage
from memory.embedding.batch_jobs.batch_step import (
    LONGEST_PAUSE_SECONDS,
    MOST_ATTEMPTS,
    STOPPING_SECONDS,
    UNSEEN_SECONDS,
    JobRules,
    step,
)
from memory.store.errors import StoreBusy
from schemas.conditions import StopReason
from schemas.errors import Permanent, RecalldError, Terminal, Throttled, Transient

NOW = 1_000_000.0
RULES = JobRules(poll_seconds=2.0, timeout_seconds=3600.0)


class Provider(OpenAIBatches):
    """Provider of one job that exists if it is `known`; every call raises `error` if there is one."""

    most_texts = 10
    most_bytes = 1000

    def __init__(self, state: Stage = Stage.RUNNING, *, known: bool = False) -> None:
        self.state = state
        self.known = known
        self.lines: list[BatchLine] = [BatchLine("a", np.ones(2, np.float32)), BatchLine("b", reason="not welcome")]
        self.error: RecalldError | None = None
        self.calls: list[str] = []

    def write(self, texts: Iterable[tuple[str, str]]) -> JobFile:
        return JobFile(io.BytesIO(), tuple(text_hash for text_hash, _ in texts))

    def submit(self, file: JobFile, *, reference: str) -> str:
        self._called("submit")
        return f"job of {len(file.ids)} for {reference}"

    def find(self, reference: str) -> str | None:
        self._called("find")
        return f"job for {reference}" if self.known else None

    def look(self, job_id: str) -> ProviderJob:
        self._called("look")
        return ProviderJob(job_id, self.state, total=2, completed=1)

    def results(self, job_id: str, *, texts: int) -> Iterator[BatchLine]:
        self._called("results")
        return iter(self.lines)

    def cancel(self, job_id: str) -> None:
        self._called("cancel")

    def clean_up(self, job_id: str) -> None:
        raise AssertionError("the caller cleans up once the end is in the ledger")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error


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
    *(NOW - 60.0, 0.0, 0.0, 0.0, None, None, 0, 3, 0, 0, 0, 0, "", ""),
)
INTERRUPTED = replace(NOTED, tried_at=NOW - 60.0)
RUNNING = replace(INTERRUPTED, job_id="batch-1", stage=Stage.RUNNING)
STOPPED = replace(RUNNING, stop_reason=StopReason.CANCELLED, stopped_at=NOW - 1.0)


def test_a_new_job_is_submitted_and_written_down_before() -> None:
    provider, desk = Provider(), Desk()
    job = step(NOTED, provider, desk, RULES, now=NOW)
    assert (job.stage, job.job_id, job.texts, job.look_at) == (Stage.RUNNING, "job of 2 for reference", 2, NOW + 2.0)
    assert desk.submitted == [(NOW, ("a", "b"))]
    assert provider.calls == ["submit"]


def test_a_job_that_may_have_been_submitted_is_looked_for_first() -> None:
    provider = Provider(known=True)
    just_now = replace(INTERRUPTED, tried_at=NOW - 1.0)
    assert step(just_now, provider, Desk(), RULES, now=NOW) == replace(just_now, look_at=NOW - 1.0 + UNSEEN_SECONDS)
    found = step(INTERRUPTED, provider, Desk(), RULES, now=NOW)
    assert (found.stage, found.job_id) == (Stage.RUNNING, "job for reference")
    provider.known = False
    again = step(INTERRUPTED, provider, Desk(), RULES, now=NOW)
    assert (again.stage, again.job_id) == (Stage.RUNNING, "job of 2 for reference")
    assert provider.calls == ["find", "find", "submit"]


def test_a_job_without_texts_that_wait_is_not_submitted() -> None:
    job = step(NOTED, Provider(), Desk(waiting=()), RULES, now=NOW)
    assert (job.stage, job.ended_at, job.came_to_nothing) == (Stage.CANCELLED, NOW, False)


def test_a_job_is_stopped_before_its_submission() -> None:
    provider = Provider()
    stop = replace(RULES, stop=StopReason.SWITCHED_OFF)
    job = step(INTERRUPTED, provider, Desk(), stop, now=NOW)
    assert (job.stage, job.stop_reason, job.stopped_at) == (Stage.CANCELLED, StopReason.SWITCHED_OFF, NOW)
    assert provider.calls == ["find"]


@pytest.mark.parametrize("error", [Permanent("too large"), BatchUnavailable("no such API")])
def test_a_job_that_the_provider_will_never_take_has_failed(error: RecalldError) -> None:
    provider = Provider()
    provider.error = error
    job = step(NOTED, provider, Desk(), RULES, now=NOW)
    assert (job.stage, job.message, job.came_to_nothing) == (Stage.FAILED, str(error), True)


@pytest.mark.parametrize("error", [Transient("no answer"), Terminal("bad key")])
def test_failed_submissions_are_bounded_and_wait_longer_each_time(error: RecalldError) -> None:
    provider, job, now = Provider(), NOTED, NOW
    pauses = []
    provider.error = error
    for _ in range(MOST_ATTEMPTS):
        job = step(job, provider, Desk(), RULES, now=now)
        pauses.append(job.look_at - now)
        now = job.look_at + UNSEEN_SECONDS
    assert (job.stage, job.attempts, pauses) == (Stage.SUBMITTING, MOST_ATTEMPTS, [2.0, 4.0, 8.0])
    provider.error = None
    job = step(job, provider, Desk(), RULES, now=now)
    assert (job.stage, job.message) == (Stage.FAILED, str(error))


def test_a_running_job_is_polled_and_its_end_collected() -> None:
    provider = Provider()
    job = step(RUNNING, provider, Desk(), RULES, now=NOW)
    assert (job.stage, job.total, job.completed, job.looked_at, job.look_at) == (Stage.RUNNING, 2, 1, NOW, NOW + 2.0)
    for state, stage in ((Stage.DONE, Stage.DONE), (Stage.EXPIRED, Stage.EXPIRED), (Stage.FAILED, "failed")):
        provider.state = state
        job = step(RUNNING, provider, Desk(), RULES, now=NOW)
        assert (job.stage, job.ended_at) == (stage, NOW)
    assert provider.calls[-2:] == ["look", "results"]


def test_results_that_take_longer_than_a_turn_are_asked_for_again() -> None:
    job = step(RUNNING, Provider(Stage.DONE), Desk(enough_time=False), RULES, now=NOW)
    assert (job.stage, job.look_at) == (Stage.RUNNING, NOW)


def test_a_job_without_one_usable_vector_has_failed() -> None:
    provider = Provider(Stage.DONE)
    del provider.lines[0]
    assert step(RUNNING, provider, Desk(), RULES, now=NOW).stage is Stage.FAILED
    assert step(replace(RUNNING, taken=1), provider, Desk(), RULES, now=NOW).stage is Stage.DONE


def test_failed_calls_pause_longer_each_time_and_as_long_as_the_provider_asks() -> None:
    provider = Provider()
    provider.error = Permanent("a look that is refused")
    assert step(RUNNING, provider, Desk(), RULES, now=NOW).look_at == NOW + 2.0
    tired = replace(RUNNING, attempts=20)
    assert step(tired, provider, Desk(), RULES, now=NOW).look_at == NOW + LONGEST_PAUSE_SECONDS
    provider.error = Throttled("slower", retry_after=900.0)
    job = step(RUNNING, provider, Desk(), RULES, now=NOW)
    assert (job.stage, job.attempts, job.message, job.look_at) == (Stage.RUNNING, 1, "slower", NOW + 900.0)


def test_errors_of_the_store_are_the_callers() -> None:
    provider = Provider()
    provider.error = StoreBusy("locked")
    with pytest.raises(StoreBusy):
        step(RUNNING, provider, Desk(), RULES, now=NOW)


def test_a_job_is_asked_to_stop_once_and_what_it_did_is_kept() -> None:
    provider = Provider()
    job = step(STOPPED, provider, Desk(), RULES, now=NOW)
    assert job.stage is Stage.STOPPING
    job = step(job, provider, Desk(), RULES, now=NOW + 2.0)
    provider.state = Stage.CANCELLED
    job = step(job, provider, Desk(), RULES, now=NOW + 4.0)
    assert (job.stage, job.came_to_nothing) == (Stage.CANCELLED, False)
    assert provider.calls == ["cancel", "look", "look", "look", "results"]


def test_a_job_that_takes_too_long_is_stopped_and_has_failed() -> None:
    provider = Provider(Stage.CANCELLED)
    late = replace(RUNNING, made_at=NOW - 3601.0)
    job = step(late, provider, Desk(), RULES, now=NOW)
    assert (job.stage, job.stop_reason, job.came_to_nothing) == (Stage.CANCELLED, StopReason.TOO_LONG, True)


def test_a_job_that_does_not_stop_is_given_up() -> None:
    provider = Provider()
    stuck = replace(STOPPED, stage=Stage.STOPPING, stopped_at=NOW - STOPPING_SECONDS - 1.0)
    assert step(stuck, provider, Desk(), RULES, now=NOW).stage is Stage.LOST
    provider.error = Transient("no answer")
    assert step(stuck, provider, Desk(), RULES, now=NOW).stage is Stage.LOST


def test_a_job_at_a_provider_that_the_settings_do_not_lead_to_is_kept_until_it_is_overdue() -> None:
    job = step(RUNNING, None, Desk(), RULES, now=NOW)
    assert (job.stage, job.attempts) == (Stage.RUNNING, 1)
    job = step(replace(RUNNING, made_at=NOW - 3601.0), None, Desk(), RULES, now=NOW)
    assert (job.stage, job.came_to_nothing) == (Stage.LOST, False)
