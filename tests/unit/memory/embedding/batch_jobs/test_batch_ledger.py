"""The ledger of batch jobs: what is at a provider is known whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from memory.embedding.batch_jobs.batch_ledger import BatchJob, BatchLedger, Stage
from memory.embedding.providers.stub import StubProvider
from schemas.conditions import StopReason

A_DAY = 86_400.0


class Provider(StubProvider):
    """A provider with an account, never asked."""

    def __init__(self, *, identity: str = "an identity", account: str = "an account") -> None:
        super().__init__()
        self.name, self.model, self.identity, self.account = "openai", "a-model", identity, account


OPENAI = Provider()


class Clock:
    """A clock that goes when told."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "batch_jobs.sqlite"


@pytest.fixture
def ledger(path: Path, clock: Clock) -> Iterator[BatchLedger]:
    with BatchLedger(path, clock=clock) as opened:
        yield opened


def _noted(ledger: BatchLedger, *hashes: str) -> BatchJob:
    assert ledger.note("main", OPENAI, hashes, most_open=10)
    return ledger.jobs()[-1]


def _end(ledger: BatchLedger, job: BatchJob, stage: Stage, clock: Clock) -> None:
    ledger.save(replace(job, stage=stage, ended_at=clock.now))


def test_a_job_is_noted_before_it_is_submitted_and_survives_the_process(ledger: BatchLedger, path: Path) -> None:
    job = _noted(ledger, "a", "b")
    assert (job.job_id, job.stage, job.agent, job.texts, job.open) == (None, Stage.SUBMITTING, "main", 2, True)
    assert (job.identity, job.account, job.provider, job.model) == ("an identity", "an account", "openai", "a-model")
    changed = replace(job, job_id="batch-1", stage=Stage.RUNNING, look_at=5.0, completed=1, message="no answer")
    ledger.save(changed)
    with BatchLedger(path) as again:
        assert again.jobs() == [changed]


def test_a_text_is_in_one_job_of_an_identity_at_most(ledger: BatchLedger) -> None:
    _noted(ledger, "a", "b")
    assert ledger.note("other", OPENAI, ["b", "c"], most_open=10) == {"c"}
    assert ledger.note("other", OPENAI, ["a", "b", "c"], most_open=10) == set()
    assert ledger.hashes("an identity") == {"a", "b", "c"}
    assert ledger.note("main", Provider(identity="another identity"), ["a"], most_open=10) == {"a"}
    assert ledger.hashes("another identity") == {"a"}
    assert ledger.hashes("a third one") == set()
    assert len(ledger.everything()) == 4


def test_texts_of_jobs_that_no_worker_looks_after_do_not_count(ledger: BatchLedger, clock: Clock) -> None:
    first, _ = _noted(ledger, "a"), _noted(ledger, "b", "c")
    assert ledger.texts_of("main", looked_within_seconds=50) == 3
    clock.now += 100
    ledger.save(replace(first, looked_at=clock.now))
    assert ledger.texts_of("main", looked_within_seconds=50) == 1
    assert ledger.texts_of("other", looked_within_seconds=50) == 0


def test_no_more_jobs_are_open_than_allowed(ledger: BatchLedger, clock: Clock) -> None:
    first = _noted(ledger, "a")
    assert not ledger.note("main", OPENAI, ["b"], most_open=1)
    assert ledger.note("main", Provider(account="another account"), ["b"], most_open=1)
    _end(ledger, first, Stage.DONE, clock)
    assert ledger.note("main", OPENAI, ["c"], most_open=1)


def test_texts_left_at_a_jobs_end_go_into_no_job_again_unless_they_are_taken_out(
    ledger: BatchLedger, clock: Clock
) -> None:
    job = _noted(ledger, "a", "b", "c", "d")
    ledger.settle(job.reference, {"a"})
    assert ledger.hashes_in(job.reference) == {"b", "c", "d"}
    ledger.save(replace(job, stage=Stage.EXPIRED, ended_at=clock.now), without={"d"})
    assert (ledger.jobs()[0].taken, ledger.jobs()[0].came_to_nothing) == (1, True)
    assert (ledger.hashes("an identity"), ledger.known_hashes("an identity")) == (set(), {"b", "c"})
    assert ledger.note("main", OPENAI, ["a", "b", "c", "d"], most_open=10) == {"a", "d"}


def test_a_wish_to_stop_is_kept_by_a_worker_that_does_not_know_of_it(ledger: BatchLedger, clock: Clock) -> None:
    job = _noted(ledger, "a")
    assert ledger.stop(job.reference, StopReason.CANCELLED)
    assert not ledger.stop(job.reference, StopReason.TOO_LONG)
    assert ledger.jobs()[0].look_at == 0.0
    ledger.save(replace(job, job_id="batch-1", stage=Stage.RUNNING))
    found = ledger.jobs()[0]
    assert (found.stop_reason, found.stopped_at, found.stage) == (StopReason.CANCELLED, clock.now, Stage.RUNNING)
    _end(ledger, found, Stage.CANCELLED, clock)
    assert not ledger.stop(job.reference, StopReason.CANCELLED)
    assert not ledger.stop("unknown", StopReason.CANCELLED)


def test_what_is_over_is_cleared_away_after_a_while(ledger: BatchLedger, clock: Clock) -> None:
    over, still = _noted(ledger, "a"), _noted(ledger, "b")
    _end(ledger, over, Stage.FAILED, clock)
    clock.now += A_DAY
    ledger.clear_away(older_than_seconds=2 * A_DAY)
    assert len(ledger.jobs()) == 2
    clock.now += 2 * A_DAY
    ledger.clear_away(older_than_seconds=2 * A_DAY)
    assert ledger.jobs() == [still]
    assert ledger.known_hashes("an identity") == {"b"}


def test_one_worker_at_a_time_polls_an_agents_jobs(ledger: BatchLedger, path: Path) -> None:
    with BatchLedger(path) as second, ledger.working_on("main") as alone:
        assert alone
        with second.working_on("main") as main, second.working_on("other") as other:
            assert (main, other) == (False, True)
    with ledger.working_on("main") as alone:
        assert alone


def test_two_workers_that_note_jobs_at_once_share_the_texts(ledger: BatchLedger, path: Path) -> None:
    hashes = [f"text {number}" for number in range(400)]

    def note(agent: str) -> list[str]:
        with BatchLedger(path) as own:
            noted = (own.note(agent, OPENAI, hashes[start:], most_open=100) for start in range(0, 400, 40))
            return [text_hash for job in noted for text_hash in job]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(note, ("main", "other"))
    assert sorted([*first, *second]) == sorted(hashes)
    assert path.stat().st_mode & 0o777 == 0o600, "a ledger is its owner's"
